"""Goal: a node that lies about the size of a block fills no memory of those who read from it over gRPC.

Method: the servers are of the official library, which sends whole messages, and a door of ours that stops within one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import pytest
import trio
from h2.errors import ErrorCodes

from block_node.client.errors import BlockTooLarge, DamagedAnswer
from block_node.grpc.client.channel import GrpcChannel
from block_node.grpc.client.client import GrpcSubscription
from block_node.grpc.client.source import SUBSCRIBE, GrpcSource
from block_node.grpc.messages import WireMessage
from ockam.actors.node import Node
from tests.block_node.grpc.client.test_client import Script, scripted
from tests.block_node.grpc.client.test_source import Listener, OfficialServer, fetched, official, parts_of
from tests.block_node.grpc.http2.door import EchoHandler, opened_door, wait_until
from tests.block_node.publish.samples import chain_of

HEADER: WireMessage = {"block_items": {"block_items": [bytes(chain_of(1)[0].items[0])]}}
SMALL_ITEMS: WireMessage = {"block_items": {"block_items": [b"\x1a\x00"] * 20_000}}
ITEM_PREFIX = b"\x12\x80\x80\x80\x32\x0a\xfb\xff\xff\x31"
"""What precedes an item that makes a message of 104,857,605 bytes."""


class Dripping(EchoHandler):
    """Begins a message of 100 MB, and sends of it what the test lets it."""

    def take(self, message: bytes) -> None:
        self.messages.append(message)
        self.call.begin_message(104_857_605, ITEM_PREFIX)

    def half_closed(self) -> None:
        pass


async def test_backfill_counts_the_bytes_of_a_message_that_is_not_complete() -> None:
    """The listener knows of each part as it comes, and when it has enough, the rest does not come."""
    async with opened_door() as door, trio.open_nursery() as nursery:
        door.routes = {SUBSCRIBE: door._route(Dripping)}
        node = Node(nursery)
        source = GrpcSource(node, GrpcChannel(node, door.address), silence_s_max=20)
        fetch = source.fetch(0, 0, listener := Listener())
        await wait_until(lambda: bool(door.handlers) and bool(door.handlers[-1].messages))
        dripping = door.last(Dripping)
        for sent_bytes in (100_000, 250_000, 2_000_000):
            dripping.call.send_part(bytes(sent_bytes - listener.size_bytes))
            await wait_until(lambda wanted=sent_bytes: listener.size_bytes >= wanted)  # type: ignore[misc]
        assert listener.size_bytes < 2_000_100
        assert listener.reason is None
        fetch.cancel()
        await wait_until(lambda: bool(dripping.reasons))
        nursery.cancel_scope.cancel()


async def test_a_call_that_its_server_resets_within_a_message_leaves_nothing_in_the_budget() -> None:
    """What had come would stay in memory and in the budget until the connection ends, and other messages would wait."""
    async with opened_door() as door, trio.open_nursery() as nursery:
        door.routes = {SUBSCRIBE: door._route(Dripping)}
        node = Node(nursery)
        channel = GrpcChannel(node, door.address)
        GrpcSource(node, channel, silence_s_max=20).fetch(0, 0, listener := Listener())
        await wait_until(lambda: bool(door.handlers) and bool(door.handlers[-1].messages))
        door.last(Dripping).call.send_part(bytes(200_000))
        await wait_until(lambda: listener.size_bytes >= 200_000)
        asking, [answering] = channel._connection, door.connections
        assert asking is not None
        budget = asking._machine._budget
        assert budget.held_bytes >= 200_000
        [call] = answering._machine.calls.values()
        answering._machine.reset(call, ErrorCodes.CANCEL, trio.current_time())
        answering._note_work()
        await wait_until(lambda: listener.reason is not None)
        assert budget.held_bytes == 0
        nursery.cancel_scope.cancel()


async def test_backfill_counts_each_byte_once_also_compressed() -> None:
    """A large set comes in many reads, and a compressed one is counted by its size when it is decompressed."""
    block = chain_of(1)[0]
    large: WireMessage = {"block_items": {"block_items": [b"\x1a\xa0\xc2\x1e" + bytes(500_000)]}}
    async with official(OfficialServer([*parts_of(block, ends=False), large, *parts_of(block)[1:]])) as source:
        listener = await fetched(source, 0, 0)
    items = [*block.items, b"\x1a\xa0\xc2\x1e" + bytes(500_000)]
    assert listener.blocks == [(0, items)]
    prefixes = listener.size_bytes - sum(map(len, items)) - 64 * len(items)
    assert 0 < prefixes < 10 * len(items)


async def test_a_fetch_that_is_cancelled_within_a_message_of_small_items_takes_no_more_of_it() -> None:
    class Enough(Listener):
        def grew(self, size_bytes: int) -> None:
            super().grew(size_bytes)
            if self.size_bytes > 1_000_000:
                fetch.cancel()

    async with official(OfficialServer([HEADER, SMALL_ITEMS])) as source:
        fetch = source.fetch(0, 0, listener := Enough())
        await wait_until(lambda: fetch._listener is None)
    # The message has 80,000 bytes, and 20,000 items are 1,280,000 bytes of memory beside them.
    assert 1_000_000 < listener.size_bytes < 2_000_000
    assert listener.reason is None


@pytest.mark.parametrize(("part", "bytes_max"), [(SMALL_ITEMS, 5_000_000), (HEADER, 20_000)], ids=["small", "header"])
async def test_a_subscriber_of_a_block_without_an_end_is_told_the_limit(part: WireMessage, bytes_max: int) -> None:
    script = Script([], [repeat(part)])  # type: ignore[list-item]
    async with scripted(script) as client:
        blocks = client.subscribe(0, 3, block_bytes_max=bytes_max)
        with pytest.raises(BlockTooLarge, match=f"more than {bytes_max} bytes.*raise block_bytes_max") as raised:
            await anext(blocks)
        assert raised.value.bytes_max == bytes_max
        assert not blocks._items


async def test_a_subscriber_counts_each_block_for_itself_and_knows_of_an_unfinished_message() -> None:
    block = chain_of(1)[0]
    most = sum(map(len, block.items)) + 80 * len(block.items)
    script = Script([], [[*parts_of(block), *parts_of(chain_of(2)[1]), *parts_of(chain_of(3)[2])]])
    async with scripted(script) as client:
        assert [number async for number, _ in client.subscribe(0, 2, block_bytes_max=2 * most)] == [0, 1, 2]
    async with opened_door() as door, trio.open_nursery() as nursery:
        door.routes = {SUBSCRIBE: door._route(Dripping)}
        node = Node(nursery)
        blocks = GrpcSubscription(GrpcChannel(node, door.address), 0, 1, 1_000_000)

        async def read() -> None:
            with pytest.raises(BlockTooLarge):
                await anext(blocks)
            nursery.cancel_scope.cancel()

        nursery.start_soon(read)
        await wait_until(lambda: bool(door.handlers) and bool(door.handlers[-1].messages))
        while not door.handlers[-1].reasons:
            door.handlers[-1].call.send_part(bytes(100_000))
            await trio.sleep(0.01)


async def test_a_large_message_with_something_beside_its_items_is_damaged() -> None:
    """It would be read in one step, and its items would not be counted."""

    def answers() -> Iterator[WireMessage]:
        yield {**SMALL_ITEMS, "end_of_block": {"block_number": 0}}

    async with scripted(Script([], [answers()])) as client:  # type: ignore[list-item]
        with pytest.raises(DamagedAnswer, match="something beside a set of items"):
            await anext(client.subscribe(0, 3))
