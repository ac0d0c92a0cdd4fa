"""The block manager of RFC block-manager: it keeps every block, and its parents, for as long as somebody refers to it.

It counts references. It does not validate blocks, choose between forks or use a network.

The RFC leaves two questions open.

Can a block live both in a store and in the main cache? No. A body is in memory, or in one or more stores.
`persist` moves it: it leaves memory when the store has it, and comes back when the store gives it up for
another fork. Reference counts do not move: one map has them for blocks on both sides, and an entry for a
stored block exists only while somebody holds that block or a block in memory is its child. So memory is
bounded by the blocks that no store has, plus one small entry for each stored block that is held or forked from,
and `persist` never has to merge two counts of one block.

How is a branch persisted correctly? With D the blocks of the store's branch that are not on the new one, and I
those of the new branch that the store lacks:

1. Hold the new head: nothing of I can be dropped on the way. D is stored, and what is stored is not dropped.
2. Put the bodies of D where every reader looks. The bodies of I are in memory and stay there.
3. The store deletes D and adds I in one transaction: one call, `BlockStore.put(I, D)`.
4. Only then do the bodies of I leave memory, and those of D enter it under the counts they always had.

A reader at any moment finds every block, and no reader waits for the store to write. If step 3 raises, the
store is asked what it has: all of I, then the persist happened; all of D and nothing of I, then it did not. If
it cannot be asked, the bodies of both stay in memory until it can. If there is no I, the head is on the store's
branch already and nothing is done: a branch is never shortened.

Where the RFC and its first implementation differ, this follows the RFC: releasing a stored block never drops it;
a release below zero, a second store of one name and numbers that do not increase are errors. Of what the
RFC leaves open, this is as that implementation: `get` has None for an unknown block, `put` of known blocks
changes nothing, and the head of an added store is held once, for the caller.

A branch with several faults gets one error. The errors that the first implementation has come first, in its order,
which is that of the conditions of the RFC: MissingInput, MissingPredecessor, MissingPredecessorInBranch. The errors
that only this package has, NumberNotIncreasing and BlockConflict, follow for a branch without those faults.
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
    """ManagerStatistics: counts of the blocks in memory, of the persists, and of the stores that were added."""

    tree: TreeStatistics
    persist: PersistStatistics
    store_count: int


class BlockManager:
    """BlockManager: a tree of blocks in memory above any number of stores. Any thread may call any method.

    A call that reaches a store takes as long as the store does.

    Invariant: every block is here with its parent, except first blocks and the oldest blocks of stores; see
    `check_integrity`.
    """

    def __init__(self) -> None:
        self._known = KnownBlocks()
        self._persister = Persister(self._known)

    def put(self, branch: Iterable[Block]) -> None:
        """Atomically add the blocks that are not here yet; the last of them is held once, for the caller.

        The blocks must follow each other with increasing numbers, and the parent of the first must be here or
        be null (RFC, `put`). Blocks that are here are left as they are, with no further hold.

        Raises MissingInput, MissingPredecessor, MissingPredecessorInBranch, NumberNotIncreasing,
        BlockConflict, BlockStoreError; then nothing was added. Of several faults one is raised: see the
        module's last paragraph.
        """
        blocks = list(branch)
        if not blocks:
            raise MissingInput
        first = blocks[0]
        with self._known.lock():
            found = self._known.find_many_locked([first.previous_id, *(block.block_id for block in blocks)])
            parent = found.get(first.previous_id)
            # Condition 1 of the RFC comes before the order inside the branch. Callers that fetch a missing
            # parent and try again depend on it: the parent may be in the same list, behind its child.
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
        """The blocks with these ids, in order, as they were at one moment. None stands for a block that is not here."""
        with self._known.lock():
            found = self._known.find_many_locked(block_ids)
        return iter([found.get(block_id) for block_id in block_ids])

    def contains(self, block_id: str) -> bool:
        """Whether the block is here; the null id always is."""
        return block_id == NULL_BLOCK_ID or self._known.find(block_id) is not None

    def branch(self, tip: str) -> BlockIterator:
        """The blocks from the tip to the root. The tip is held until the end, or until it is closed.

        Raises UnknownBlock here, and BlockStoreError from a step, which may be repeated.
        """
        return BlockIterator(BranchWalk(tip), self._known.find, Hold(self._known, tip))

    def branch_diff(self, tip: str, exclude: str) -> BlockIterator:
        """As `branch`, without the blocks that are on the branch of `exclude` as well. Both are held."""
        return BlockIterator(DiffWalk(tip, exclude), self._known.find, Hold(self._known, tip, exclude))

    def ref_block(self, block_id: str) -> None:
        """Keep the block, and so its ancestors, until a matching `unref_block`. Raises UnknownBlock."""
        with self._known.lock():
            self._known.check_known_locked(block_id)
            self._known.tree.hold(block_id)

    def unref_block(self, block_id: str) -> bool:
        """Release one `ref_block`, or the hold of `put` or `add_store`. Returns whether the block was dropped.

        A stored block is never dropped. Raises UnknownBlock, and ReferenceBelowZero where every such hold was
        released; the holds of iterators and contexts cannot be released here.
        """
        with self._known.lock():
            self._known.check_known_locked(block_id)
            return self._known.tree.release(block_id)

    def ref_block_ctx(self, block_id: str) -> BlockContext:
        """For `with`: it returns the block and holds it inside the `with`. Entering raises UnknownBlock."""
        return BlockContext(self._known, block_id)

    def add_store(self, store_name: str, store: BlockStore) -> None:
        """Take over a store. Its head, if nothing refers to it yet, is held once, for the caller.

        Blocks in memory that the store has are from now on in the store only, with their counts.

        Raises StoreExists, BlockStoreError, and BlockConflict where the store's blocks do not fit those in
        memory.
        """
        self._persister.add_store(store_name, store)

    def persist(self, head: str, store_name: str) -> None:
        """Move the branch that ends at `head` into a store, in one atomic step.

        Blocks that the store held and that are not on this branch come back into memory; those without references
        are dropped. If the store has `head` already, nothing changes. Other calls are served while the store writes.

        Raises UnknownStore, UnknownBlock, and what the store raises: then no block was lost, and the same call
        may be repeated.
        """
        self._persister.persist(head, store_name)

    def get_reference_count(self, block_id: str) -> ReferenceCount:
        """The counts of a block. During a persist, a child may count twice at its parent. Raises UnknownBlock."""
        with self._known.lock():
            self._known.get_many_locked((block_id,))
            entry = self._known.tree.find_references(block_id)
            implicit = any(self._is_below_head_locked(name, block_id) for name in self._known.stores.names())
        if entry is None:
            return ReferenceCount(0, int(implicit))
        return ReferenceCount(entry.external, entry.dependents + implicit)

    def check_integrity(self) -> None:
        """Check every count, every block's parent and every store's branch; the work grows with all of them.

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
