"""Goal: what a node has acknowledged is stored with the root it had, however the node ends.

Method: kill -9 of a real node with blocks under way, again and again at places that a seed picks; after each, the node
alone says what it has, and everything that was acknowledged before the kill must be there, and readable.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import trio

from block_node.blocks.generator import BlockShape, GeneratedBlock
from block_node.client import BlockPublisher, OutgoingBlock, PublishSettings, connect
from stream_client import Reconnect
from stream_node.node.process import NodeProcess
from stream_storage.sqlite.database import Database
from stream_storage.sqlite.verify import verify
from tests.block_node.publish.samples import chain_of
from tests.support.blocks import join_block
from tests.support.served import PATIENCE_S, wait_until

SETTINGS = PublishSettings(kept_blocks_max=32, reconnect=Reconnect(delay_s=0.01, delay_s_max=0.05))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "item_bytes", "kills"),
    [pytest.param(150, 100, 3, id="small", marks=pytest.mark.soak), pytest.param(7, 500_000, 2, id="large")],
)
async def test_what_was_acknowledged_before_a_kill_is_stored_with_its_root(
    tmp_path: Path, count: int, item_bytes: int, kills: int
) -> None:
    """Large blocks are on disk in parts before they are verified, so that parts are there when the node dies."""
    random = Random(count)
    blocks = chain_of(count, BlockShape(item_count=22, item_bytes=item_bytes))
    kills_at = sorted(random.sample(range(1, count - 2), kills))
    with NodeProcess(tmp_path / "data", arguments=("--log-level", "error")) as node:
        for kill_at in kills_at:
            acknowledged = await _publish_until(node, blocks, kill_at, random)
            node.kill()
            node.start()
            await _check(node, blocks, acknowledged)
        await _publish_until(node, blocks, len(blocks) - 1, random)
        await _check(node, blocks, len(blocks) - 1)
        node.stop()
    database = Database.open(tmp_path / "data")
    session = database.read_session()
    try:
        assert not verify(session).problems
    finally:
        session.close()
        database.close()


async def _publish_until(node: NodeProcess, blocks: tuple[GeneratedBlock, ...], wanted: int, random: Random) -> int:
    """Publish from the start on until that block is acknowledged, and a moment longer; what is acknowledged by then."""
    acknowledged = -1

    async def send(publisher: BlockPublisher) -> None:
        for block in blocks:
            await publisher.send(OutgoingBlock.from_items(block.items))

    with trio.fail_after(PATIENCE_S):
        async with (
            trio.open_nursery() as nursery,
            connect(node.address) as client,
            client.publisher(SETTINGS) as publisher,
        ):
            nursery.start_soon(send, publisher)
            await wait_until(lambda: (publisher.acknowledged or 0) >= wanted)
            for _ in range(random.randrange(20)):
                await trio.lowlevel.checkpoint()
            acknowledged = publisher.acknowledged or 0
            if wanted < len(blocks) - 1:
                # While later blocks are on their way, and before the publisher says that it leaves.
                node.kill()
                nursery.cancel_scope.cancel()
    return acknowledged


async def _check(node: NodeProcess, blocks: tuple[GeneratedBlock, ...], acknowledged: int) -> None:
    with trio.fail_after(PATIENCE_S):
        async with connect(node.address) as client:
            status = await client.status(detail=True)
            last = status.last_available
            assert last is not None
            assert last >= acknowledged
            assert (status.first_available, status.next_expected) == (0, last + 1)
            assert status.detail is not None
            assert len(status.detail.available) == 1
            async with client.subscribe(0, last) as stored:
                got = [(block.number, block.root, tuple(block.items)) async for block in stored]
            assert got == [(block.number, block.root, block.items) for block in blocks[: last + 1]]
            assert (await client.get(acknowledged))[1:] == (
                blocks[acknowledged].root,
                join_block(blocks[acknowledged].items),
            )
