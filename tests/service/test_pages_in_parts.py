"""Goal: the parts of a page come in order, without gaps and without further requests, within the credit of their
request; a follower that never reads holds no more than that. Method: real servers, raw requests, our client beside an
older node and over lost connections.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
from structlog.testing import capture_logs

from ockam.actors.address import Route, tcp
from ockam.protocol import ERROR
from ockam.transport.forwarding import is_destination_unreachable
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from ockam.transport.wire_legacy import LEGACY
from stream_client import StreamNotFound, connect
from stream_client.consume.reader import MARKED, PACKED
from stream_client.core.partition_handle import PartitionHandle
from stream_node.node.process import NodeProcess
from stream_service.extensions import (
    DELETED,
    PACKED_PULL,
    TRUNCATE,
    BeforeIndex,
    FromIndex,
    Header,
    PackedPull,
    RichMessage,
    Start,
    TruncateRequest,
)
from stream_service.limits import StreamLimits
from stream_service.protocol import CREATE, CreateStream
from stream_service.workers import served as served_module
from tests.support.rich import ask, messages_of, push
from tests.support.served import Served, neighbour, served, wait_until
from tests.support.stream_peer import SERVICE, StreamPeer

MIB = 1024 * 1024
BOTH_WIRES = pytest.mark.parametrize("wire", [HEAD, LEGACY], ids=lambda wire: wire.name)


async def follow(peer: StreamPeer, route: Route, start: Start, limit: int = 1_000, wait_ms: int = 5_000) -> None:
    await peer.send(route, PACKED_PULL.encode_request(PackedPull(7, start, limit, wait_ms, 0)))


class Part(NamedTuple):
    first_index: int
    next_index: int
    resume_index: int
    more: bool
    messages: list[RichMessage]


async def part(peer: StreamPeer) -> Part:
    found = PACKED_PULL.decode_response((await peer.receive()).payload)
    assert found.request_id == 7
    messages = messages_of(found)
    assert messages is not None
    return Part(found.first_index, found.next_index, found.resume_index, found.more, messages)


@BOTH_WIRES
@pytest.mark.parametrize("tails_bytes_max", [0, MIB], ids=["read", "in memory"])
async def test_each_part_goes_on_where_the_one_before_has_ended(
    tmp_path: Path, wire: Wire, tails_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two followers, of which one begins with stored messages and the other has less credit."""
    limits = partial(StreamLimits, tails_bytes_max=tails_bytes_max)
    monkeypatch.setattr("stream_node.node.services.StreamLimits", limits)
    async with served(tmp_path) as server:
        pusher, behind, short = await server.peer(), await server.peer(wire), await server.peer(wire)
        route = await pusher.create("s")
        await pusher.push_all(route, [b"0", b"1"])
        await follow(behind, route, FromIndex(0))
        first = await part(behind)
        assert ([each.data for each in first.messages], first.resume_index, first.more) == ([b"0", b"1"], 2, True)
        await follow(short, route, FromIndex(2), limit=2)
        await wait_until(lambda: server.statistics().limits.open["pulls_parked_max"] == 2)
        for number in range(2, 5):
            await push(pusher, route, b"%d" % number, headers=[Header("h", b"v")] if number == 3 else ())
            found = await part(behind)
            (message,) = found.messages
            assert (message.index, message.data, found.resume_index) == (number, b"%d" % number, number + 1)
            assert found.more
        got = [await part(short), await part(short)]
        assert [(each.messages[0].index, each.more) for each in got] == [(2, True), (3, False)]
        assert got[1].messages[0].headers == [Header("h", b"v")]
        # The first one still waits, and the second one gets nothing for which it did not ask.
        await wait_until(lambda: server.statistics().limits.open["pulls_parked_max"] == 1)
        await short.send(route, b"")
        assert ERROR.is_in((await short.receive()).payload)


async def test_the_last_part_is_empty_when_nothing_came_in_time(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        peer = await server.peer()
        route = await peer.create("s")
        await follow(peer, route, FromIndex(0), wait_ms=300)
        await push(await server.peer(), route, b"0")
        assert (await part(peer)).more
        began_s = trio.current_time()
        last = await part(peer)
        assert (last.messages, last.resume_index, last.next_index, last.more) == ([], 1, 1, False)
        assert trio.current_time() - began_s >= 0.2, "each message is waited for as long as the first one"
        await follow(peer, route, FromIndex(1), wait_ms=0)
        assert not (await part(peer)).more


async def test_a_follower_hears_of_the_truncation_and_the_deletion_of_its_stream(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        peer, other = await server.peer(), await server.peer()
        route = await peer.create("s")
        await other.push_all(route, [b"0", b"1"])
        await follow(peer, route, FromIndex(2))
        await ask(other, route, TRUNCATE, TruncateRequest(1, BeforeIndex(2)))
        await other.push(route, b"2")
        found = await part(peer)
        assert (found.first_index, found.messages[0].index, found.more) == (2, 2, True)
        async with connect(server.address) as client:
            await (await client.create("s")).delete()
        assert ERROR.decode_response((await peer.receive()).payload).reason.endswith(DELETED)


async def test_followers_that_never_read_hold_one_page_each_and_stop_nobody(tmp_path: Path) -> None:
    """Five MiB are pushed in messages of 64 KiB, beside a follower that reads. No connection is closed: the credit of
    a request is used up before its answers are too many."""
    with capture_logs() as logs:
        async with served(tmp_path) as server, neighbour(server):
            pusher, quick = await server.peer(), await server.peer()
            route = await pusher.create("s")
            for _ in range(3):
                slow = await server.peer()
                slow.stream.socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4_096)
                await follow(slow, route, FromIndex(0))
            await follow(quick, route, FromIndex(0))
            next_index = 0
            for number in range(80):
                await pusher.push(route, bytes(64 * 1024))
                if number == 60:
                    sent = [each.backlog_bytes for each in server.statistics().tcp.connections]
                    assert max(sent) < 2 * MIB
                while next_index <= number:
                    found = await part(quick)
                    assert not found.messages or found.messages[0].index == next_index
                    next_index = found.resume_index
                    if not found.more:
                        await follow(quick, route, FromIndex(next_index))
            assert server.statistics().limits.open.get("pulls_parked_max", 0) <= 1
    assert not [line for line in logs if line["event"] == "slow_consumer"]


async def test_a_large_part_reaches_all_of_many_followers(tmp_path: Path) -> None:
    """Forty copies of 100,000 bytes are more than the node makes at once. Those that get theirs later miss nothing."""
    async with served(tmp_path) as server:
        pusher, followers = await server.peer(), [await server.peer() for _ in range(40)]
        route = await pusher.create("s")
        for peer in followers:
            await follow(peer, route, FromIndex(0))
        await wait_until(lambda: server.statistics().limits.open["pulls_parked_max"] == 40)
        for number in range(3):
            await pusher.push(route, bytes([number]) * 100_000)
            for peer in followers:
                found = await part(peer)
                assert [(each.index, set(each.data)) for each in found.messages] == [(number, {number})]
                assert found.more


@pytest.mark.parametrize("peer_wire", [HEAD, LEGACY], ids=lambda wire: wire.name)
async def test_a_next_node_that_dies_in_the_middle_of_the_parts_is_told(tmp_path: Path, peer_wire: Wire) -> None:
    """Goal: the sender of a request that another part should follow gets an `error`; that of one that has had its last
    part gets none. Method: a process that is killed, behind a forwarding node."""
    with NodeProcess(tmp_path / "far") as far:
        async with served(tmp_path / "near", allow_forward=(far.address,)) as near:
            pusher, goes_on, ended = await near.peer(), await near.peer(peer_wire), await near.peer(peer_wire)
            way = tcp(far.address)
            stream = (await pusher.ask((way, *SERVICE), CREATE.encode_request(CreateStream("s")))).return_route
            await follow(goes_on, stream, FromIndex(0))
            await follow(ended, stream, FromIndex(0), limit=2)
            for number in range(2):
                await pusher.push(stream, b"%d" % number)
                assert [each.index for each in (await part(goes_on)).messages] == [number]
                assert (await part(ended)).more == (number == 0)
            far.kill()
            reason = ERROR.decode_response((await goes_on.receive()).payload).reason
            assert is_destination_unreachable(reason)
            # Nothing else was sent to this peer before the answer to its next request.
            assert await ended.get_index("app", "s") == 0


@pytest.mark.parametrize("far_ends", [NodeProcess.kill, NodeProcess.stop], ids=["killed", "stopped"])
async def test_our_client_goes_on_after_its_node_has_started_again(
    tmp_path: Path, far_ends: Callable[[NodeProcess], object]
) -> None:
    """Two followers, of which one asks the node and the other one a node before it, get each message once."""
    with NodeProcess(tmp_path / "far") as far:
        async with (
            served(tmp_path / "near", allow_forward=(far.address,)) as near,
            connect(far.address) as client,
            connect(far.address) as direct,
            connect(near.address, via=(tcp(far.address),)) as behind,
        ):
            stream = await client.create("s")
            followers = [(await each.create("s")).follow() for each in (direct, behind)]
            for number in range(30):
                await stream.push(b"%d" % number)
                for follower in followers:
                    message = await follower.__anext__()
                    assert (message.index, message.data) == (number, b"%d" % number)
                if number % 10 == 5:
                    await trio.to_thread.run_sync(far_ends, far)
                    await trio.to_thread.run_sync(far.start)


async def test_parts_count_as_requests(tmp_path: Path) -> None:
    """Above its rate, an identity has to ask again, and its request waits like every other."""
    limits = {"identity_requests_per_second": 20, "identity_limits_loopback": True}
    async with served(tmp_path, **limits) as server:
        peer, pusher = await server.peer(), await server.peer()
        route = await peer.create("s")
        await follow(peer, route, FromIndex(0))
        more, received = True, 0
        while more:
            await pusher.push(route, b"x")
            more = (await part(peer)).more
            received += 1
            assert received < 100


def forget_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the nodes of this process older ones, which do not know this request."""
    known = {tag: row for tag, row in served_module._by_tag().items() if tag != PACKED_PULL.tag}
    monkeypatch.setattr(served_module, "_by_tag", lambda: known)


async def numbers_of(server: Served, messages: int) -> tuple[list[bytes], int]:
    """What a follower of our client gets while messages are pushed, and the protocol that it has used."""
    async with connect(server.address) as client, connect(server.address) as other:
        stream = await client.create("s")
        source = await other.create("s")
        follower, got = source.follow(), []
        for number in range(messages):
            await stream.push(b"%d" % number)
            got.append((await follower.__anext__()).data)
        follower.stop()
        return got, other.session.best_pull


async def test_our_client_follows_in_parts_and_pulls_from_an_older_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [b"%d" % number for number in range(50)]
    async with served(tmp_path / "new") as server:
        assert await numbers_of(server, 50) == (expected, PACKED)
        # Fifty messages came as parts of one page, beside the requests that make the stream.
        assert sum(each.received for each in server.statistics().tcp.connections) < 50 + 20
    forget_parts(monkeypatch)
    async with served(tmp_path / "old") as server:
        assert await numbers_of(server, 50) == (expected, MARKED)


async def test_a_follower_goes_on_at_an_older_node_and_at_a_newer_one_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claim: what a node has answered says nothing of the node behind the next connection.

    Method: a node is replaced by an older one at the same address, and that by a newer one.
    """
    async with served(tmp_path) as server, connect(server.address) as client:
        address, stream = server.address, await client.create("s")
        for number in range(9):
            await stream.push(b"%d" % number)
    stop, ended, newer = trio.Event(), trio.Event(), served_module._by_tag

    async def live(*, task_status: trio.TaskStatus[None]) -> None:
        async with served(tmp_path, listen=address):
            task_status.started()
            await stop.wait()
        ended.set()

    got: list[bytes] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(live)
        async with connect(address) as client:
            follower = (await client.create("s")).follow(page_messages=1)
            for following in ("older", "newer", "none"):
                # One page is fetched ahead, so the last of these pages are of this node.
                with trio.fail_after(30):
                    got += [(await follower.__anext__()).data for _ in range(3)]
                stop.set()
                await ended.wait()
                stop, ended = trio.Event(), trio.Event()
                if following != "none":
                    monkeypatch.setattr(served_module, "_by_tag", newer)
                    if following == "older":
                        forget_parts(monkeypatch)
                    await nursery.start(live)
    assert got == [b"%d" % number for number in range(9)]


async def test_what_waits_for_a_slow_program_is_one_page(tmp_path: Path) -> None:
    """The program takes nothing while 300 messages come, of which a page has 100. It gets all of them, in order."""
    async with served(tmp_path) as server, connect(server.address) as client, connect(server.address) as other:
        stream, source = await client.create("s"), await other.create("s")
        follower = source.follow(page_messages=100)
        await stream.push(b"0")
        assert (await follower.__anext__()).index == 0
        for number in range(1, 300):
            await stream.push(b"%d" % number)
        await wait_until(lambda: server.statistics().limits.open.get("pulls_parked_max", 0) == 0)
        page = await follower.next_page()
        assert 0 < len(page) <= 100
        indexes = [each.index for each in page]
        while indexes[-1] < 299:
            indexes.append((await follower.__anext__()).index)
        assert indexes == list(range(1, 300))


async def test_a_lost_connection_and_a_repeated_request_give_no_gap_and_nothing_twice(tmp_path: Path) -> None:
    """Every fifth message, the connection of the follower is closed, or its stream is looked for again as after a long
    silence: then the node has the request twice."""
    async with served(tmp_path) as server, connect(server.address) as client, connect(server.address) as other:
        stream, source = await client.create("s"), await other.create("s")
        follower, got = source.follow(), []
        for number in range(60):
            await stream.push(b"%d" % number)
            got.append((await follower.__anext__()).index)
            if number % 10 == 4:
                core = other.session.core
                (call,) = [each for each in core.calls if each.renew is not None]
                assert isinstance(call.target, PartitionHandle)
                assert call.target.route is not None
                core.calls.send_again(call, call.target.route)
                await source.info()
            elif number % 10 == 9:
                parts = server.server._parts
                assert parts is not None
                assert parts.tcp.close_identities(lambda identity: True, "test") == 2
        assert got == list(range(60))
        # The last loss must be over: a deletion that is sent twice finds no stream.
        await stream.info()
        await stream.delete()

        async def take_rest() -> None:
            """Messages whose confirms were lost with the connection were stored twice, so that there are more."""
            async for message in follower:
                got.append(message.index)

        with pytest.raises(StreamNotFound):
            await take_rest()
        assert got == list(range(len(got)))
