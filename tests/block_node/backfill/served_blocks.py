"""Whole servers with chains of blocks, for the tests of backfill: what they have, and taking something away."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

from block_node.backfill.protocol import BACKFILL, BackfillAsk, BackfillReport
from block_node.blocks.generator import BlockShape, ChainGenerator, GeneratedBlock
from block_node.client import OutgoingBlock, connect
from stream_client import connect as connect_streams
from tests.support.blocks import signing_keys
from tests.support.served import Served, served, wait_until

QUICK = {
    "backfill_scan_interval_secs": 0.3,
    "backfill_initial_retry_delay_secs": 0.05,
    "backfill_max_backoff_secs": 0.5,
    "backfill_fetch_batch_size": 10,
}
"""Settings that make a test short."""


@cache
def chain(count: int, seed: int = 0, item_count: int = 8, item_bytes: int = 100) -> tuple[GeneratedBlock, ...]:
    """The first blocks of a chain; the same ones each time in a test run."""
    shape = BlockShape(item_count=item_count, item_bytes=item_bytes)
    return tuple(ChainGenerator(signing_keys(), shape=shape, seed=seed).blocks(count))


async def publish(address: str, blocks: Iterable[GeneratedBlock]) -> None:
    """Until all are acknowledged."""
    async with connect(address) as blocks_client, blocks_client.publisher() as publisher:
        for block in blocks:
            await publisher.send(OutgoingBlock.from_items(block.items))
        await publisher.flush()


async def ranges(address: str) -> list[tuple[int, int]]:
    """What a node has."""
    async with connect(address) as client:
        detail = (await client.status(detail=True)).detail
    assert detail is not None
    return [(each.first_block, each.last_block) for each in detail.available]


async def backfill_status(address: str, *, run: bool = False) -> BackfillReport:
    async with connect_streams(address) as connection:
        return await connection.session.ask("block_backfill", BACKFILL, BackfillAsk(1, run))


@asynccontextmanager
async def source(directory: Path, blocks: Iterable[GeneratedBlock], **settings: Any) -> AsyncIterator[Served]:
    """A server that has these blocks."""
    blocks = tuple(blocks)
    settings.setdefault("block_first", blocks[0].number if blocks else 0)
    async with served(directory, **settings) as running:
        await publish(running.address, blocks)
        yield running


async def wait_ranges(running: Served, *wanted: tuple[int, int]) -> None:
    """Until the node has these blocks, and no others."""

    def there() -> bool:
        blocks = running.statistics().services.blocks
        assert blocks is not None
        store = blocks.node.store
        return store.blocks == sum(last - first + 1 for first, last in wanted) and store.last_block == wanted[-1][1]

    await wait_until(there)
    assert await ranges(running.address) == list(wanted)


def damage_blocks(directory: Path, *numbers: int, change: str = "DELETE FROM messages") -> None:
    """Take the bytes of blocks from a node's storage while it runs, by another connection; the index keeps its rows."""
    connection = sqlite3.connect(directory / "streams.sqlite", timeout=30)
    try:
        with connection:
            for number in numbers:
                place = "SELECT first_index FROM block_index WHERE number = ?"
                connection.execute(f"{change} WHERE idx = ({place})", (number,))
    finally:
        connection.close()


def stored_rows(directory: Path) -> list[tuple[Any, ...]]:
    """Every message of a node, but for its time and headers, and where the index says that each block is."""
    connection = sqlite3.connect(directory / "streams.sqlite")
    try:
        rows = connection.execute("SELECT idx, key, data FROM messages ORDER BY idx").fetchall()
        return rows + connection.execute("SELECT * FROM block_index ORDER BY number").fetchall()
    finally:
        connection.close()


def remove_blocks(directory: Path, first: int, last: int) -> int:
    """Delete blocks from a node's storage while it runs, by another connection, with every byte of them; how many
    messages that were."""
    connection = sqlite3.connect(directory / "streams.sqlite", timeout=30)
    try:
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            stream_id = connection.execute("SELECT stream_id FROM block_chains").fetchone()[0]
            gone = connection.execute(
                "DELETE FROM block_index WHERE number BETWEEN ? AND ? RETURNING first_index, parts", (first, last)
            ).fetchall()
            return sum(
                connection.execute(
                    "DELETE FROM messages WHERE stream_id = ? AND idx >= ? AND idx < ?",
                    (stream_id, first_index, first_index + parts),
                ).rowcount
                for first_index, parts in gone
            )
    finally:
        connection.close()
