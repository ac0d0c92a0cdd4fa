"""The block manager of RFC block-manager: it keeps each block, and the ancestors of the block, while the block has
references.

It does not validate blocks, choose between forks or use a network. The RFC leaves two questions open.

Can a block be both in a store and in memory? No. `persist` moves a block out of memory when a store has the block. If
the store later replaces the block by a block of another fork, the old block returns to memory.

The reference counts do not move: one map in memory has the counts of all blocks. The map has an entry for a stored
block only while the block has references or a child in memory. So `persist` never has to merge two counts of one block.

How is a branch moved into a store correctly? Let D be the blocks of the store that are not on the new branch. Let I be
the blocks of the new branch that the store lacks. The steps are:

1. Add a reference to the newest block of the new branch, so that no block of I can be dropped. Blocks of D are in the
   store, and stored blocks are never dropped.
2. Copy the blocks of D to a temporary place in memory, the `Transfer`, where readers find them. The blocks of I are
   still in the tree.
3. The store deletes D and adds I in one transaction: one call, `BlockStore.put(I, D)`.
4. After the transaction, remove the blocks of I from the tree and add the blocks of D to it. The reference counts do
   not change.

A reader always finds every block, and no reader waits while the store writes. If step 3 raises an error, the manager
asks the store which blocks it has. If the store has all of I, the change was made. If the store has all of D and
nothing of I, the change was not made. If the store cannot be read, all blocks of I and D stay in memory until the store
can be read again.

If I is empty, the store already has the whole branch, and nothing is done. `persist` never shortens a stored branch.

If the RFC and its first implementation differ, this package follows the RFC in three points:

- Releasing a stored block never drops it.
- It is an error to release a block without references, or to add a second store with the same name.
- It is an error to put blocks whose numbers do not increase.

The RFC leaves three more points open. Here this package does the same as the first implementation:

- `get` yields None for an unknown block.
- `put` does not change blocks that the manager already has.
- `add_store` adds a reference to the newest block of the store on behalf of the caller.

If a branch has several faults, only one error is raised. The errors of the first implementation are checked first, in
the order of the RFC: MissingInput, MissingPredecessor, MissingPredecessorInBranch. NumberNotIncreasing and
BlockConflict, which only this package has, are checked after them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from block_manager.block import NULL_BLOCK_ID, Block
from block_manager.errors import BlockConflict, MissingInput, MissingPredecessor
from block_manager.holds import BlockContext, BlockIterator, Hold
from block_manager.known_blocks import KnownBlocks
from block_manager.persist import Persister, PersistStatistics
from block_manager.references import ReferenceCount
from block_manager.store import BlockStore
from block_manager.tree import TreeStatistics, check_branch, check_number
from block_manager.walk import BranchWalk, DiffWalk


class ManagerStatistics(msgspec.Struct, frozen=True):
    """ManagerStatistics: the counters of the block manager.

    tree: the counters of the blocks in memory.
    persist: the counters of `persist` calls.
    store_count: the number of stores that were added.
    """

    tree: TreeStatistics
    persist: PersistStatistics
    store_count: int


class BlockManager:
    """BlockManager: a tree of blocks with forks, partly in memory and partly in stores. Any thread may call any method.

    A call that reads or writes a store takes as long as the store needs.

    Invariant: the manager has the parent of every block, except for blocks without a parent and the oldest block of a
    store. `check_integrity` checks this.
    """

    def __init__(self) -> None:
        self._known = KnownBlocks()
        self._persister = Persister(self._known)

    def put(self, branch: Iterable[Block]) -> None:
        """Atomically add the new blocks of a branch. The last added block gets one reference on behalf of the caller.

        branch: the blocks, oldest first. Each block must be the parent of the next one, and the numbers must increase.
        The manager must already have the parent of the first block, unless the first block has no parent (RFC, `put`).
        Blocks that the manager already has do not change and get no reference.

        Raises MissingInput, MissingPredecessor, MissingPredecessorInBranch, NumberNotIncreasing, BlockConflict or
        BlockStoreError. After an error nothing is added. If a branch has several faults, the docstring of this module
        says which error is raised.
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
        """Returns an iterator over the blocks with these ids, in the same order.

        The iterator yields None for a block that the manager does not have. All blocks are read at once, before this
        method returns.
        """
        with self._known.lock():
            found = self._known.find_many_locked(block_ids)
        return iter([found.get(block_id) for block_id in block_ids])

    def contains(self, block_id: str) -> bool:
        """Returns whether the manager has a block with this id.

        Returns True also for NULL_BLOCK_ID, which means "no parent".
        """
        return block_id == NULL_BLOCK_ID or self._known.find(block_id) is not None

    def branch(self, tip: str) -> BlockIterator:
        """Returns an iterator over the blocks from the block `tip` to its oldest ancestor.

        The iterator holds a reference to the tip until the end of the iteration or `close`.

        Raises UnknownBlock if the manager does not have the tip. Each step of the iterator can raise BlockStoreError;
        the caller can then repeat the step.
        """
        return BlockIterator(BranchWalk(tip), self._known.find, Hold(self._known, tip))

    def branch_diff(self, tip: str, exclude: str) -> BlockIterator:
        """Returns an iterator over the blocks that are on the branch of `tip` but not on the branch of `exclude`.

        The branch of a block is the block and all its ancestors. The blocks come newest first. The iterator holds
        references to both blocks until the end of the iteration or `close`. Raises the same errors as `branch`.
        """
        return BlockIterator(DiffWalk(tip, exclude), self._known.find, Hold(self._known, tip, exclude))

    def ref_block(self, block_id: str) -> None:
        """Add a reference to a block. So the block and its ancestors are kept until a matching `unref_block`.

        Raises UnknownBlock.
        """
        with self._known.lock():
            self._known.check_known_locked(block_id)
            self._known.tree.hold(block_id)

    def unref_block(self, block_id: str) -> bool:
        """Remove one reference that `ref_block`, `put` or `add_store` added. Returns whether the block was dropped.

        A stored block is never dropped. This method cannot remove the references of iterators and context managers.

        Raises UnknownBlock. Raises ReferenceBelowZero if the block has no reference that this method can remove.
        """
        with self._known.lock():
            self._known.check_known_locked(block_id)
            return self._known.tree.release(block_id)

    def ref_block_ctx(self, block_id: str) -> BlockContext:
        """Returns a context manager that holds a reference to a block until the end of the `with` statement.

        Entering it returns the block. Entering it raises UnknownBlock if the manager does not have the block.
        """
        return BlockContext(self._known, block_id)

    def add_store(self, store_name: str, store: BlockStore) -> None:
        """Add a store, with the blocks it has, under a name. After this call only the manager may write to the store.

        Blocks that are both in memory and in the store are removed from memory and keep their reference counts. If the
        newest block of the store has no references, it gets one on behalf of the caller.

        Raises StoreExists and BlockStoreError. Raises BlockConflict if the blocks of the store contradict the blocks in
        memory.
        """
        self._persister.add_store(store_name, store)

    def head(self, store_name: str) -> Block | None:
        """Returns the newest block of a store, or None if the store is empty.

        Raises UnknownStore and BlockStoreError.
        """
        with self._known.lock():
            return next(self._known.stores.get(store_name).iter(), None)

    def persist(self, head: str, store_name: str) -> None:
        """Move the branch that ends at the block `head` into a store, in one atomic step.

        Blocks of the store that are not on this branch return to memory. The ones without references are dropped. If
        the store already has `head`, nothing changes. Other threads can use the manager while the store writes.

        Raises UnknownStore, UnknownBlock, IntegrityBroken, and every error that the store raises. After an error no
        block is lost, and the caller can repeat the call.
        """
        self._persister.persist(head, store_name)

    def get_reference_count(self, block_id: str) -> ReferenceCount:
        """Returns the reference count of a block. A child can be counted twice while `persist` runs. Raises
        UnknownBlock.
        """
        with self._known.lock():
            self._known.get_many_locked((block_id,))
            entry = self._known.tree.find_references(block_id)
            implicit = any(self._is_below_head_locked(name, block_id) for name in self._known.stores.names())
        if entry is None:
            return ReferenceCount(0, int(implicit))
        return ReferenceCount(entry.external, entry.dependents + implicit)

    def check_integrity(self) -> None:
        """Check every reference count, the parent of every block and the branch in every store.

        The time grows with the total number of blocks. Raises IntegrityBroken and BlockStoreError.
        """
        self._persister.check()

    def statistics(self) -> ManagerStatistics:
        with self._known.lock():
            return ManagerStatistics(
                tree=self._known.tree.statistics(),
                persist=self._persister.statistics(),
                store_count=len(self._known.stores.names()),
            )

    def _is_below_head_locked(self, store_name: str, block_id: str) -> bool:
        store = self._known.stores.get(store_name)
        head = next(store.iter(), None)
        return head is not None and head.block_id != block_id and next(store.get((block_id,)), None) is not None
