"""Goal: the client publishes, subscribes, gets and asks over real connections, and goes on where a node or line fails.

Method: whole servers with real sockets and files, and generated chains that they verify.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

from block_node.blocks.files import write_block
from block_node.client import (
    BlockArrived,
    BlockClient,
    BlockNotAvailable,
    BlockRefused,
    BlockWithdrawn,
    ItemsArrived,
    OutgoingBlock,
    PublishGaveUp,
    PublishSettings,
    SubscriptionRefused,
    connect,
)
from block_node.protocol import PUBLISH, OpenSession
from block_node.protocol_reading import BlockRange, SubscribeStatus
from ockam.identity.rules.rights import ALL_RIGHTS, Right
from stream_client import AccessDenied, NodeUnreachable, Reconnect
from stream_client import connect as connect_streams
from stream_storage.sqlite.database import FILE_NAME
from tests.block_node.backfill.served_blocks import damage_blocks
from tests.block_node.client.chains import chain, fetch, outgoing
from tests.ockam.identity.rules.guarded_node import guarded, may
from tests.support.blocks import join_block
from tests.support.served import PATIENCE_S, Served, served, wait_until

QUICK = Reconnect(delay_s=0.01, delay_s_max=0.05)
SETTINGS = PublishSettings(reconnect=QUICK)


@asynccontextmanager
async def serving(path: Path, **settings: Any) -> AsyncIterator[tuple[Served, BlockClient]]:
    async with served(path, log_level="error", **settings) as running, connect(running.address) as client:
        yield running, client


async def publish(client: BlockClient, *numbers: int, settings: PublishSettings = SETTINGS) -> None:
    async with client.publisher(settings) as publisher:
        for number in numbers:
            await publisher.send(outgoing(chain(20)[number]))


async def test_what_is_published_is_durable_and_comes_back(tmp_path: Path) -> None:
    blocks = chain(20)
    async with serving(tmp_path) as (_, client):
        async with client.publisher(SETTINGS) as publisher:
            for block in blocks:
                await publisher.send(outgoing(block))
            await publisher.flush()
            assert (publisher.acknowledged, publisher.kept, publisher.sessions) == (19, 0, 1)
        status = await client.status(detail=True)
        assert (status.first_available, status.last_available, status.next_expected) == (0, 19, 20)
        assert status.detail is not None
        assert status.detail.available == status.detail.stored == [BlockRange(0, 19)]
        assert {plugin.plugin for plugin in status.detail.plugins} >= {"persistence", "verification", "publish"}
        assert await client.get(7) == (7, blocks[7].root, join_block(blocks[7].items))
        assert (await client.get())[0] == 19
        async with client.subscribe(5, 9) as received:
            got = [block async for block in received]
        assert [(each.number, each.root, tuple(each.items)) for each in got] == [
            (block.number, block.root, block.items) for block in blocks[5:10]
        ]
        with pytest.raises(BlockNotAvailable, match="block 20 is not available"):
            await client.get(20)
    async with serving(tmp_path) as (_, client):
        assert (await client.get(7))[1] == blocks[7].root
        await publish(client, *range(20))
        assert (await client.status()).next_expected == 20


def test_a_program_that_runs_a_node_takes_blocks_from_its_first_start(tmp_path: Path) -> None:
    """Claim: the tables of blocks are in a new database, though such a program loads the block node late. Method: an
    interpreter in which nothing else has loaded it."""
    program = (
        "import sys, trio\n"
        "from stream_node import Config, Server\n"
        "async def run():\n"
        "    server = Server(Config(data_dir=sys.argv[1], listen='127.0.0.1:0'))\n"
        "    async with trio.open_nursery() as nursery:\n"
        "        await nursery.start(server.serve)\n"
        "        server.stop()\n"
        "trio.run(run)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, check=True)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as database:
        made = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    assert made >= {"block_chains", "block_index", "block_evicted", "block_damaged", "block_staged", "backfill_targets"}


def test_a_node_in_memory_takes_blocks() -> None:
    """As above: the first node of `stream_node.testing` in an interpreter."""
    program = (
        "import trio\n"
        "from block_node.client import connect\n"
        "from stream_node.testing import memory_node\n"
        "from tests.block_node.client.chains import chain, outgoing\n"
        "async def run():\n"
        "    async with memory_node() as node, connect(node.address) as client, client.publisher() as publisher:\n"
        "        await publisher.send(outgoing(chain(1)[0]))\n"
        f"        with trio.fail_after({PATIENCE_S}):\n"
        "            await publisher.flush()\n"
        "trio.run(run)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[3], capture_output=True, check=True)


async def test_a_publisher_that_loses_its_right_is_in_doubt(tmp_path: Path) -> None:
    """Claim: a refusal after the first session says nothing about the blocks that were sent. Method: rules that change
    while a publisher works; then a publisher that never had the right."""
    async with guarded(tmp_path, may(ALL_RIGHTS)) as node, connect(node.running.address) as client:

        async def refuse() -> None:
            async with client.publisher(SETTINGS) as publisher:
                await publisher.send(outgoing(chain(20)[0]))
                await publisher.flush()
                node.allow(may(Right.BLOCK_READ))
                await publisher.send(outgoing(chain(20)[1]))
                await publisher.flush()

        with trio.fail_after(PATIENCE_S):
            for in_doubt in (True, False):
                with pytest.raises(AccessDenied, match="block-publish") as caught:
                    await refuse()
                assert caught.value.in_doubt is in_doubt


async def test_an_empty_node(tmp_path: Path) -> None:
    async with serving(tmp_path) as (running, client):
        status = await client.status()
        assert (status.first_available, status.last_available, status.next_expected) == (None, None, 0)
        for number, said in ((None, "no block is stored"), (3, "block 3 is not available")):
            with pytest.raises(BlockNotAvailable, match=f"{said} at {running.address} .*: the node has no blocks"):
                await client.get(number)
        assert running.statistics().services.streams == 0, "no trace before the first block"


async def test_a_block_that_is_not_there_has_a_cause(tmp_path: Path) -> None:
    """The node begins with block 1, which retention deletes; the bytes of block 4 are taken."""

    async def why(number: int) -> str:
        with pytest.raises(BlockNotAvailable) as caught:
            await client.get(number)
        marks.append((caught.value.fault, caught.value.retriable))
        return str(caught.value)

    marks: list[tuple[str, bool]] = []
    settings = {"block_first": 1, "block_retention_blocks": 6, "block_scan_bytes": 1}
    async with serving(tmp_path, **settings) as (_, client):
        await publish(client, 1)
        assert "(NOT_AVAILABLE): the blocks of the node begin with block 1; " in await why(0)
        await publish(client, *range(2, 8))
        with trio.fail_after(PATIENCE_S):
            while (await client.status()).first_available != 2:
                await trio.sleep(0.01)
        damage_blocks(tmp_path, 4)
        assert "(NOT_FOUND): its stored bytes are damaged or gone" in await why(4)
        assert marks[-1] == ("node", True), "it can be mended"
        assert "(NOT_AVAILABLE): it is missing between blocks 3 and 5; " in await why(4)
        assert "(NOT_AVAILABLE): the node has deleted it by its retention" in await why(1)
        assert "(NOT_AVAILABLE): it has not come yet, the latest is block 7; `block subscribe --from 9`" in await why(9)
        can_come = [can_pass for _, can_pass in marks]
        assert can_come == [False, True, True, False, True], "before the chain, damaged, missing, deleted, to come"


async def test_a_live_subscriber_gets_each_block_once_over_a_restart(tmp_path: Path) -> None:
    """Its connection breaks, the node is another one meanwhile; each block comes whole and once."""
    numbers: list[int] = []
    listen = ""
    async with trio.open_nursery() as nursery:
        async with serving(tmp_path) as (running, client):
            listen = running.address

            async def follow() -> None:
                async with (
                    connect(listen, reconnect=QUICK) as its_client,
                    its_client.subscribe(0, 11, reconnect=QUICK) as received,
                ):
                    async for block in received:
                        assert tuple(block.items) == chain(20)[block.number].items
                        numbers.append(block.number)

            nursery.start_soon(follow)
            await publish(client, *range(6))
            await wait_until(lambda: len(numbers) == 6)
        async with served_at(tmp_path, listen):
            async with connect(listen) as second:
                await publish(second, *range(4, 12))
            await wait_until(lambda: len(numbers) == 12)
    assert numbers == list(range(12))


async def test_a_live_subscriber_that_found_the_node_empty_gets_all_that_came_since(tmp_path: Path) -> None:
    """A publisher without blocks comes and goes, which ends the subscription; the blocks come before it is back."""
    numbers: list[int] = []
    away = Reconnect(delay_s=1.0, delay_s_max=1.0)
    async with serving(tmp_path) as (running, client), trio.open_nursery() as nursery:

        async def follow() -> None:
            async with client.subscribe(reconnect=away) as received:
                async for block in received:
                    numbers.append(block.number)
                    if block.number == 3:
                        return

        nursery.start_soon(follow)
        await wait_until(lambda: _sessions(running) == 1)
        async with connect_streams(running.address) as connection:
            conversation = connection.converse("block_publish")
            await conversation.send(PUBLISH.encode_request(OpenSession(b"")))
            await conversation.receive()
        await wait_until(lambda: _sessions(running) == 0)
        await publish(client, 0, 1, 2)
        await wait_until(lambda: len(numbers) == 3)
        await publish(client, 3)
    assert numbers == [0, 1, 2, 3]


@asynccontextmanager
async def served_at(path: Path, listen: str) -> AsyncIterator[None]:
    from stream_node.node.config import Config
    from stream_node.node.server import Server

    server = Server(Config(data_dir=str(path), listen=listen, log_level="error"))
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        yield
        server.stop()


async def test_a_publisher_goes_on_at_another_node(tmp_path: Path) -> None:
    """The first one stops with blocks on their way; the second one has none of them and gets all that is kept."""
    blocks = chain(20)
    async with serving(tmp_path / "b") as (second, _), trio.open_nursery() as nursery:
        first_has_some, first_is_gone = trio.Event(), trio.Event()
        async with serving(tmp_path / "a") as (first, _):

            async def run() -> None:
                nodes = [first.address, second.address]
                async with connect(nodes) as client, client.publisher(SETTINGS) as publisher:
                    for block in blocks[:3]:
                        await publisher.send(outgoing(block))
                    await publisher.flush()
                    async with connect(second.address) as other:
                        await publish(other, 0, 1, 2)
                    first_has_some.set()
                    await first_is_gone.wait()
                    for block in blocks[3:]:
                        await publisher.send(outgoing(block))
                    await publisher.flush()
                    assert (publisher.acknowledged, publisher.sessions) == (19, 2)

            nursery.start_soon(run)
            await first_has_some.wait()
        first_is_gone.set()
        with trio.fail_after(30):
            await wait_until(lambda: _last(second) == 19)


async def test_two_publishers_and_one_dies_in_the_middle_of_a_block(tmp_path: Path) -> None:
    """The other one was told to skip that block, and is asked for it when the first one is gone."""
    blocks = chain(20)
    async with serving(tmp_path) as (running, client):
        half_way = trio.Event()

        def halting() -> Any:
            chunks = outgoing(blocks[3]).chunks()
            first, *_ = chunks
            yield first._replace(items=first.items[:3])
            half_way.set()

        async def dying(nursery: trio.Nursery) -> None:
            async with connect(running.address) as blocks_client, blocks_client.publisher(SETTINGS) as publisher:
                for block in blocks[:3]:
                    await publisher.send(outgoing(block))
                await publisher.flush()
                await publisher.send(OutgoingBlock(3, 100, _then_hang(halting)))
                await half_way.wait()
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(dying, nursery)
            await half_way.wait()
        await publish(client, *range(20))
        async with client.subscribe(0, 19) as received:
            got = [block.number async for block in received]
        assert got == list(range(20))


def _then_hang(halting: Any) -> Any:
    def chunks() -> Any:
        yield from halting()

    return chunks


async def publish_one(client: BlockClient, block: OutgoingBlock) -> None:
    async with client.publisher(SETTINGS) as publisher:
        await publisher.send(block)


async def test_a_bad_block_is_refused_and_said(tmp_path: Path) -> None:
    """It continues another chain. What was acknowledged before stays, and the right block is taken."""
    async with serving(tmp_path) as (_, client):
        await publish(client, 0)
        with pytest.raises(BlockRefused, match=r"block 1 was refused \(BAD_BLOCK_PROOF\)"):
            await publish_one(client, outgoing(chain(20, seed=1)[1]))
        assert (await client.status()).last_available == 0
        await publish(client, 1, 2)
        assert (await client.status()).last_available == 2


async def test_a_publisher_without_the_blocks_before_gives_up(tmp_path: Path) -> None:
    settings = PublishSettings(reconnect=QUICK, give_up_s=0.3)
    async with serving(tmp_path) as (_, client):
        with pytest.raises(PublishGaveUp, match="needs block 0, and lacks blocks before"):
            await publish(client, 5, settings=settings)
        await publish(client, 0)


async def test_a_publisher_gives_up_in_the_time_that_it_was_given(tmp_path: Path) -> None:
    """A node that answers nothing, as it keeps no blocks, does not hold the publisher for the wait of one answer."""
    settings = PublishSettings(reconnect=QUICK, give_up_s=0.3)
    async with served(tmp_path, block_node=False) as running, connect(running.address) as client:
        with trio.fail_after(settings.answer_s_max / 2):
            with pytest.raises(PublishGaveUp, match=r"for 0.3 s: .* has not opened a session"):
                await publish(client, 0, settings=settings)


async def test_no_node_at_all(tmp_path: Path) -> None:
    async with connect("127.0.0.1:1") as client:
        with pytest.raises(NodeUnreachable):
            await client.status()
        with pytest.raises(NodeUnreachable):
            await publish(client, 0, settings=PublishSettings(reconnect=QUICK, give_up_s=0.1))
        with pytest.raises(NodeUnreachable):
            async with client.subscribe(
                0, 1, reconnect=Reconnect(delay_s=0.01, delay_s_max=0.05, give_up_s=0.1)
            ) as received:
                await anext(received)


async def test_a_block_is_fetched_from_the_first_node_that_has_it(tmp_path: Path) -> None:
    async with serving(tmp_path / "a") as (empty, _), serving(tmp_path / "b") as (full, client):
        await publish(client, 0)
        for nodes in ([empty.address, full.address], ["127.0.0.1:1", full.address]):
            assert (await fetch(nodes, 0))[1] == chain(20)[0].root
        with pytest.raises(BlockNotAvailable, match="block 7 is not available"):
            await fetch([empty.address, full.address, "127.0.0.1:1"], 7)
        with pytest.raises(NodeUnreachable):
            await fetch("127.0.0.1:1", 0)


async def test_a_subscription_that_no_node_can_serve(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, client):
        await publish(client, 0)
        async with client.subscribe(5, 4) as received:
            with pytest.raises(SubscriptionRefused) as refused:
                await anext(received)
        assert (refused.value.status, refused.value.retriable) == (SubscribeStatus.INVALID_END_BLOCK, False)
        async with client.subscribe(100_000, None, wait=False) as received:
            with pytest.raises(SubscriptionRefused, match="NOT_AVAILABLE") as refused:
                await anext(received)
        assert refused.value.retriable


async def test_a_subscriber_may_leave_at_any_block(tmp_path: Path) -> None:
    async with serving(tmp_path) as (running, client):
        await publish(client, *range(10))
        async with client.subscribe(0, None) as received:
            assert (await anext(received)).number == 0
        await wait_until(lambda: _sessions(running) == 0)


def _last(running: Served) -> int | None:
    blocks = running.statistics().services.blocks
    assert blocks is not None
    return blocks.node.store.last_block


def _sessions(running: Served) -> int:
    blocks = running.statistics().services.blocks
    assert blocks is not None
    return blocks.readers.subscribe.sessions


async def test_a_file_of_a_large_block_goes_in_pieces(tmp_path: Path) -> None:
    """An item of some megabytes in a compressed file, published, subscribed to and fetched."""
    from block_node.blocks.generator import BlockShape, ChainGenerator
    from tests.block_node.client.chains import keys

    block = ChainGenerator(keys(), shape=BlockShape(item_count=6, item_bytes=3_000_000)).next_block()
    path = tmp_path / "0.blk.zstd"
    write_block(path, block.items)
    async with serving(tmp_path / "data") as (_, client):
        async with client.publisher(SETTINGS) as publisher:
            await publisher.send(OutgoingBlock.from_file(path))
        number, root, data = await client.get()
        assert (number, root, data) == (0, block.root, join_block(block.items))
        async with client.subscribe(0, 0) as received:
            assert [tuple(each.items) async for each in received] == [block.items]
        async with client.subscribe_events(0, 0) as events:
            kinds = [type(event) async for event in events]
        assert set(kinds) == {ItemsArrived, BlockArrived}
        assert kinds.count(ItemsArrived) >= 6


async def test_an_early_subscriber_sees_items_before_the_block_is_verified(tmp_path: Path) -> None:
    blocks = chain(20)
    async with serving(tmp_path) as (running, client), client.subscribe_events(None, None, early=True) as events:
        await wait_until(lambda: _sessions(running) == 1)
        bad = OutgoingBlock.from_items(blocks[0].items[:-1])
        with pytest.raises(BlockRefused):
            await publish_one(client, bad)
        await publish(client, 0)
        seen: list[type] = []
        verified: list[bool] = []
        while BlockArrived not in seen:
            event = await anext(events)
            seen.append(type(event))
            if isinstance(event, ItemsArrived):
                verified.append(event.verified)
        assert BlockWithdrawn in seen
        assert False in verified


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_same_client_under_either_event_loop(tmp_path: Path, backend: str) -> None:
    """The server is a child process, so that the client has an event loop of its own kind."""
    from stream_node.node.process import NodeProcess

    async def main(address: str) -> list[int]:
        async with connect(address) as client:
            await publish(client, 0, 1, 2)
            async with client.subscribe(0, 2) as received:
                return [block.number async for block in received]

    with NodeProcess(tmp_path / "data", arguments=("--log-level", "error")) as node:
        assert anyio.run(main, node.address, backend=backend) == [0, 1, 2]
