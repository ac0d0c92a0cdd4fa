"""Claim: blocks whose bytes are damaged or gone on the disk of a running node come back, from a source or a publisher,
and the node is then as if nothing had happened; also if it is killed in between.

Method: real nodes; bytes are taken by another connection, while the index keeps its rows. The scan finds them.
"""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
import trio

from block_node.client import BlockNotCompared, BlockRefused, OutgoingBlock, connect
from stream_node.node.process import NodeProcess
from stream_storage.sqlite.verify import verify
from tests.block_node.backfill.served_blocks import (
    QUICK,
    backfill_status,
    chain,
    damage_blocks,
    publish,
    ranges,
    source,
    stored_rows,
)
from tests.block_node.backfill.test_processes import has_all, process, wait_for
from tests.block_node.client.chains import fetch
from tests.support.data_dir import open_session
from tests.support.served import Served, served, wait_until

BLOCKS = chain(40)
CHANGES = "DELETE FROM messages", "UPDATE messages SET data = zeroblob(length(data))"


def damaged(running: Served) -> int:
    blocks = running.statistics().services.blocks
    assert blocks is not None
    return blocks.node.store.damaged


def check_file(directory: Path) -> None:
    with open_session(directory) as session:
        assert not verify(session).problems


@pytest.mark.slow
async def test_a_publisher_mends_what_is_damaged(tmp_path: Path) -> None:
    """The newest block, too; a node that starts again goes on behind it. Another block of the number mends nothing."""
    async with served(tmp_path / "undisturbed") as running:
        await publish(running.address, BLOCKS[:6])
    async with served(tmp_path / "node") as running:
        await publish(running.address, BLOCKS[:5])
        damage_blocks(tmp_path / "node", 1, 4)
        damage_blocks(tmp_path / "node", 2, change=CHANGES[1])
        await wait_until(lambda: damaged(running) == 3)
    async with served(tmp_path / "node") as running:
        assert await ranges(running.address) == [(0, 0), (3, 3)]
        with pytest.raises((BlockRefused, ExceptionGroup)):
            await publish(running.address, chain(6, seed=1)[1:2])
        assert damaged(running) == 3
        async with connect(running.address) as client, client.publisher() as publisher:
            for block in BLOCKS[:6]:
                await publisher.send(OutgoingBlock.from_items(block.items))
            await publisher.flush()
            assert (publisher.acknowledged, publisher.compared) == (5, 5)
        assert (damaged(running), await ranges(running.address)) == (0, [(0, 5)])
    assert stored_rows(tmp_path / "node") == stored_rows(tmp_path / "undisturbed")
    check_file(tmp_path / "node")


async def test_what_retention_has_deleted_is_not_mended(tmp_path: Path) -> None:
    async with served(tmp_path, block_retention_blocks=2) as running:
        await publish(running.address, BLOCKS[:5])
        await wait_until(lambda: len(stored_rows(tmp_path)) == 4)
        with pytest.raises((BlockNotCompared, ExceptionGroup)):
            await publish(running.address, BLOCKS[1:2])


async def test_backfill_mends_what_is_damaged(tmp_path: Path) -> None:
    """A reader meets it and finds it missing at once; it comes without a look at all blocks, and without the scan."""
    async with source(tmp_path / "one", BLOCKS) as one:
        settings = QUICK | {"backfill_block_node_sources": (one.address,), "backfill_scan_interval_secs": 3_600.0}
        async with served(tmp_path / "two", **settings, block_scan_bytes=0) as two:
            await wait_until(lambda: len(stored_rows(tmp_path / "two")) == 80)
            damage_blocks(tmp_path / "two", 7, 8, 39)
            damage_blocks(tmp_path / "two", 20, change=CHANGES[1])
            for number in (7, 20, 39):
                with pytest.raises(Exception, match="NOT_FOUND"):
                    await fetch(two.address, number)

            async def whole() -> bool:
                return await ranges(two.address) == [(0, 39)]

            # Block 8 is met, too: its footer names the root of block 7.
            await wait_for(whole)
            assert damaged(two) == 0
            assert (await backfill_status(two.address)).missing == 0
    assert stored_rows(tmp_path / "two") == stored_rows(tmp_path / "one")
    check_file(tmp_path / "two")


async def test_a_kill_while_blocks_are_mended_costs_nothing(tmp_path: Path) -> None:
    """The damage that was found is known to the next process, and what it does not know the scan finds."""
    async with process(tmp_path / "one") as one:
        await publish(one.address, BLOCKS)
        async with process(tmp_path / "two", one.address, batch_size=1) as two:
            await has_all(two, BLOCKS)
            for round_number in range(2):
                two.kill()
                damage_blocks(tmp_path / "two", *range(round_number, 40, 3), change=CHANGES[round_number])
                two.start()

                async def some_are_missing(two: NodeProcess = two) -> bool:
                    return len(await ranges(two.address)) > 1

                with trio.move_on_after(2):
                    await wait_for(some_are_missing)
            await has_all(two, BLOCKS)
            assert two.stop() == 0
    assert stored_rows(tmp_path / "two") == stored_rows(tmp_path / "one")
    check_file(tmp_path / "two")


def test_damage_is_a_metric(tmp_path: Path) -> None:
    with NodeProcess(tmp_path, arguments=["--http", "127.0.0.1:0"]) as node:
        trio.run(publish, node.address, BLOCKS[:3])
        damage_blocks(tmp_path, 1)

        def metric() -> str:
            text = httpx.get(f"http://{node.http[0]}/metrics", trust_env=False).text
            return str(re.findall(r"^stream_node_blocks_damaged (.*)$", text, re.MULTILINE)[0])

        async def found() -> bool:
            return metric() == "1.0"

        trio.run(wait_for, found)
