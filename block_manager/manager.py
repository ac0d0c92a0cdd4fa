"""The block manager of RFC block-manager: it keeps each block, and the ancestors of the block, while the block has
references. It does not validate blocks, choose between forks or use a network.

`docs/block-manager.md` answers the questions that the RFC leaves open. How `persist` moves a branch into a store: let D
be the blocks of the store that are not on the new branch, and I the blocks of the new branch that the store lacks.

1. A reference to the newest block of the branch keeps I in memory. Blocks of D are stored, and so are never dropped.
2. Readers find the blocks of D in the `Transfer`, and those of I still in the tree.
3. The store deletes D and adds I in one transaction: one call, `BlockStore.put(I, D)`.
4. I leaves the tree, and D returns to it. The reference counts do not change.

If step 3 raises an error, the manager asks the store which blocks it has. All of I: the change was made. All of D and
nothing of I: it was not. If the store cannot be read, I and D stay in memory until it can.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from threading import Lock

import msgspec

from block_manager.errors import BlockConflict, IntegrityBroken, MissingInput, MissingPredecessor, StoreExists
from block_manager.known_blocks import BlockContext, BlockIterator, Hold, KnownBlocks, Transfer
from block_manager.store import BlockStore
from block_manager.tree import NULL_BLOCK_ID, Block, ReferenceCount, TreeStatistics, check_branch, check_number


class PersistStatistics(msgspec.Struct, frozen=True):
    """PersistStatistics: counters of the `persist` calls that changed a store, or failed while the store wrote.

    in_doubt: True while a call is writing, and after a failed call whose result is still unknown.
    """

    persist_count: int
    failed_count: int
    stored_count: int
    displaced_count: int
    in_doubt: bool


class ManagerStatistics(msgspec.Struct, frozen=True):
    """ManagerStatistics: the counters of a block manager since it was created."""

    tree: TreeStatistics
    persist: PersistStatistics
    store_count: int


class BlockManager:
    """BlockManager: a tree of blocks with forks, partly in memory and partly in stores. Any thread may call any method.

    A call that reads or writes a store takes as long as the store needs. Methods that read blocks raise BlockStoreError
    if a store fails; a failed call has changed nothing.

    Invariant: the manager has the parent of every block, except for blocks without a parent and the oldest block of a
    store. `check_integrity` checks this. Between two calls no move is in progress, except a failed one whose result is
    unknown.
    """

    def __init__(self) -> None:
        self._known = KnownBlocks()
        # A call that moves blocks between memory and stores holds this lock, and takes it before the lock of `_known`.
        # Readers do not take it, so they never wait for a move.
        self._moving = Lock()
        self._persist_count = 0
        self._failed_count = 0
        self._stored_count = 0
        self._displaced_count = 0

    def put(self, branch: Iterable[Block]) -> None:
        """Atomically adds the new blocks of a branch. The last added block gets one reference on behalf of the caller.

        branch: the blocks, oldest first. Each block must be the parent of the next one, and the numbers must increase.
        The manager must already have the parent of the first block, unless the first block has no parent (RFC, `put`).
        Blocks that the manager already has do not change and get no reference.

        Raises MissingInput, MissingPredecessor, MissingPredecessorInBranch, NumberNotIncreasing or BlockConflict.
        """
        blocks = list(branch)
        if not blocks:
            raise MissingInput
        first = blocks[0]
        with self._known.lock():
            found = self._known.find_many_locked([first.previous_id, *(block.block_id for block in blocks)])
            parent = found.get(first.previous_id)
            # Check condition 1 of the RFC before the order of the list. Some callers fetch a missing parent and then
            # try again. They need this error even if the parent comes later in the same list than its child.
            if parent is None and first.previous_id != NULL_BLOCK_ID:
                raise MissingPredecessor(first.block_id, first.previous_id)
            check_branch(blocks)
            if parent is not None:
                check_number(first, parent)
            for block in blocks:
                if found.get(block.block_id, block) != block:
                    raise BlockConflict(block.block_id, "another block is here under this id")
            self._known.tree.add([block for block in blocks if block.block_id not in found])

    def get(self, block_ids: Sequence[str]) -> Iterator[Block | None]:
        """Returns the blocks with these ids, in the same order and from one moment, with None for an unknown block."""
        with self._known.lock():
            found = self._known.find_many_locked(block_ids)
        return iter([found.get(block_id) for block_id in block_ids])

    def contains(self, block_id: str) -> bool:
        """Returns whether the manager has a block; True also for NULL_BLOCK_ID, which means "no parent"."""
        return block_id == NULL_BLOCK_ID or self._known.find(block_id) is not None

    def branch(self, tip: str) -> BlockIterator:
        """Returns an iterator over the blocks from the block `tip` to its oldest ancestor. Raises UnknownBlock.

        Each step of the iterator can raise BlockStoreError; the caller can then repeat the step.
        """
        return BlockIterator(self._known, tip)

    def branch_diff(self, tip: str, exclude: str) -> BlockIterator:
        """Returns an iterator over the blocks that are on the branch of `tip` but not on the branch of `exclude`.

        The blocks come newest first. The iterator holds references to both blocks. Raises the same errors as `branch`.
        """
        return BlockIterator(self._known, tip, exclude)

    def ref_block(self, block_id: str) -> None:
        """Keeps a block and its ancestors until a matching `unref_block`. Raises UnknownBlock."""
        with self._known.lock():
            self._known.check_known_locked(block_id)
            self._known.tree.hold(block_id)

    def unref_block(self, block_id: str) -> bool:
        """Removes one reference that `ref_block`, `put` or `add_store` added. Returns whether the block was dropped.

        A stored block is never dropped. Raises UnknownBlock. Raises ReferenceBelowZero if the block has no reference
        left but those of iterators and context managers.
        """
        with self._known.lock():
            self._known.check_known_locked(block_id)
            return self._known.tree.release(block_id)

    def ref_block_ctx(self, block_id: str) -> BlockContext:
        """Returns a context manager that holds a block. Entering it returns the block or raises UnknownBlock."""
        return BlockContext(self._known, block_id)

    def add_store(self, store_name: str, store: BlockStore) -> None:
        """Adds a store, with the blocks it has, under a name. After this call only the manager may write to the store.

        Blocks that are both in memory and in the store are removed from memory and keep their reference counts. If the
        newest block of the store has no references, it gets one on behalf of the caller.

        Raises StoreExists. Raises BlockConflict if the blocks of the store contradict the blocks in memory.
        """
        known = self._known
        with self._moving:
            self._settle_doubt()
            head = next(store.iter(), None)
            with known.lock():
                # Make all checks before the first change, so that an error leaves the manager unchanged.
                if store_name in known.stores:
                    raise StoreExists(store_name)
                shared = {block.block_id: block for block in store.get(list(known.tree.block_ids()))}
                for block in shared.values():
                    self._check_shared(block, shared)
                # A block must not be both in memory and in a store. So remove the blocks of the store from memory.
                known.stores[store_name] = store
                known.tree.unload(shared)
                # Add a reference to the head on behalf of the caller, as `put` does, unless the head has one already.
                if head is not None and known.tree.find_references(head.block_id) is None:
                    known.tree.hold(head.block_id)

    def head(self, store_name: str) -> Block | None:
        """Returns the newest block of a store, or None if the store is empty. Raises UnknownStore."""
        with self._known.lock():
            return next(self._known.get_store_locked(store_name).iter(), None)

    def persist(self, head: str, store_name: str) -> None:
        """Moves the branch that ends at the block `head` into a store, in one atomic step.

        Blocks of the store that are not on this branch return to memory. The ones without references are dropped. If
        the store already has `head`, nothing changes. Other threads can use the manager while the store writes.

        Raises UnknownStore, UnknownBlock, IntegrityBroken, and every error that the store raises. After an error no
        block is lost, and the caller can repeat the call.
        """
        with self._moving:
            self._settle_doubt()
            with self._known.lock():
                store = self._known.get_store_locked(store_name)
            # The hold keeps the new branch in memory until the store has it. Stored blocks are never dropped.
            with Hold(self._known, head):
                if next(store.get((head,)), None) is None:
                    self._move(store, self._plan(store, store_name, head))

    def get_reference_count(self, block_id: str) -> ReferenceCount:
        """Returns the counts of a block, or raises UnknownBlock. `persist` may count a child twice while it runs."""
        with self._known.lock():
            self._known.get_many_locked((block_id,))
            entry = self._known.tree.find_references(block_id)
            implicit = any(_is_below_head(store, block_id) for store in self._known.stores.values())
        if entry is None:
            return ReferenceCount(0, int(implicit))
        return ReferenceCount(entry.external, entry.dependents + implicit)

    def check_integrity(self) -> None:
        """Reads all blocks, and raises IntegrityBroken if a count, a parent or the branch in a store is wrong."""
        with self._moving:
            self._settle_doubt()
            with self._known.lock():
                stored: set[str] = set()
                for store_name, store in self._known.stores.items():
                    stored |= _check_store(store_name, store)
                self._known.tree.check(stored.__contains__)

    def statistics(self) -> ManagerStatistics:
        with self._known.lock():
            return ManagerStatistics(
                tree=self._known.tree.statistics(),
                persist=PersistStatistics(
                    persist_count=self._persist_count,
                    failed_count=self._failed_count,
                    stored_count=self._stored_count,
                    displaced_count=self._displaced_count,
                    in_doubt=self._known.transfer is not None,
                ),
                store_count=len(self._known.stores),
            )

    def _check_shared(self, block: Block, shared: dict[str, Block]) -> None:
        """Raises BlockConflict if a block cannot leave memory although a new store has its id.

        shared: all blocks that are in memory and in the store, by id.
        """
        tree = self._known.tree
        if tree.find(block.block_id) != block:
            raise BlockConflict(block.block_id, "the store has another block under this id")
        if block.previous_id not in shared and tree.find(block.previous_id) is not None:
            raise BlockConflict(block.block_id, f"the store has it without its parent {block.previous_id}")

    def _plan(self, store: BlockStore, store_name: str, head: str) -> Transfer:
        """Returns the blocks that must move so that the store has exactly the branch that ends at `head`."""
        known = self._known
        stored_head = next(store.iter(), None)
        if stored_head is None:
            return Transfer(store_name, tuple(reversed(list(BlockIterator(known, head)))), (), (), None)
        # Find the stored blocks that are not on the new branch, from the stored head down to the block where the two
        # branches meet.
        beside_ids = {block.block_id for block in BlockIterator(known, stored_head.block_id, head)}
        displaced: list[Block] = []
        for block in store.iter():
            if block.block_id not in beside_ids:
                inserted = list(BlockIterator(known, head, stored_head.block_id))
                root_id = None
                break
            displaced.append(block)
        else:
            # The store has no block of the new branch, so all of its blocks leave.
            inserted = list(BlockIterator(known, head))
            root_id = displaced[-1].block_id
        # A displaced block must not return to memory if another store has it: it would be in two places.
        with known.lock():
            displaced_ids = [block.block_id for block in displaced]
            elsewhere = known.find_stored_locked(displaced_ids, besides=store_name)
        returning = tuple(block for block in displaced if block.block_id not in elsewhere)
        return Transfer(store_name, tuple(reversed(inserted)), tuple(displaced), returning, root_id)

    def _move(self, store: BlockStore, transfer: Transfer) -> None:
        with self._known.lock():
            self._known.begin_locked(transfer)
        # Do not take the lock here. While the store writes, readers find all blocks of the transfer in memory.
        try:
            store.put(transfer.inserted, [block.block_id for block in transfer.displaced])
        except BaseException as error:
            # A store may raise an error although it made the change, for example if the answer to a commit is lost.
            # So read which blocks the store has.
            self._failed_count += 1
            # If the store cannot be read either, the transfer keeps all blocks, and the next call reads again.
            try:
                self._settle_doubt()
            except Exception as doubt:
                error.add_note(f"whether the store {transfer.store_name!r} did it is not known yet: {doubt}")
            raise
        self._settle(transfer, done=True)

    def _settle_doubt(self) -> None:
        """Ends an earlier move of unknown result, by reading the store. Raises IntegrityBroken for a partial move."""
        transfer = self._known.transfer
        if transfer is None:
            return
        inserted = {block.block_id for block in transfer.inserted}
        displaced = {block.block_id for block in transfer.displaced}
        store = self._known.stores[transfer.store_name]
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
            known.end_locked()


def _check_store(store_name: str, store: BlockStore) -> set[str]:
    """Returns the ids of the blocks of a store. Raises IntegrityBroken if they are not one branch."""
    block_ids: set[str] = set()
    child: Block | None = None
    for block in store.iter():
        if child is not None and (child.previous_id != block.block_id or child.number <= block.number):
            raise IntegrityBroken(f"in the store {store_name!r}, {child.block_id} does not follow {block.block_id}")
        block_ids.add(block.block_id)
        child = block
    return block_ids


def _is_below_head(store: BlockStore, block_id: str) -> bool:
    head = next(store.iter(), None)
    return head is not None and head.block_id != block_id and next(store.get((block_id,)), None) is not None
