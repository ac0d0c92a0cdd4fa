"""Goal: the last blocks of a chain, deleted by another program, can be stored again in any order, also if the disk is
full at first. Backfill brings the highest one first.

Method: the store on a database file, from which a second connection deletes rows. Found by seed 20421 of the backfill
simulation.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path

from block_node.persist.chain_log import PredecessorMissing
from block_node.persist.store import ChainStore
from stream_storage.errors import DiskFull, StorageError
from stream_storage.sqlite.database import Database
from stream_storage.thread_runner import ThreadRunner
from tests.block_node.persist.block_samples import block_of
from tests.support.served import wait_until


async def test_blocks_that_vanished_come_back_from_above(tmp_path: Path) -> None:
    database = Database.open(tmp_path)
    async with ThreadRunner(database) as runner:
        store = ChainStore(runner, now_us=lambda: 7)
        assert await done(store.open) is None
        for number in range(4):
            assert await stored(store, number) is None
        with sqlite3.connect(tmp_path / "streams.sqlite") as connection:
            connection.execute("DELETE FROM block_index WHERE number >= 2")
        connection.close()
        assert await done(store.look_again) is None
        assert list(store.available) == [(0, 1)]
        # Neither block finds room, first the upper one. Then both do, in the same order.
        store.refusal = "the disk is full"
        assert [type(await stored(store, number)) for number in (3, 2)] == [DiskFull, DiskFull]
        store.refusal = None
        assert [await stored(store, number) for number in (3, 2)] == [None, None]
        assert list(store.available) == [(0, 3)]
        # A block that was never stored still keeps back those above it.
        store.refusal = "the disk is full"
        assert isinstance(await stored(store, 4), DiskFull)
        store.refusal = None
        assert isinstance(await stored(store, 5), PredecessorMissing)
    database.close()


async def done(begin: Callable[[Callable[[StorageError | None], None]], None]) -> StorageError | None:
    """Calls a method of the store, and returns its error."""
    found: list[StorageError | None] = []
    begin(found.append)
    await wait_until(partial(bool, found))
    return found[0]


async def stored(store: ChainStore, number: int) -> StorageError | None:
    return await done(partial(store.store, block_of(number)))
