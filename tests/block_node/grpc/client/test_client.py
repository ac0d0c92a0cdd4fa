"""Goal: a program publishes to a block node over gRPC as a consensus node does, and reads its blocks.

Method: our own node on a real database, and a server of the official library that answers as a script says, over real
sockets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from block_node.blocks.generator import BlockShape
from block_node.blocks.items import ItemKind, make_item
from block_node.client.errors import BlockRefused, DamagedAnswer, PublishGaveUp, SubscriptionRefused
from block_node.client.outgoing import CHUNK_BYTES, OutgoingBlock
from block_node.grpc.client.client import GrpcBlockClient, connect_grpc
from block_node.grpc.client.consensus_machine import ConsensusLimits
from block_node.grpc.client.publisher import requests_of
from block_node.grpc.messages import NO_BLOCK, WireMessage, read_message, write_message
from block_node.protocol import PublisherEndCode, PublishStatus
from block_node.protocol_reading import SubscribeStatus
from ockam.identity.token import Token
from stream_client.errors import InvalidArgument, NodeUnreachable, NotSupported
from tests.block_node.grpc.calls.block_door import block_door
from tests.block_node.grpc.http2.door import wait_until
from tests.block_node.publish.samples import chain_of, spoilt

SOON = ConsensusLimits(cool_down_s=0.02, ban_s=0.05)
PACKAGE = "org.hiero.block.api"


def outgoing(first: int, last: int) -> list[OutgoingBlock]:
    return [OutgoingBlock.from_items(block.items) for block in chain_of(last + 1)[first:]]


async def read_all(client: GrpcBlockClient, start: int | None, end: int) -> list[tuple[int, tuple[bytes, ...]]]:
    return [(number, tuple(items)) async for number, items in client.subscribe(start, end)]


async def test_a_chain_is_published_and_read_back(tmp_path: Path) -> None:
    async with block_door(tmp_path) as door, connect_grpc(f"127.0.0.1:{door.port}") as client:
        done = await client.publish(outgoing(0, 5))
        assert (done.acknowledged, done.streams) == (5, 1)
        assert door.world.stored() == [0, 1, 2, 3, 4, 5]
        expected = [(block.number, tuple(block.items)) for block in chain_of(6)]
        assert await read_all(client, 0, 5) == expected
        assert await read_all(client, 3, 4) == expected[3:5]


async def test_a_publisher_goes_on_where_the_node_is(tmp_path: Path) -> None:
    async with block_door(tmp_path) as door, connect_grpc(f"127.0.0.1:{door.port}") as client:
        await client.publish(outgoing(0, 2))
        done = await client.publish(outgoing(0, 7))
        assert (done.acknowledged, done.streams) == (7, 1)
        assert door.world.publishing.statistics().in_flight.begun == 8


@pytest.mark.parametrize("last", [1, 8], ids=["old", "new"])
async def test_blocks_that_the_node_has_are_durable(tmp_path: Path, last: int) -> None:
    """Old ones end the stream with DUPLICATE_BLOCK, whose number is an acknowledgement; new ones are skipped."""
    async with block_door(tmp_path) as door, connect_grpc(f"127.0.0.1:{door.port}") as client:
        await client.publish(outgoing(0, 9))
        done = await client.publish(outgoing(0, last))
        assert (done.acknowledged, done.streams) == (9, 1)


async def test_a_block_that_is_refused_is_an_error_with_the_reason(tmp_path: Path) -> None:
    good, bad = chain_of(2)
    blocks = [OutgoingBlock.from_items(good.items), OutgoingBlock.from_items(spoilt(bad))]
    async with block_door(tmp_path) as door, connect_grpc(f"127.0.0.1:{door.port}") as client:
        with pytest.raises(BlockRefused) as caught:
            await client.publish(blocks, limits=SOON)
        assert (caught.value.number, caught.value.status) == (1, PublishStatus.BAD_BLOCK_PROOF)
        assert "no reason" not in str(caught.value)
        await wait_until(lambda: door.world.stored() == [0])


async def test_a_node_that_needs_earlier_blocks_is_given_up(tmp_path: Path) -> None:
    async with block_door(tmp_path) as door, connect_grpc(f"127.0.0.1:{door.port}") as client:
        with pytest.raises(PublishGaveUp, match="wants a block before all that can be sent"):
            await client.publish(outgoing(3, 4), give_up_s=0.3, limits=SOON)
        await wait_until(lambda: not door.world.publishing.machine.publishers)


async def test_a_subscription_follows_new_blocks_and_holds_the_node_back(tmp_path: Path) -> None:
    async with block_door(tmp_path) as door, connect_grpc(f"127.0.0.1:{door.port}") as client:
        await client.publish(outgoing(0, 1))
        blocks = client.subscribe(1)
        assert (await anext(blocks))[0] == 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.publish, outgoing(2, 5))
            assert [(await anext(blocks))[0] for _ in range(4)] == [2, 3, 4, 5]


async def test_a_program_that_leaves_the_loop_ends_its_call(tmp_path: Path) -> None:
    async with block_door(tmp_path) as door, connect_grpc(f"127.0.0.1:{door.port}") as client:
        await client.publish(outgoing(0, 3))
        blocks = client.subscribe(0)
        async for number, _ in blocks:
            if number == 1:
                break
        blocks.close()
        await wait_until(lambda: door.services.statistics().subscribe.ended == {"LEFT": 1})
        assert [each async for each in blocks] == []


async def test_what_cannot_be_is_refused_at_once() -> None:
    for blocks in ([], [*outgoing(0, 1), *outgoing(3, 3)], [*outgoing(0, 0), *outgoing(0, 0)]):
        async with connect_grpc("127.0.0.1:1") as client:
            with pytest.raises(InvalidArgument, match="follow each other"):
                await client.publish(blocks)
    for address, token in (("nowhere", None), ("192.0.2.1:40840", Token("sntok_" + "0" * 64))):
        with pytest.raises(InvalidArgument):
            async with connect_grpc(address, token=token):
                pass


@pytest.mark.parametrize("address", ["127.0.0.1:1", "\u0660:1"])
async def test_nobody_there_is_unreachable(address: str) -> None:
    """Also where nobody can be: trio refuses the second name."""
    async with connect_grpc(address) as client:
        with pytest.raises(NodeUnreachable, match=f"{address} is unreachable"):
            await client.publish(outgoing(0, 0), give_up_s=0.1)


async def test_an_item_that_is_read_in_pieces_is_put_together() -> None:
    items = list(chain_of(1, BlockShape(record_bytes=3 * CHUNK_BYTES))[0].items)
    found = [
        item
        for request in requests_of(OutgoingBlock.from_items(items))
        for item in read_message("PublishStreamRequest", request)["block_items"]["block_items"]
    ]
    assert found == items


# Against a server of the official library.

Answers = Callable[[Iterator[WireMessage]], Iterator[WireMessage]]


class Script:
    """A block node on grpcio. streams: how each stream of a publisher is answered. subscriptions: the same for readers.

    heard: the requests of each stream, but their items."""

    def __init__(self, streams: Sequence[Answers] = (), subscriptions: Sequence[Sequence[WireMessage]] = ()) -> None:
        self._streams = list(streams)
        self._subscriptions = list(subscriptions)
        self.status: WireMessage | None = {"next_expected_block": NO_BLOCK}
        self.publishes = True
        self.heard: list[list[WireMessage]] = []
        self.asked: list[tuple[int, int]] = []

    def publish(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        heard: list[WireMessage] = []
        self.heard.append(heard)

        def read() -> Iterator[WireMessage]:
            for request in requests:
                heard.append(read_message("PublishStreamRequest", request))
                yield heard[-1]

        for answer in self._streams.pop(0)(read()):
            yield write_message("PublishStreamResponse", answer)

    def subscribe(self, request: bytes, context: Any) -> Iterator[bytes]:
        asked = read_message("SubscribeStreamRequest", request)
        self.asked.append((asked.get("start_block_number", 0), asked.get("end_block_number", 0)))
        for answer in self._subscriptions.pop(0):
            yield write_message("SubscribeStreamResponse", answer)


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[GrpcBlockClient]:
    grpc = pytest.importorskip("grpc", reason="grpcio comes with the extra spark-connect")
    running = grpc.server(ThreadPoolExecutor(4))
    services = {
        "BlockStreamSubscribeService": {"subscribeBlockStream": grpc.unary_stream_rpc_method_handler(script.subscribe)},
    }
    if script.publishes:
        publish = grpc.stream_stream_rpc_method_handler(script.publish)
        services["BlockStreamPublishService"] = {"publishBlockStream": publish}
    if script.status is not None:
        status = grpc.unary_unary_rpc_method_handler(
            lambda request, context: write_message("ServerStatusResponse", script.status or {})
        )
        services["BlockNodeService"] = {"serverStatus": status}
    handlers = [grpc.method_handlers_generic_handler(f"{PACKAGE}.{name}", each) for name, each in services.items()]
    running.add_generic_rpc_handlers(handlers)
    port = running.add_insecure_port("127.0.0.1:0")
    running.start()
    try:
        with trio.fail_after(30):
            async with connect_grpc(f"127.0.0.1:{port}") as client:
                yield client
    finally:
        await trio.to_thread.run_sync(running.stop(None).wait)


def acknowledge(number: int) -> WireMessage:
    return {"acknowledgement": {"block_number": number}}


def headers(requests: Iterator[WireMessage]) -> Iterator[int]:
    """The numbers of the blocks that begin."""
    numbers = {bytes(block.items[0]): block.number for block in chain_of(6)}
    for request in requests:
        for item in request.get("block_items", {}).get("block_items", []):
            if bytes(item) in numbers:
                yield numbers[bytes(item)]


def read_until(requests: Iterator[WireMessage], kind: str, number: int) -> None:
    for request in requests:
        if request.get(kind, {}).get("block_number", 0) == number and kind in request:
            return


def all_taken(requests: Iterator[WireMessage]) -> Iterator[WireMessage]:
    for request in requests:
        if "end_of_block" in request:
            yield acknowledge(request["end_of_block"].get("block_number", 0))
        elif "end_stream" in request:
            return


async def test_every_stream_ends_with_a_reset_that_says_what_is_durable() -> None:
    script = Script([all_taken])
    async with scripted(script) as client:
        assert (await client.publish(outgoing(1, 3))).acknowledged == 3
    code = int(PublisherEndCode.RESET)
    end = {"end_code": code, "earliest_block_number": 1, "latest_block_number": 3}
    assert script.heard[0][-1] == {"end_stream": end}


async def test_a_server_without_status_gets_the_newest_block_first() -> None:
    def answer(requests: Iterator[WireMessage]) -> Iterator[WireMessage]:
        found = headers(requests)
        assert next(found) == 3
        yield {"node_behind_publisher": {"block_number": 0}}
        while next(found) != 1:
            pass
        yield from all_taken(requests)

    script = Script([answer])
    script.status = None
    async with scripted(script) as client:
        assert (await client.publish(outgoing(0, 3))).acknowledged == 3
    ends = [each["end_of_block"].get("block_number", 0) for each in script.heard[0] if "end_of_block" in each]
    assert ends[-3:] == [1, 2, 3]


async def test_a_resend_a_skip_and_an_acknowledgement_ahead_move_the_stream() -> None:
    def answer(requests: Iterator[WireMessage]) -> Iterator[WireMessage]:
        read_until(requests, "end_of_block", 1)
        yield {"resend_block": {"block_number": 0}}
        found = headers(requests)
        while next(found) != 0:
            pass
        yield acknowledge(3)
        # Block 4 or 5 begins next, however much of block 0 was under way.
        while next(found) < 4:
            pass
        yield acknowledge(5)

    script = Script([answer])
    async with scripted(script) as client:
        done = await client.publish(outgoing(0, 5))
        assert (done.acknowledged, done.streams) == (5, 1)


@pytest.mark.parametrize(
    "end",
    [{"status": 1, "block_number": 1}, {"status": 4, "block_number": 1, "proximate_block_number": 2}, None],
    ids=["the node stops", "time-out", "the call is lost"],
)
async def test_another_stream_goes_on_behind_what_is_durable(end: WireMessage | None) -> None:
    def answer(requests: Iterator[WireMessage]) -> Iterator[WireMessage]:
        read_until(requests, "end_of_block", 1)
        script.status = {"next_expected_block": 2}
        yield acknowledge(1)
        if end is None:
            raise ConnectionError("the server fails")
        yield {"end_stream": end}

    script = Script([answer, all_taken])
    async with scripted(script) as client:
        done = await client.publish(outgoing(0, 3), limits=SOON)
        assert (done.acknowledged, done.streams) == (3, 2)
    ends = [each["end_of_block"].get("block_number", 0) for each in script.heard[1] if "end_of_block" in each]
    assert ends == [2, 3]


async def test_a_server_that_cannot_publish_is_an_error_at_once() -> None:
    script = Script()
    script.publishes = False
    async with scripted(script) as client:
        with pytest.raises(NotSupported, match="UNIMPLEMENTED"):
            await client.publish(outgoing(0, 0))


def parts_of(number: int) -> list[WireMessage]:
    items = list(chain_of(number + 1)[number].items)
    return [
        {"block_items": {"block_items": items[:3]}},
        {"block_items": {"block_items": items[3:]}},
        {"end_of_block": {"block_number": number}},
    ]


async def test_a_subscription_goes_on_after_a_node_that_stops() -> None:
    """SUCCESS before the last block says only that the node stops. A block that had begun comes again, whole."""
    half = parts_of(2)[:1]
    script = Script([], [[*parts_of(1), *half, {"status": 1}], [*parts_of(2), *parts_of(3), {"status": 1}]])
    async with scripted(script) as client:
        assert await read_all(client, 1, 3) == [(each, tuple(chain_of(4)[each].items)) for each in (1, 2, 3)]
    assert script.asked == [(1, 3), (2, 3)]


async def test_a_subscription_without_bounds_asks_for_all_that_comes() -> None:
    script = Script([], [parts_of(2)])
    async with scripted(script) as client:
        assert (await anext(client.subscribe()))[0] == 2
    assert script.asked == [(NO_BLOCK, NO_BLOCK)]


async def test_a_subscription_from_now_on_has_its_first_block_also_over_a_lost_connection() -> None:
    """Claim: what has begun with no number asked for comes again, whole. Method: the node ends within the first block,
    and then sends that block to whoever asks for it."""
    script = Script([], [[*parts_of(2)[:1], {"status": 1}], [*parts_of(2), {"status": 1}]])
    async with scripted(script) as client:
        assert await anext(client.subscribe()) == (2, list(chain_of(3)[2].items))
    assert script.asked == [(NO_BLOCK, NO_BLOCK), (2, NO_BLOCK)]


async def test_a_first_block_that_begins_with_no_header_has_the_number_of_its_end() -> None:
    item = make_item(ItemKind.EVENT_HEADER, b"")
    async with scripted(Script([], [[{"block_items": {"block_items": [item]}}, *parts_of(2)[2:]]])) as client:
        assert await anext(client.subscribe()) == (2, [item])


async def test_a_node_that_lacks_the_blocks_refuses_the_subscription() -> None:
    async with scripted(Script([], [[*parts_of(0), {"status": 6}]])) as client:
        blocks = client.subscribe(0, 3)
        assert (await anext(blocks))[0] == 0
        with pytest.raises(SubscriptionRefused) as caught:
            await anext(blocks)
        assert caught.value.status is SubscribeStatus.NOT_AVAILABLE


@pytest.mark.parametrize(
    "parts",
    [parts_of(1), parts_of(0)[2:], [{"block_items": {"block_items": [b"x"]}}, *parts_of(2)[2:]]],
    ids=["another block", "no items", "another number"],
)
async def test_a_damaged_answer_is_an_error(parts: list[WireMessage]) -> None:
    async with scripted(Script([], [parts])) as client:
        with pytest.raises(DamagedAnswer, match="had not come"):
            await anext(client.subscribe(0, 3))
