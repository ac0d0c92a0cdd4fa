"""Moves a branch of blocks from memory into a store, and moves the replaced blocks from the store back into memory.

Only one move runs at a time, and readers do not wait for it. A reader always finds every block. Blocks on the way into
the store stay in memory until the store has them. Blocks on the way out of the store are kept in a `Transfer` until
they are back in memory.

A move ends when it is certain that the store has made all of the change or none of it. If the store raises an error and
then cannot be read, the result is unknown. In this case the `Transfer` keeps all of its blocks, and the next call reads
the store again.
"""

from __future__ import annotations

from threading import Lock

import msgspec

from block_manager.block import Block
from block_manager.errors import BlockConflict, IntegrityBroken
from block_manager.holds import BlockIterator, Hold
from block_manager.known_blocks import KnownBlocks
from block_manager.store import BlockStore
from block_manager.stores import Transfer
from block_manager.walk import BranchWalk, DiffWalk


class PersistStatistics(msgspec.Struct, frozen=True):
    """PersistStatistics: counters of `persist` calls since the block manager was created.

    persist_count: the number of calls that changed a store.
    failed_count: the number of calls in which the store raised an error while writing.
    stored_count: the number of blocks that were added to stores.
    displaced_count: the number of blocks that were removed from stores.
    in_doubt: True while a call is writing, and after a failed call whose result is still unknown.
    """

    persist_count: int
    failed_count: int
    stored_count: int
    displaced_count: int
    in_doubt: bool


class Persister:
    """Persister: the part of the block manager that adds stores and moves branches into them.

    Invariant: between two calls no move is in progress, except a failed move with an unknown result.
    """

    def __init__(self, known: KnownBlocks) -> None:
        self._known = known
        self._lock = Lock()
        self._persist_count = 0
        self._failed_count = 0
        self._stored_count = 0
        self._displaced_count = 0

    def add_store(self, store_name: str, store: BlockStore) -> None:
        """Add a store under a name, as `BlockManager.add_store` describes."""
        known = self._known
        with self._lock:
            self._settle_doubt()
            head = next(store.iter(), None)
            with known.lock():
                # Make all checks before the first change, so that an error leaves the manager unchanged.
                known.stores.check_absent(store_name)
                shared = {block.block_id: block for block in store.get(list(known.tree.block_ids()))}
                for block in shared.values():
                    self._check_shared(block, shared)
                # A block must not be both in memory and in a store. So remove the blocks of the store from memory.
                known.stores.add(store_name, store)
                known.tree.unload(shared)
                # Add a reference to the head on behalf of the caller, as `put` does, unless the head has one already.
                if head is not None and known.tree.find_references(head.block_id) is None:
                    known.tree.hold(head.block_id)

    def persist(self, head: str, store_name: str) -> None:
        """Move the branch that ends at the block `head` into a store, as `BlockManager.persist` describes.

        1. If an earlier move failed with an unknown result, read from its store whether the change was made.
        2. Add a reference to the new head, so that no block of its branch is dropped during the move. Stored blocks are
           never dropped.
        3. Stop if the store has the new head. Find the blocks of the new branch that the store lacks. Find the
           displaced blocks: the blocks of the store that are not on the new branch.
        4. Put the displaced blocks into a `Transfer`, where all readers find them.
        5. Let the store delete and add the blocks in one step. If the store raises an error, read which blocks it has.
        6. Remove the stored blocks from the tree, and add the displaced blocks to the tree. The reference counts do not
           change.
        """
        known = self._known
        with self._lock:
            self._settle_doubt()
            with known.lock():
                store = known.stores.get(store_name)
            with Hold(known, head):
                if next(store.get((head,)), None) is None:
                    self._move(store, self._plan(store, store_name, head))

    def check(self) -> None:
        """Check all blocks, reference counts and stores, as `BlockManager.check_integrity` describes."""
        known = self._known
        with self._lock:
            self._settle_doubt()
            with known.lock():
                stored: set[str] = set()
                for store_name in known.stores.names():
                    stored |= _check_store(store_name, known.stores.get(store_name))
                known.tree.check(stored.__contains__)

    def statistics(self) -> PersistStatistics:
        return PersistStatistics(
            persist_count=self._persist_count,
            failed_count=self._failed_count,
            stored_count=self._stored_count,
            displaced_count=self._displaced_count,
            in_doubt=self._known.stores.transfer is not None,
        )

    def _check_shared(self, block: Block, shared: dict[str, Block]) -> None:
        """Check that a block can be removed from memory because a new store has the same block. Raises BlockConflict.

        shared: all blocks that are in memory and in the store, by id.
        """
        tree = self._known.tree
        if tree.find(block.block_id) != block:
            raise BlockConflict(block.block_id, "the store has another block under this id")
        if block.previous_id not in shared and tree.find(block.previous_id) is not None:
            raise BlockConflict(block.block_id, f"the store has it without its parent {block.previous_id}")

    def _plan(self, store: BlockStore, store_name: str, head: str) -> Transfer:
        """Returns the blocks that must move into and out of the store, so that the store has the branch that ends at
        `head`.

        If the store has no block of that branch, all blocks of the store are removed from it.
        """
        stored_head = next(store.iter(), None)
        if stored_head is None:
            return Transfer(store_name, tuple(reversed(self._branch(head))), (), (), None)
        # Find the stored blocks that are not on the new branch, from the stored head down to the block where the two
        # branches meet.
        beside_ids = {block.block_id for block in self._diff(stored_head.block_id, head)}
        displaced: list[Block] = []
        for block in store.iter():
            if block.block_id not in beside_ids:
                inserted = self._diff(head, stored_head.block_id)
                root_id = None
                break
            displaced.append(block)
        else:
            inserted = self._branch(head)
            root_id = displaced[-1].block_id
        # A displaced block must not return to memory if another store has it: it would be in two places.
        with self._known.lock():
            displaced_ids = [block.block_id for block in displaced]
            elsewhere = self._known.stores.find_many(displaced_ids, besides=store_name)
        returning = tuple(block for block in displaced if block.block_id not in elsewhere)
        return Transfer(store_name, tuple(reversed(inserted)), tuple(displaced), returning, root_id)

    def _branch(self, tip: str) -> list[Block]:
        return list(BlockIterator(BranchWalk(tip), self._known.find, Hold(self._known, tip)))

    def _diff(self, tip: str, exclude: str) -> list[Block]:
        return list(BlockIterator(DiffWalk(tip, exclude), self._known.find, Hold(self._known, tip, exclude)))

    def _move(self, store: BlockStore, transfer: Transfer) -> None:
        with self._known.lock():
            self._known.stores.begin(transfer)
        # Do not take the lock here. While the store writes, readers find all blocks of the transfer in memory.
        try:
            store.put(transfer.inserted, [block.block_id for block in transfer.displaced])
        except BaseException as error:
            # A store may raise an error although it made the change, for example if the answer to a commit is lost.
            # So read which blocks the store has.
            self._failed_count += 1
            try:
                self._settle_doubt()
            except Exception as doubt:
                error.add_note(f"whether the store {transfer.store_name!r} did it is not known yet: {doubt}")
            raise
        self._settle(transfer, done=True)

    def _settle_doubt(self) -> None:
        """Finish an earlier move whose result is unknown. If there is none, do nothing.

        Reads from the store whether the change was made. Raises every error that the store raises. Raises
        IntegrityBroken if the store made only a part of the change.
        """
        transfer = self._known.stores.transfer
        if transfer is None:
            return
        inserted = {block.block_id for block in transfer.inserted}
        displaced = {block.block_id for block in transfer.displaced}
        store = self._known.stores.get(transfer.store_name)
        stored = {block.block_id for block in store.get([*inserted, *displaced])}
        if stored not in (inserted, displaced):
            raise IntegrityBroken(
                f"the store {transfer.store_name!r} did a part of what it must do as one: it has {sorted(stored)} "
                f"of the new {sorted(inserted)} and the old {sorted(displaced)}; all of them are kept in memory"
            )
        self._settle(transfer, done=stored == inserted)

    def _settle(self, transfer: Transfer, *, done: bool) -> None:
        known = self._known
        with known.lock():
            if done:
                ids = (block.block_id for block in transfer.inserted)
                known.tree.unload([block_id for block_id in ids if known.tree.find(block_id) is not None])
                known.tree.load(transfer.returning, root_id=transfer.root_id)
                self._persist_count += 1
                self._stored_count += len(transfer.inserted)
                self._displaced_count += len(transfer.displaced)
            known.stores.end()


def _check_store(store_name: str, store: BlockStore) -> set[str]:
    """Check that the blocks of a store form one branch. Returns the ids of the blocks.

    Raises IntegrityBroken and BlockStoreError.
    """
    block_ids: set[str] = set()
    child: Block | None = None
    for block in store.iter():
        if child is not None and (child.previous_id != block.block_id or child.number <= block.number):
            raise IntegrityBroken(f"in the store {store_name!r}, {child.block_id} does not follow {block.block_id}")
        block_ids.add(block.block_id)
        child = block
    return block_ids
