"""Goal: a block of which nobody knew whether it is stored is known to the store as soon as the database knows.

Method: the store on a PostgreSQL server whose commits wait for its only standby, which is killed and started again.
"""

from __future__ import annotations

from functools import partial

import pytest
import trio

from stream_storage.contract import Do, ignore_done

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from block_node.persist.chain_log import ChainLog, PredecessorMissing, read_chain
from block_node.persist.store import BlockRetention, ChainStore
from stream_storage.commit import apply_read
from stream_storage.errors import CommitUnsettled, StorageError
from stream_storage.postgres.database import PostgresDatabase
from stream_storage.thread_runner import ThreadRunner
from tests.block_node.persist.block_samples import block_of
from tests.stream_storage.postgres.failover import Pair
from tests.support.served import wait_until


async def test_a_block_in_doubt_is_counted_once_it_is_known_to_be_stored() -> None:
    with Pair() as pair:
        assert pair.standby is not None
        database = PostgresDatabase.open(pair.primary.url, wait_s=0.5, call_s=0.5)
        async with ThreadRunner(database) as runner:
            store = ChainStore(runner, now_us=lambda: 7, retention=BlockRetention(blocks=3))
            opened: list[StorageError | None] = []
            store.open(opened.append)
            await wait_until(lambda: bool(opened))
            for number in range(3):
                assert await stored(store, number) is None
            pair.standby.kill()
            assert isinstance(await stored(store, 3), CommitUnsettled)
            assert isinstance(await stored(store, 4), PredecessorMissing)
            assert list(store.available) == [(0, 2)]
            await trio.to_thread.run_sync(pair.standby.start)
            # Nobody stores anything, and the store finds the block. Retention then deletes the lowest one.
            await wait_until(lambda: list(store.available) == [(1, 3)])
            assert await stored(store, 4) is None
            await wait_until(lambda: list(store.available) == [(2, 4)])
            session = database.read_session()
            read = Do(lambda session: read_chain(session, ChainLog(store.chain)), ignore_done)
            apply_read(session, read)
            session.close()
            assert read.result is not None
            assert list(read.result.available) == [(2, 4)]
            assert (read.result.blocks, read.result.size_bytes) == (
                store.statistics().blocks,
                store.statistics().size_bytes,
            )
        database.close()


async def stored(store: ChainStore, number: int) -> StorageError | None:
    """Stores a block, and returns its error."""
    found: list[StorageError | None] = []
    store.store(block_of(number), found.append)
    await wait_until(partial(bool, found))
    return found[0]
