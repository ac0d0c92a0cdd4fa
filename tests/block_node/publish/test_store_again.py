"""Goal: a block that could not be stored holds back those above it until it is stored, and no longer.

Method: two tries at a block are on their way at once, and the first fails.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import trio
import trio.testing

from block_node.persist.chain_log import NewBlock
from block_node.persist.plugin import BlockCollector
from block_node.persist.store import ChainStore
from block_node.protocol import Acknowledgement, PublishStatus, StreamEnded
from stream_storage.contract import Operation
from stream_storage.errors import StorageError
from stream_storage.sqlite.database import Database
from tests.block_node.publish.samples import Disk, bench, chain_of


def block(number: int) -> NewBlock:
    collector = BlockCollector(number)
    collector.add([b"item"])
    return collector.finish(number, bytes(48))


async def test_a_failure_that_comes_after_the_next_try_began_does_not_outlast_it(tmp_path: Path) -> None:
    database = Database.open(tmp_path)
    results: list[tuple[int, StorageError | None]] = []

    class FullAtFirst(Disk):
        def commit(self, batch: list[Operation]) -> None:
            super().commit(batch)
            self.full = False

    async with trio.open_nursery() as nursery:
        runner = FullAtFirst(database, nursery, partial(trio.sleep, 0.01))
        store = ChainStore(runner, now_us=lambda: 0)
        store.open(lambda error: None)
        await runner.wait_idle()
        runner.full = True
        store.store(block(0), lambda error: results.append((0, error)))
        await trio.testing.wait_all_tasks_blocked()
        store.store(block(0), lambda error: results.append((0, error)))
        await runner.wait_idle()
        store.store(block(1), lambda error: results.append((1, error)))
        await runner.aclose()
    database.close()
    assert [(number, error is None) for number, error in results] == [(0, False), (0, True), (1, True)]


async def test_an_empty_chain_may_begin_elsewhere_after_a_failure(tmp_path: Path) -> None:
    """Claim: a first block that could not be stored does not hold back the configured one. Method: a publisher begins
    with a lower block while the disk is full, and does not come again; another one begins where it should."""
    blocks = chain_of(11)
    async with bench(tmp_path, first_block=10) as world:
        early, other = await world.publisher(), await world.publisher()
        world.runner.full = True
        early.block(blocks[5])
        assert (await early.expect(StreamEnded)).status is PublishStatus.PERSISTENCE_FAILED
        assert (await other.expect(StreamEnded)).status is PublishStatus.PERSISTENCE_FAILED
        world.runner.full = False
        await other.open(b"again")
        other.block(blocks[10])
        assert await other.expect(Acknowledgement) == Acknowledgement(10)
