"""The fork tree: the blocks in memory, which no store has, and the reference counts of all blocks. It does no I/O.

The reference counts also have entries for stored blocks. Such an entry is called an anchor (RFC block-manager,
"Ensuring Integrity"). An anchor exists while the stored block has references or has a child in memory. When a block
moves between memory and a store, its reference counts stay here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise

import msgspec

from block_manager.block import NULL_BLOCK_ID, Block
from block_manager.errors import (
    BlockConflict,
    IntegrityBroken,
    MissingPredecessorInBranch,
    NumberNotIncreasing,
    ReferenceBelowZero,
)
from block_manager.references import References


class TreeStatistics(msgspec.Struct, frozen=True):
    """TreeStatistics: counters of the fork tree.

    block_count: the number of blocks in memory.
    anchor_count: the number of stored blocks that have reference counts in memory.
    external_count: the number of references from outside the manager, over all blocks.
    purged_count: the number of blocks that were dropped since the tree was created.
    """

    block_count: int
    anchor_count: int
    external_count: int
    purged_count: int


def check_branch(branch: Sequence[Block]) -> None:
    """Check that each block is the parent of the next block and that the numbers increase.

    Source: RFC, `put`, conditions 2 and 3.

    Raises MissingPredecessorInBranch if the parent of a block is not the preceding block. Otherwise raises
    NumberNotIncreasing if the numbers do not increase. Otherwise raises BlockConflict if an id occurs twice, or is
    NULL_BLOCK_ID, which means "no block".
    """
    for before, block in pairwise(branch):
        if block.previous_id != before.block_id:
            raise MissingPredecessorInBranch(block.block_id, block.previous_id, before.block_id)
    for before, block in pairwise(branch):
        check_number(block, before)
    seen: set[str] = set()
    for block in branch:
        if block.block_id == NULL_BLOCK_ID:
            raise BlockConflict(block.block_id, "this id stands for no block")
        if block.block_id in seen:
            raise BlockConflict(block.block_id, "it is twice in one branch")
        seen.add(block.block_id)


def check_number(block: Block, parent: Block) -> None:
    """Raises NumberNotIncreasing if the number of a block is not larger than the number of its parent."""
    if block.number <= parent.number:
        raise NumberNotIncreasing(block.block_id, block.number, parent.number)


class ForkTree:
    """ForkTree: the blocks in memory, their reference counts, and anchors: the reference counts of stored blocks.

    Invariant: the `dependents` count of every entry is the number of children of the block in the tree. Every block in
    the tree has an entry. No entry has only zero counts.
    """

    def __init__(self) -> None:
        self._blocks: dict[str, Block] = {}
        self._entries: dict[str, References] = {}
        self._roots: set[str] = set()
        self._purged_count = 0

    def find(self, block_id: str) -> Block | None:
        return self._blocks.get(block_id)

    def block_ids(self) -> Collection[str]:
        """Returns the ids of the blocks in memory."""
        return self._blocks.keys()

    def find_references(self, block_id: str) -> References | None:
        return self._entries.get(block_id)

    def add(self, new: Sequence[Block]) -> None:
        """Add blocks that neither the tree nor a store has.

        new: the blocks, parents before children. The parent of the first block must be in the tree or in a store, or
        must be the null id.

        Each new block has one reference afterwards (RFC, `put`): from its child in `new`, or from the caller if the
        block has no child in `new`.
        """
        for block in new:
            self._insert(block)
        parent_ids = {block.previous_id for block in new}
        for block in new:
            if block.block_id not in parent_ids:
                self.hold(block.block_id)

    def hold(self, block_id: str, *, owned: bool = False) -> None:
        """Add one external reference to a block. The caller has checked that the block exists.

        owned: whether the reference belongs to an iterator, a context manager or a `persist` call. Only its owner
        releases such a reference.
        """
        entry = self._ensure_entry(block_id)
        entry.external += 1
        entry.owned += owned

    def release(self, block_id: str, *, owned: bool = False) -> bool:
        """Remove one external reference to a block. Returns whether the block was dropped.

        A block in memory is dropped when it has no references. Then its parent is dropped if the parent has no
        references either, and so on. A stored block is never dropped; only its reference counts are removed.

        owned: whether the reference belongs to an iterator, a context manager or a `persist` call.

        Raises ReferenceBelowZero if `owned` is False and all external references of the block have such an owner.
        """
        entry = self._entries.get(block_id)
        if owned:
            assert entry is not None, f"an owned reference to {block_id} was lost"
            assert entry.owned, f"an owned reference to {block_id} was released twice"
            entry.owned -= 1
        elif entry is None or entry.external == entry.owned:
            raise ReferenceBelowZero(block_id)
        entry.external -= 1
        here = block_id in self._blocks
        self._purge(block_id)
        return here and block_id not in self._blocks

    def unload(self, block_ids: Iterable[str]) -> None:
        """Remove blocks from memory because a store now has them. Their own reference counts do not change."""
        for block_id in block_ids:
            block = self._blocks.pop(block_id)
            self._roots.discard(block_id)
            self._drop_empty_anchor(block_id)
            self._leave_parent(block)

    def load(self, displaced: Sequence[Block], *, root_id: str | None = None) -> None:
        """Add blocks to memory after their removal from a store, because no other store has them.

        They keep their reference counts. Blocks without references are dropped at once.

        displaced: the blocks, children before parents.
        root_id: the id of the only block whose parent need not be in memory or in a store. None means that every parent
        must be there.
        """
        for block in displaced:
            self._insert(block)
            if block.block_id == root_id:
                self._roots.add(block.block_id)
        for block in displaced:
            self._purge(block.block_id)

    def check(self, is_stored: Callable[[str], bool]) -> None:
        """Check all blocks in memory and all reference counts. Raises IntegrityBroken if something is wrong.

        Each block in memory must have reference counts, and must not also be in a store. Its parent must exist, unless
        the block is the oldest. The counts of children must be right. Each block with references from outside must be
        in memory or in a store.

        is_stored: a function that returns whether a store has the block with a given id.
        """
        dependents: dict[str, int] = {}
        for block in self._blocks.values():
            dependents[block.previous_id] = dependents.get(block.previous_id, 0) + 1
            if block.block_id not in self._entries:
                raise IntegrityBroken(f"block {block.block_id} has no reference count")
            if is_stored(block.block_id):
                raise IntegrityBroken(f"block {block.block_id} is in memory and in a store")
            if not (self._is_rooted(block) or is_stored(block.previous_id)):
                raise IntegrityBroken(f"block {block.block_id} is here without its parent {block.previous_id}")
        dependents.pop(NULL_BLOCK_ID, None)
        for block_id, entry in self._entries.items():
            if entry.empty or not 0 <= entry.owned <= entry.external:
                raise IntegrityBroken(f"block {block_id} has the impossible counts {entry}")
            if entry.dependents != dependents.pop(block_id, 0):
                raise IntegrityBroken(f"block {block_id} does not have the dependents of its count {entry}")
            if block_id not in self._blocks and entry.external and not is_stored(block_id):
                raise IntegrityBroken(f"block {block_id} is held, but is nowhere")
        if dependents:
            raise IntegrityBroken(f"the dependents of {sorted(dependents)} are not counted")

    def statistics(self) -> TreeStatistics:
        return TreeStatistics(
            block_count=len(self._blocks),
            anchor_count=len(self._entries) - len(self._blocks),
            external_count=sum(entry.external for entry in self._entries.values()),
            purged_count=self._purged_count,
        )

    def _is_rooted(self, block: Block) -> bool:
        return block.previous_id == NULL_BLOCK_ID or block.previous_id in self._blocks or block.block_id in self._roots

    def _ensure_entry(self, block_id: str) -> References:
        entry = self._entries.get(block_id)
        if entry is None:
            entry = self._entries[block_id] = References()
        return entry

    def _insert(self, block: Block) -> None:
        assert block.block_id not in self._blocks, f"block {block.block_id} is in memory already"
        self._blocks[block.block_id] = block
        self._ensure_entry(block.block_id)
        if block.previous_id != NULL_BLOCK_ID:
            self._ensure_entry(block.previous_id).dependents += 1

    def _purge(self, block_id: str) -> None:
        """Drop a block if it has no references. Then drop the parent if it has no references left, and so on."""
        while (entry := self._entries.get(block_id)) is not None and entry.empty:
            del self._entries[block_id]
            block = self._blocks.pop(block_id, None)
            if block is None or block.previous_id == NULL_BLOCK_ID:
                self._purged_count += block is not None
                return
            self._roots.discard(block_id)
            self._purged_count += 1
            self._entries[block.previous_id].dependents -= 1
            block_id = block.previous_id

    def _leave_parent(self, block: Block) -> None:
        if block.previous_id != NULL_BLOCK_ID:
            self._entries[block.previous_id].dependents -= 1
            self._drop_empty_anchor(block.previous_id)

    def _drop_empty_anchor(self, block_id: str) -> None:
        """Remove the entry with the reference counts of a stored block if all counts are zero.

        The entry of a block in memory is not removed.
        """
        entry = self._entries.get(block_id)
        if entry is not None and entry.empty and block_id not in self._blocks:
            del self._entries[block_id]
