"""Claim: between real node processes the acceptance tests of specs/backfill.md hold, and a kill costs nothing.

Method: two `stream-node serve` on files and sockets. Blocks are deleted from the second one's storage by another
connection while it runs; it is killed with SIGKILL in the middle of a run. Its database is verified at the end.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from block_node.blocks.generator import GeneratedBlock
from stream_node.node.process import NodeProcess
from stream_storage.sqlite.verify import verify
from tests.block_node.backfill.served_blocks import backfill_status, chain, publish, ranges, remove_blocks
from tests.block_node.client.chains import fetch
from tests.support.data_dir import open_session
from tests.support.served import PATIENCE_S

BLOCKS = 400


@asynccontextmanager
async def process(
    data_dir: Path, *sources: str, first_block: int = 0, batch_size: int = 10
) -> AsyncIterator[NodeProcess]:
    environment = {
        "STREAM_NODE_BLOCK_FIRST": str(first_block),
        "STREAM_NODE_BACKFILL_BLOCK_NODE_SOURCES": ",".join(sources),
        "STREAM_NODE_BACKFILL_SCAN_INTERVAL_SECS": "0.5",
        "STREAM_NODE_BACKFILL_FETCH_BATCH_SIZE": str(batch_size),
        "STREAM_NODE_BACKFILL_CONCURRENT_FETCHES": str(min(4, batch_size)),
        "STREAM_NODE_BACKFILL_INITIAL_RETRY_DELAY_SECS": "0.1",
        "STREAM_NODE_BACKFILL_MAX_BACKOFF_SECS": "1",
    }
    node = NodeProcess(data_dir, environment=environment, arguments=("--log-level", "warning"))
    with node:
        yield node


async def wait_for(condition: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(2 * PATIENCE_S):
        while not await condition():
            await trio.sleep(0.02)


async def has_all(node: NodeProcess, blocks: tuple[GeneratedBlock, ...]) -> None:
    """Until it has these blocks without a hole; some of them are compared."""

    async def there() -> bool:
        return await ranges(node.address) == [(0, len(blocks) - 1)]

    await wait_for(there)
    for block in blocks[:: max(1, len(blocks) // 8)]:
        assert (await fetch(node.address, block.number))[1] == block.root


def count_stored(data_dir: Path) -> int:
    """Of a node that was killed, whose write-ahead log is left as it is."""
    connection = sqlite3.connect(f"file:{data_dir / 'streams.sqlite'}?mode=ro", uri=True)
    try:
        count: int = connection.execute("SELECT count(*) FROM block_index").fetchone()[0]
        return count
    finally:
        connection.close()


def check_stored_once(data_dir: Path, count: int) -> None:
    """Every block is in the index once, and its parts once in the stream."""
    connection = sqlite3.connect(data_dir / "streams.sqlite")
    try:
        numbers = [row[0] for row in connection.execute("SELECT number FROM block_index ORDER BY number")]
        parts = connection.execute("SELECT sum(parts) FROM block_index").fetchone()[0]
        messages = connection.execute("SELECT count(*) FROM messages").fetchone()[0]
    finally:
        connection.close()
    assert numbers == list(range(count))
    assert messages == parts
    with open_session(data_dir) as session:
        report = verify(session)
    assert not report.problems


@pytest.mark.slow
async def test_1_the_initial_backfill(tmp_path: Path) -> None:
    blocks = chain(40)
    async with process(tmp_path / "one") as one:
        await publish(one.address, blocks)
        async with process(tmp_path / "two", first_block=20) as two:
            await publish(two.address, blocks[20:])
        async with process(tmp_path / "two", one.address, first_block=20) as two:
            await has_all(two, blocks)
            assert (await backfill_status(two.address)).blocks_stored == 20


async def test_2_the_ongoing_backfill(tmp_path: Path) -> None:
    blocks = chain(40)
    async with process(tmp_path / "one") as one, process(tmp_path / "two", one.address) as two:
        await publish(one.address, blocks)
        await publish(two.address, blocks)
        await has_all(two, blocks)
        before = (await backfill_status(two.address)).blocks_stored
        assert remove_blocks(tmp_path / "two", 10, 29) == 20

        async def filled() -> bool:
            return (await backfill_status(two.address)).blocks_stored >= before + 20

        await wait_for(filled)
        await has_all(two, blocks)
        assert two.stop() == 0
        two.start()
        await has_all(two, blocks)


@pytest.mark.slow
@pytest.mark.parametrize(
    "first_block", [pytest.param(0, id="live tail", marks=pytest.mark.soak), pytest.param(BLOCKS - 1, id="history")]
)
async def test_a_kill_in_the_middle_of_a_run(tmp_path: Path, first_block: int) -> None:
    """What was stored stays, the rest comes, and nothing is stored twice."""
    blocks = chain(BLOCKS)
    async with process(tmp_path / "one") as one:
        await publish(one.address, blocks)
        if first_block:
            async with process(tmp_path / "two", first_block=first_block) as two:
                await publish(two.address, blocks[first_block:])
        # One block a request, one request at a time: slow enough to be met in the middle.
        async with process(tmp_path / "two", one.address, first_block=first_block, batch_size=1) as two:
            kept = 0
            for share in (0.1, 0.3):

                async def far_enough(share: float = share) -> bool:
                    found = await ranges(two.address)
                    return sum(last - first + 1 for first, last in found) > share * BLOCKS

                await wait_for(far_enough)
                two.kill()
                stored = count_stored(tmp_path / "two")
                assert kept < stored < BLOCKS, "the kill is to come in the middle"
                kept = stored
                two.start()
            await has_all(two, blocks)
            assert two.stop() == 0
    check_stored_once(tmp_path / "two", BLOCKS)
