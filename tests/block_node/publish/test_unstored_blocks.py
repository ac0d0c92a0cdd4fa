"""Goal: verification goes back to the last block on disk exactly if a block that it goes on from will not be stored.

Method: a node whose writes wait until the test lets them go on, one commit at a time.
"""

from __future__ import annotations

from pathlib import Path

import trio
import trio.testing

from block_node.blocks.generator import GeneratedBlock
from block_node.events import BackfilledBlockNotification, PersistedNotification
from block_node.persist.chain_log import StoreBlock
from block_node.protocol import Acknowledgement, PublishStatus, StreamEnded
from stream_storage.commit import fail_all
from stream_storage.contract import Operation
from stream_storage.errors import CommitUnsettled, DatabaseLost, DiskFull, StorageError
from tests.block_node.publish.samples import Bench, bench, chain_of

BLOCKS = chain_of(13)
OTHER_CHAIN = chain_of(1, seed=5)


class HeldDisk:
    """Commits one batch at a time, when the test says so. A block of `errors` fails with its error; if `stores_it`, it
    is stored nevertheless, as by a commit in doubt."""

    def __init__(self, world: Bench) -> None:
        self._runner = world.runner
        self._turns = trio.Semaphore(0)
        self._commit = world.runner.commit
        self.errors: dict[int, StorageError] = {}
        self.stores_it = False
        world.runner.commit = self._commit_some  # type: ignore[method-assign]
        world.runner._delay = self._turns.acquire

    async def commit_next(self) -> None:
        """The batch that waits; those that wait behind it become the next one."""
        # One delay comes before the commit, and one before it is told.
        for _ in range(2):
            self._turns.release()
        await trio.testing.wait_all_tasks_blocked()

    def let_go(self) -> None:
        self._runner._delay = trio.lowlevel.checkpoint
        self._turns.release()

    def _commit_some(self, batch: list[Operation]) -> None:
        if self.stores_it:
            self._commit(batch)
        for each in batch:
            if isinstance(each, StoreBlock) and (error := self.errors.get(each.block.number)) is not None:
                fail_all([each], error)
        if not self.stores_it:
            self._commit([each for each in batch if each.error is None])


def backfill(world: Bench, block: GeneratedBlock, roots: tuple[bytes, ...] = ()) -> None:
    items = list(block.items)
    notification = BackfilledBlockNotification(block.number, items, sum(map(len, items)), roots=roots)
    world.block_node.facility.publish(notification)


def told(world: Bench) -> list[tuple[int, bool]]:
    return [(each.block_number, each.succeeded) for each in world.all_of(PersistedNotification)]


async def test_a_block_of_history_that_is_not_stored_is_no_fault_of_a_publisher(tmp_path: Path) -> None:
    """Claim: the newest blocks stay verified when an old one fails. Method: the failure comes while block 11 waits for
    its commit, and block 12 comes before that."""
    async with bench(tmp_path, first_block=10) as world:
        publisher = await world.publisher()
        publisher.block(BLOCKS[10])
        await publisher.expect(Acknowledgement)
        disk = HeldDisk(world)
        disk.errors[2] = DiskFull("as the test wants it")
        backfill(world, BLOCKS[2], (BLOCKS[2].root,))
        await trio.testing.wait_all_tasks_blocked()
        publisher.block(BLOCKS[11])
        await trio.testing.wait_all_tasks_blocked()
        await disk.commit_next()
        assert told(world) == [(10, True), (2, False)]
        publisher.block(BLOCKS[12])
        await trio.testing.wait_all_tasks_blocked()
        disk.let_go()
        assert await publisher.expect(Acknowledgement) == Acknowledgement(11)
        assert await publisher.expect(Acknowledgement) == Acknowledgement(12)
        assert world.stored() == [10, 11, 12]


async def test_a_block_that_is_not_stored_because_another_one_is_takes_the_chain_back(tmp_path: Path) -> None:
    """Claim: verification goes on from the stored block. Method: the commit of a block is in doubt, and has stored it.
    Before the node knows that, another block 0 passes, which cannot be stored any more."""
    async with bench(tmp_path) as world:
        publisher = await world.publisher()
        disk = HeldDisk(world)
        disk.errors[0], disk.stores_it = CommitUnsettled(DatabaseLost("the server is gone")), True
        publisher.block(BLOCKS[0])
        await trio.testing.wait_all_tasks_blocked()
        await disk.commit_next()
        assert (await publisher.expect(StreamEnded)).status is PublishStatus.PERSISTENCE_FAILED
        disk.errors.clear()
        # The store reads its state again behind the write in doubt, and before the other block.
        backfill(world, OTHER_CHAIN[0])
        await trio.testing.wait_all_tasks_blocked()
        await disk.commit_next()
        world.publishing.tick()
        await trio.testing.wait_all_tasks_blocked()
        assert told(world) == [(0, False), (0, True)]
        await disk.commit_next()
        assert told(world) == [(0, False), (0, True), (0, False)]
        disk.let_go()
        assert (await publisher.open(b"again")).last_block == 0
        publisher.block(BLOCKS[1])
        assert await publisher.expect(Acknowledgement) == Acknowledgement(1)
