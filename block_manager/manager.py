"""The block manager of RFC block-manager: it keeps every block, and the ancestors of the block, as long as the block
has a reference.

It counts references. It does not validate blocks, choose between forks or use a network.

The RFC leaves two questions open.

Can a block live both in a store and in the main cache? No. A body is in memory, or in one or more stores.
`persist` moves it: the body leaves memory when the store has it, and returns to memory when the store replaces it by a
block of another fork. Reference counts do not move: one map has the counts of all blocks. The map has an entry for a
stored block only while the block is held or has a child in memory. So memory contains the blocks that no store has,
plus one small entry for each stored block that is held or has a child in memory. And `persist` never has to merge two
counts of one block.

How is a branch persisted correctly? D denotes the blocks of the store's branch that are not on the new branch. I
denotes the blocks of the new branch that the store lacks. The steps are:

1. Hold the new head, so that no block of I can be dropped meanwhile. The blocks of D are stored, and stored blocks are
   never dropped.
2. Put the bodies of D into the transfer, where every reader finds them. The bodies of I are in memory and stay there.
3. The store deletes D and adds I in one transaction: one call, `BlockStore.put(I, D)`.
4. Only then remove the bodies of I from memory, and add the bodies of D to memory. Their counts have not changed.

A reader finds every block at every moment, and no reader waits while the store writes. If step 3 raises, the manager
asks the store which blocks it has. If it has all of I, the persist has happened; if it has all of D and nothing of I,
the persist has not happened. If the store cannot be read, the bodies of I and D stay in memory until it can. If I is
empty, the head is on the store's branch already and nothing is done: a branch is never shortened.

If the RFC and its first implementation differ, this package follows the RFC: releasing a stored block never drops it,
and it is an error to release below zero, to add a second store with the same name, or to put numbers that do not
increase. In these points, which the RFC leaves open, this package does what the first implementation does: `get`
returns None for an unknown block, `put` of known blocks changes nothing, and the head of an added store is held once,
for the caller.

A branch with several faults raises one error. The errors of the first implementation are checked first, in the order of
the conditions in the RFC: MissingInput, MissingPredecessor, MissingPredecessorInBranch. A branch without these faults
is then checked for the errors that only this package has: NumberNotIncreasing and BlockConflict.
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
    """ManagerStatistics: the counters of the blocks in memory, of the persists, and of the added stores."""

    tree: TreeStatistics
    persist: PersistStatistics
    store_count: int


class BlockManager:
    """BlockManager: a tree of blocks in memory above any number of stores. Any thread may call any method.

    A call that reads or writes a store takes as long as the store needs.

    Invariant: for every block, the manager also has its parent, except for first blocks and the oldest blocks of
    stores. `check_integrity` checks this.
    """

    def __init__(self) -> None:
        self._known = KnownBlocks()
        self._persister = Persister(self._known)

    def put(self, branch: Iterable[Block]) -> None:
        """Atomically add the blocks of a branch that the manager does not have yet. The last added block is held once,
        for the caller.

        Each block must be the parent of the next block, the numbers must increase, and the parent of the first block
        must be known or null (RFC, `put`). Blocks that the manager has already stay unchanged and get no further hold.

        Raises MissingInput, MissingPredecessor, MissingPredecessorInBranch, NumberNotIncreasing, BlockConflict,
        BlockStoreError; then nothing was added. The last paragraph of the module's docstring tells which error is
        raised if a branch has several faults.
        """
        blocks = list(branch)
        if not blocks:
            raise MissingInput
        first = blocks[0]
        with self._known.lock():
            found = self._known.find_many_locked([first.previous_id, *(block.block_id for block in blocks)])
            parent = found.get(first.previous_id)
            # Check condition 1 of the RFC before the order inside the branch. Callers that fetch a missing parent and
            # try again depend on it: the parent may be in the same list, behind its child.
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
        """Returns the blocks with these ids, in order, all read at one moment. For a block that the manager does not
        have, the iterator yields None."""
        with self._known.lock():
            found = self._known.find_many_locked(block_ids)
        return iter([found.get(block_id) for block_id in block_ids])

    def contains(self, block_id: str) -> bool:
        """Whether the manager has a block with this id. The result for the null id is always True."""
        return block_id == NULL_BLOCK_ID or self._known.find(block_id) is not None

    def branch(self, tip: str) -> BlockIterator:
        """Returns an iterator over the blocks from the tip to the root. The iterator holds the tip until its end or its
        `close`.

        This method raises UnknownBlock. A step of the iterator may raise BlockStoreError; the step may then be
        repeated.
        """
        return BlockIterator(BranchWalk(tip), self._known.find, Hold(self._known, tip))

    def branch_diff(self, tip: str, exclude: str) -> BlockIterator:
        """Returns an iterator over the blocks from the tip down to, not including, the first block that is also on the
        branch of `exclude`. The iterator holds both blocks until its end or its `close`. Raises the same errors as
        `branch`."""
        return BlockIterator(DiffWalk(tip, exclude), self._known.find, Hold(self._known, tip, exclude))

    def ref_block(self, block_id: str) -> None:
        """Hold a block, and so its ancestors, until a matching `unref_block`. Raises UnknownBlock."""
        with self._known.lock():
            self._known.check_known_locked(block_id)
            self._known.tree.hold(block_id)

    def unref_block(self, block_id: str) -> bool:
        """Release one `ref_block`, or the hold of `put` or `add_store`. Returns whether the block was dropped.

        A stored block is never dropped. Raises UnknownBlock. Raises ReferenceBelowZero if all these holds of the block
        were released already. This method cannot release the holds of iterators and contexts.
        """
        with self._known.lock():
            self._known.check_known_locked(block_id)
            return self._known.tree.release(block_id)

    def ref_block_ctx(self, block_id: str) -> BlockContext:
        """Returns a context manager that holds a block until the end of the `with` statement. Entering it returns the
        block, or raises UnknownBlock."""
        return BlockContext(self._known, block_id)

    def add_store(self, store_name: str, store: BlockStore) -> None:
        """Add a store under a name. From then on, only the manager may write to the store. If the store's head has no
        reference yet, it is held once, for the caller.

        Blocks in memory that the store also has are removed from memory. They keep their reference counts.

        Raises StoreExists and BlockStoreError. Raises BlockConflict if the blocks of the store do not fit the blocks in
        memory.
        """
        self._persister.add_store(store_name, store)

    def persist(self, head: str, store_name: str) -> None:
        """Move the branch that ends at `head` into a store, in one atomic step.

        Blocks of the store that are not on this branch return to memory; the ones without references are dropped. If
        the store has `head` already, nothing changes. Other threads can call the manager while the store writes.

        Raises UnknownStore, UnknownBlock, and every error that the store raises. After an error no block is lost, and
        the same call may be repeated.
        """
        self._persister.persist(head, store_name)

    def get_reference_count(self, block_id: str) -> ReferenceCount:
        """Returns the reference counts of a block. During a persist, a child of the block may be counted twice. Raises
        UnknownBlock."""
        with self._known.lock():
            self._known.get_many_locked((block_id,))
            entry = self._known.tree.find_references(block_id)
            implicit = any(self._is_below_head_locked(name, block_id) for name in self._known.stores.names())
        if entry is None:
            return ReferenceCount(0, int(implicit))
        return ReferenceCount(entry.external, entry.dependents + implicit)

    def check_integrity(self) -> None:
        """Check every reference count, the parent of every block and the branch of every store. The time grows with the
        number of all blocks.

        Raises IntegrityBroken, BlockStoreError.
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
