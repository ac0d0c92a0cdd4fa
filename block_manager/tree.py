"""The fork tree: the blocks in memory, and the reference counts of all blocks. It does no I/O.

A stored block has an entry of counts, an anchor (RFC block-manager, "Ensuring Integrity"), while it has references or a
child in memory. When a block moves between memory and a store, its counts stay here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from block_manager.errors import (
    BlockConflict,
    IntegrityBroken,
    MissingPredecessorInBranch,
    NumberNotIncreasing,
    ReferenceBelowZero,
)

NULL_BLOCK_ID: Final = "0" * 16
"""The null id: the `previous_id` of a block without a parent. A block must not have this id."""


class Block(msgspec.Struct, frozen=True):
    """Block: one block of a tree of blocks with forks.

    block_id: the unique name of the block. The manager rejects a second, different block with the same id.
    previous_id: the id of the parent. NULL_BLOCK_ID means that the block has no parent.
    number: a number larger than the number of the parent. Numbers need not be consecutive.
    data: the content of the block, as any bytes. The manager never interprets it.
    """

    block_id: str
    previous_id: str
    number: int
    data: bytes = b""


def check_branch(branch: Sequence[Block]) -> None:
    """Checks conditions 2 and 3 of the RFC (`put`): each block is the parent of the next, and the numbers increase.

    Of several faults, raises the first in this order: MissingPredecessorInBranch, NumberNotIncreasing, BlockConflict.
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
    if block.number <= parent.number:
        raise NumberNotIncreasing(block.block_id, block.number, parent.number)


class ReferenceCount(msgspec.Struct, frozen=True):
    """ReferenceCount: the reference count of the RFC for one block, split into two parts.

    external: the number of references that are not from children: from `ref_block`, `put`, `add_store`, iterators,
    context managers and `persist`.
    internal: the number of children that are in memory, plus 1 if a store has both the block and a child of the block.
    """

    external: int
    internal: int

    @property
    def total(self) -> int:
        return self.external + self.internal


class References(msgspec.Struct):
    """References: the reference counts of one block in the fork tree.

    external: the number of references from outside the manager. It includes the references in `owned`.
    owned: the number of references that iterators, context managers and `persist` hold. Only their owner can release
    them.
    dependents: the number of children that are in memory. A child in a store is not counted.
    """

    external: int = 0
    owned: int = 0
    dependents: int = 0

    @property
    def empty(self) -> bool:
        return not self.external and not self.dependents


class TreeStatistics(msgspec.Struct, frozen=True):
    """TreeStatistics: blocks in memory, their external references, and the blocks dropped since the tree was created.

    anchor_count: the number of stored blocks that have reference counts in memory.
    """

    block_count: int
    anchor_count: int
    external_count: int
    purged_count: int


class ForkTree:
    """ForkTree: the blocks in memory, their reference counts, and the reference counts of stored blocks.

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
        return self._blocks.keys()

    def find_references(self, block_id: str) -> References | None:
        return self._entries.get(block_id)

    def add(self, new: Sequence[Block]) -> None:
        """Adds new blocks, parents before children. Each gets one reference: from its child in `new`, or else from the
        caller."""
        for block in new:
            self._insert(block)
        parent_ids = {block.previous_id for block in new}
        for block in new:
            if block.block_id not in parent_ids:
                self.hold(block.block_id)

    def hold(self, block_id: str, *, owned: bool = False) -> None:
        """Adds one external reference to a block that exists. owned: see `References`."""
        entry = self._ensure_entry(block_id)
        entry.external += 1
        entry.owned += owned

    def release(self, block_id: str, *, owned: bool = False) -> bool:
        """Removes one external reference, and drops blocks without any. Returns whether the block itself was dropped.

        A stored block is never dropped; only its counts are removed. Raises ReferenceBelowZero if `owned` is False and
        all external references of the block are owned ones.
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
        """Removes blocks from memory because a store now has them. Their own reference counts stay."""
        for block_id in block_ids:
            block = self._blocks.pop(block_id)
            self._roots.discard(block_id)
            self._drop_empty_anchor(block_id)
            if block.previous_id != NULL_BLOCK_ID:
                self._entries[block.previous_id].dependents -= 1
                self._drop_empty_anchor(block.previous_id)

    def load(self, displaced: Sequence[Block], *, root_id: str | None = None) -> None:
        """Adds blocks that have left a store, children before parents. Drops blocks without references.

        root_id: the id of the only block whose parent need not be in memory or in a store; None: there is none.
        """
        for block in displaced:
            self._insert(block)
            if block.block_id == root_id:
                self._roots.add(block.block_id)
        # Only now are all children counted, so that a block without references really has none.
        for block in displaced:
            self._purge(block.block_id)

    def check(self, is_stored: Callable[[str], bool]) -> None:
        """Checks all blocks in memory and all reference counts. Raises IntegrityBroken."""
        dependents: dict[str, int] = {}
        # Each block has counts, is in one location only, and has its parent unless it is the oldest.
        for block in self._blocks.values():
            dependents[block.previous_id] = dependents.get(block.previous_id, 0) + 1
            if block.block_id not in self._entries:
                raise IntegrityBroken(f"block {block.block_id} has no reference count")
            if is_stored(block.block_id):
                raise IntegrityBroken(f"block {block.block_id} is in memory and in a store")
            if not (self._is_rooted(block) or is_stored(block.previous_id)):
                raise IntegrityBroken(f"block {block.block_id} is here without its parent {block.previous_id}")
        dependents.pop(NULL_BLOCK_ID, None)
        # The children are counted right, and every block that is held exists.
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
        """Drops a block if it has no references. Then drops the parent if it has no references left, and so on."""
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

    def _drop_empty_anchor(self, block_id: str) -> None:
        entry = self._entries.get(block_id)
        if entry is not None and entry.empty and block_id not in self._blocks:
            del self._entries[block_id]
