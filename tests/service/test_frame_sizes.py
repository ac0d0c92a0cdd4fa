"""Goal: whatever was stored is pulled back by either framing, or its asker is told why it cannot be.

Method: messages of sizes around every limit, pushed by the head framing and pulled by both, on a whole server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from ockam.actors.address import Route, local
from ockam.actors.message import Message
from ockam.protocol import ERROR
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY, ROUTE_BYTES_MAX
from stream_client import RequestRefused, connect
from stream_service.extensions import RICH_PULL, RICH_PUSH, FromIndex, Header, RichPull, RichPush
from stream_service.limits import StreamLimits
from stream_service.protocol import PULL, PUSH, PullRequest, PullResponse, PushRequest, Status
from tests.support.served import PATIENCE_S, neighbour, served
from tests.support.stream_peer import StreamPeer

BOTH_WIRES = pytest.mark.parametrize("wire", [HEAD, LEGACY], ids=lambda wire: wire.name)
LEGACY_ROOM_BYTES = 300
"""A message this much smaller than a legacy frame always fits, with its envelope and a short route."""


async def pull_answer(peer: StreamPeer, route: Route, index: int, limit: int, back: Route = (local("me"),)) -> Message:
    """The answer to a pull with that return route."""
    await peer.stream.send_all(peer.frame(route, PULL.encode_request(PullRequest(5, index, limit)), back))
    with trio.fail_after(PATIENCE_S):
        return await peer.receive()


def indexes(page: PullResponse) -> list[int]:
    return [message.index for message in page.messages]


@pytest.mark.parametrize("size", [0, 100, 1_000, 10_000, 64_000, LEGACY.send_bytes_max - LEGACY_ROOM_BYTES])
@BOTH_WIRES
async def test_pages_are_cut_to_what_a_frame_carries_and_nothing_is_missed(
    tmp_path: Path, wire: Wire, size: int
) -> None:
    """Every page has at least one message, in order, and the pages together are everything."""
    count = max(3, min(400, 200_000 // (size + 1)))
    data = [bytes((number % 256,)) * size for number in range(count)]
    async with served(tmp_path, pull_bytes_max=150_000) as server:
        publisher = await server.peer()
        route = await publisher.create("s")
        await publisher.push_all(route, data)
        consumer = await server.peer(wire)
        found: list[bytes] = []
        while page := (await consumer.pull(route, len(found), 2**64 - 1)).messages:
            assert [message.index for message in page] == list(range(len(found), len(found) + len(page)))
            found += [message.data for message in page]
        assert server.statistics().node.dropped == {}
    assert found == data


async def test_around_the_largest_legacy_message_it_is_delivered_or_passed_over(
    tmp_path: Path,
) -> None:
    """The limit moves with the length of the return route, since that stands in the same frame."""
    sizes = range(LEGACY.send_bytes_max - 3 * LEGACY_ROOM_BYTES, LEGACY.send_bytes_max + 1, 7)
    short, long = (local("me"),), tuple(local(f"hop{number}") for number in range(12))
    async with served(tmp_path) as server, neighbour(server):
        publisher, consumer = await server.peer(), await server.peer(LEGACY)
        route = await publisher.create("s")
        await publisher.push_all(route, [b"x" * size for size in sizes])
        fit: dict[Route, list[bool]] = {short: [], long: []}
        for back, fits in fit.items():
            for index, size in enumerate(sizes):
                answer = await pull_answer(consumer, route, index, 10, back)
                found = [len(message.data) for message in PULL.decode_response(answer.payload).messages]
                fits.append(found == [size])
                # Whatever is behind it is larger.
                assert fits[-1] or found == []
        assert server.statistics().node.dropped == {}
    for fits in fit.values():
        assert fits == sorted(fits, reverse=True)
        assert (fits[0], fits[-1]) == (True, False)
    assert sum(fit[short]) > sum(fit[long])


async def test_a_legacy_consumer_passes_over_what_no_legacy_frame_can_carry(tmp_path: Path) -> None:
    """Goal: one large message does not stop a legacy consumer for good; what it misses is counted and logged.

    The real service's connection crashes here, and its consumer asks for the same batch for ever. Method: the loop of
    the real Elixir consumer (pull, save the highest index + 1, pull again), beside one over the head framing.
    """
    large = bytes(100_000)
    with capture_logs() as logs:
        async with served(tmp_path) as server, neighbour(server):
            modern, legacy = await server.peer(), await server.peer(LEGACY)
            route = await modern.create("s")
            await modern.push_all(route, [large, b"one", large, large, b"four", b"five", large])
            assert [index async for index in consumed(legacy, route, 7)] == [1, 4, 5]
            # At the end only the last large message is there: the answer is empty, and the consumer asks again later.
            for _ in range(3):
                assert indexes(await legacy.pull(route, 6, 10)) == []
            assert server.statistics().services.messages_passed_over == 4
            await modern.push_all(route, [b"seven"])
            assert indexes(await legacy.pull(route, 6, 10)) == [7]
            assert [index async for index in consumed(modern, route, 8)] == list(range(8))
            assert server.statistics().services.messages_passed_over == 4
            assert server.statistics().services.pulls_failed == 0
            assert server.statistics().node.dropped == {}
    told = [line for line in logs if line["event"] == "messages_passed_over"]
    assert [(line["first_index"], line["last_index"]) for line in told] == [(0, 0), (2, 3), (6, 6)]


async def consumed(peer: StreamPeer, route: Route, end: int) -> AsyncIterator[int]:
    """What the real consumer is given below `end`, until a pull finds nothing."""
    saved = 0
    while saved < end:
        found = indexes(await peer.pull(route, saved, 10))
        if not found:
            return
        for index in found:
            yield index
        saved = found[-1] + 1


async def test_a_rich_pull_over_the_legacy_framing_is_told_what_does_not_fit(tmp_path: Path) -> None:
    """Our own clients get an error that names the index, since they can tell their program, and can use the head."""
    with capture_logs() as logs:
        async with served(tmp_path) as server, neighbour(server):
            modern, legacy = await server.peer(), await server.peer(LEGACY)
            route = await modern.create("s")
            await modern.push_all(route, [b"before", bytes(100_000), b"behind"])
            pull = RICH_PULL.encode_request(RichPull(0, FromIndex(1), 10, 0))
            answer = await legacy.ask(route, pull)
            assert server.statistics().services.pulls_failed == 1
    reason = ERROR.decode_response(answer.payload).reason
    assert "index 1 has 100000 bytes" in reason
    assert "pull from index 2" in reason
    assert [line["event"] for line in logs].count("pull_failed") == 1


async def test_what_a_legacy_publisher_is_confirmed_every_legacy_consumer_gets(tmp_path: Path) -> None:
    """A legacy frame brings 65,535 bytes at most, and takes 65,000 to a consumer, with all that is around them."""
    sizes = [1, 60_000, 63_900, 63_980, 64_000, 64_788, 64_789, 65_000, 65_400]
    long = tuple(local(f"a hop of a long way, number {number:2}") for number in range(12))
    async with served(tmp_path) as server:
        legacy = await server.peer(LEGACY)
        route = await legacy.create("s")
        confirmed: list[int] = []
        for size in sizes:
            push = PUSH.encode_request(PushRequest(1, b"x" * size))
            body = LEGACY.encode_routes(route, (local("me"),)) + LEGACY.encode_payload(push)
            await legacy.stream.send_all(len(body).to_bytes(2, "big") + body)
            answer = (await legacy.receive()).payload
            if ERROR.is_in(answer):
                assert len(push) > 64_000
                assert "with this framing at most 64000 can be pulled" in ERROR.decode_response(answer).reason
            else:
                assert len(push) <= 64_000
                assert PUSH.decode_response(answer).status is Status.OK
                confirmed.append(size)
        for index, size in enumerate(confirmed):
            for back in ((local("me"),), long):
                (message,) = PULL.decode_response((await pull_answer(legacy, route, index, 1, back)).payload).messages
                assert (message.index, len(message.data)) == (index, size)


async def test_our_client_says_at_once_what_the_legacy_framing_cannot_carry(tmp_path: Path) -> None:
    """An `error` of the node does not say which of several pushes it means, so all would count as unknown."""
    async with served(tmp_path) as server, connect(server.address, framing="legacy") as client:
        stream = await client.create("s")
        async with stream.publisher(keep_failed=True) as publisher:
            pushes = [await publisher.push(bytes(size)) for size in (10, 64_500, 63_900)]
        assert [push.error is None for push in pushes] == [True, False, True]
        assert isinstance(pushes[1].error, RequestRefused)
        assert [len(message.data) for message in await stream.pull(0, 10)] == [10, 63_900]


async def test_the_largest_message_goes_in_and_comes_back(tmp_path: Path) -> None:
    """What nobody could pull any more, since its answer would not fit a frame, is refused at the push."""
    size = StreamLimits().message_bytes_max - 100
    async with served(tmp_path) as server, neighbour(server):
        peer = await server.peer()
        route = await peer.create("s")
        assert (await peer.push(route, b"x" * size)).status is Status.OK
        (message,) = (await peer.pull(route, 0, 10)).messages
        assert len(message.data) == size
        refused = await peer.ask(route, PUSH.encode_request(PushRequest(1, b"x" * (size + 200))))
        assert "a stream keeps at most" in ERROR.decode_response(refused.payload).reason
        assert server.statistics().node.dropped == {}


async def test_a_rich_page_counts_keys_and_headers(tmp_path: Path) -> None:
    """A message that fits a legacy frame only without its headers: a rich pull is told so, a plain one gets it."""
    async with served(tmp_path) as server, neighbour(server):
        modern, legacy = await server.peer(), await server.peer(LEGACY)
        route = await modern.create("s")
        push = RichPush(1, bytes(55_000), None, [Header("h", bytes(15_000))], None)
        await modern.ask(route, RICH_PUSH.encode_request(push))
        answer = await legacy.ask(route, RICH_PULL.encode_request(RichPull(1, FromIndex(0), 10, 0)))
        assert "index 0 has 70" in ERROR.decode_response(answer.payload).reason
        assert indexes(await legacy.pull(route, 0, 10)) == [0]
        assert server.statistics().node.dropped == {}


@BOTH_WIRES
async def test_the_longest_return_route_leaves_room_for_an_error(tmp_path: Path, wire: Wire) -> None:
    """A message that fits beside no such route is refused in the small framing, and nothing is dropped."""
    hops = (*(local(bytes(1_000)) for _ in range(8)), local(bytes(ROUTE_BYTES_MAX - 8_000)))
    async with served(tmp_path) as server, neighbour(server):
        peer = await server.peer(wire)
        route = await peer.create("s")
        await peer.push(route, b"x" * 60_000)
        pull = RICH_PULL.encode_request(RichPull(1, FromIndex(0), 10, 0))
        await peer.stream.send_all(peer.frame(route, pull, hops))
        answer = await peer.receive()
        assert answer.onward_route == hops
        assert ERROR.is_in(answer.payload) is (wire is LEGACY)
        assert (await peer.push(route, b"next")).index == 1
        assert server.statistics().node.dropped == {}
