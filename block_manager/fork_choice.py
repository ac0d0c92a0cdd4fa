"""Chooses the heaviest branch of a tree of blocks that arrive in any order: `ForkChoice`.

`ForkChoice` holds the blocks that are needed and releases the others, so a program that uses it needs no references of
its own. It does not check the contents of blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from block_manager.errors import BlockStoreError
from block_manager.manager import BlockManager
from block_manager.tree import Block

ORPHANS_MAX = 4_096
KEEP_BLOCKS = 128


class Change(msgspec.Struct, frozen=True):
    """Change: the change to another heaviest branch: a program undoes `undo`, then applies `apply`.

    undo: the blocks that are not on the branch any more, newest first.
    apply: the blocks that are new on the branch, oldest first; the last one is the new head.
    """

    undo: tuple[Block, ...]
    apply: tuple[Block, ...]


class ForkChoice:
    """ForkChoice: the heaviest branch of the blocks that were added. Only one thread may use it.

    head: the newest block of the heaviest branch; None before the first block.
    dropped_count: how many orphans were dropped: there were too many, their number is not above their parent's, or
        another block has their id.

    Invariant: `_tips` has the blocks in the manager that have no child that was added here, each with one reference.
    `_orphans` has the blocks whose parent is not in the manager, by the id of the parent.
    """

    def __init__(
        self,
        manager: BlockManager,
        weight: Callable[[Block], int],
        store_name: str | None = None,
        *,
        keep_blocks: int = KEEP_BLOCKS,
        orphans_max: int = ORPHANS_MAX,
    ) -> None:
        """weight: returns the weight of the branch that ends at a block. Of equal branches, the first one stays.
        store_name: a store of the manager; None: all blocks stay in memory. The head begins as the newest block of the
            store, with its reference from `add_store`, or with a new reference if it has none. A block is
            persisted when `keep_blocks` blocks follow it.
        keep_blocks: how many of the newest blocks of the branch are not persisted. Forks that end below these blocks
            are released. A fork that begins below them can still win; the store changes once that fork is long enough.
        orphans_max: how many blocks without a parent are kept. Beyond this number, the block with the highest number is
            dropped, and must be added again.
        """
        self.dropped_count = 0
        self._manager = manager
        self._weight = weight
        self._store_name = store_name
        self._keep_blocks = keep_blocks
        self._orphans_max = orphans_max
        self.head = None if store_name is None else manager.head(store_name)
        # The head may lack a reference: `add_store` gives no reference to a block with a child in memory, and another
        # `ForkChoice` may have released the reference of the head.
        if self.head is not None and manager.get_reference_count(self.head.block_id).external == 0:
            manager.ref_block(self.head.block_id)
        self._tips = {} if self.head is None else {self.head.block_id: self.head}
        self._orphans: dict[str, dict[str, Block]] = {}
        self._orphan_count = 0

    def add(self, block: Block) -> Change | None:
        """Adds a block, and the orphans that descend from it. Returns the change, or None if the head stays.

        A block whose parent was not added becomes an orphan. Raises NumberNotIncreasing and BlockConflict; then the
        block is not added. Raises BlockStoreError; then add the block again, since its orphans wait for that.
        """
        # Blocks that the last change made deep enough are persisted only now: the program has applied that change.
        self.persist()
        if not self._manager.contains(block.previous_id):
            self._keep_orphan(block)
            return None
        # The list grows while the loop runs over it: each orphan that is put may be the parent of others.
        descendants, taken, dropped_before = [block], list[Block](), self.dropped_count
        try:
            best = self._put(block)
            for parent in descendants:
                children = self._orphans.pop(parent.block_id, {}).values()
                self._orphan_count -= len(children)
                taken += children
                for child in children:
                    (known,) = self._manager.get([child.block_id])
                    if child.number <= parent.number or known not in (None, child):
                        self.dropped_count += 1
                        continue
                    descendants.append(child)
                    best = max(best, self._put(child), key=self._weight)  # of equals, the first
            if self.head is not None and self._weight(best) <= self._weight(self.head):
                return None
            change = self._change_to(best)
        except BlockStoreError:
            # The next try must find the same descendants, even those that are put already or dropped.
            self.dropped_count = dropped_before
            for each in taken:
                self._keep_orphan(each)
            raise
        self.head = best
        return change

    def persist(self) -> None:
        """Persists the blocks that `keep_blocks` blocks of the branch follow. `add` calls it before each change; call
        it after the last change. Raises BlockStoreError.
        """
        if self._store_name is None or self.head is None:
            return
        with self._manager.branch(self.head.block_id) as blocks:
            final = next((block for depth, block in enumerate(blocks) if depth == self._keep_blocks), None)
        if final is None:
            return
        self._manager.persist(final.block_id, self._store_name)
        # Forks that end at this number or below have lost, and are released.
        for tip in [tip for tip in self._tips.values() if tip.number <= final.number and tip != self.head]:
            del self._tips[tip.block_id]
            self._manager.unref_block(tip.block_id)

    def orphans(self) -> Iterable[Block]:
        """Returns the blocks that wait for their parents."""
        return [block for children in self._orphans.values() for block in children.values()]

    def _put(self, block: Block) -> Block:
        is_new = not self._manager.contains(block.block_id)
        self._manager.put([block])
        if is_new:
            self._tips[block.block_id] = block
            # The child holds its parent, so the reference of the parent as a tip is not needed any more.
            if self._tips.pop(block.previous_id, None) is not None:
                self._manager.unref_block(block.previous_id)
        return block

    def _change_to(self, block: Block) -> Change:
        if self.head is None:
            return Change((), tuple(self._manager.branch(block.block_id))[::-1])
        undo = tuple(self._manager.branch_diff(self.head.block_id, block.block_id))
        return Change(undo, tuple(self._manager.branch_diff(block.block_id, self.head.block_id))[::-1])

    def _keep_orphan(self, block: Block) -> None:
        children = self._orphans.setdefault(block.previous_id, {})
        self._orphan_count += block.block_id not in children
        children[block.block_id] = block
        if self._orphan_count > self._orphans_max:
            # The block with the highest number is the least likely to be needed soon.
            last = max(self.orphans(), key=lambda orphan: (orphan.number, orphan.block_id))
            del self._orphans[last.previous_id][last.block_id]
            if not self._orphans[last.previous_id]:
                del self._orphans[last.previous_id]
            self._orphan_count -= 1
            self.dropped_count += 1
