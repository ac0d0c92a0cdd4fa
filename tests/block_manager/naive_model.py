"""The block manager once more, as plainly as it can be said: counts are counted anew each time, and what nothing
refers to is looked for everywhere. Written from the RFC and from the answers of `block_manager.manager`."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from block_manager import (
    NULL_BLOCK_ID,
    Block,
    BlockConflict,
    MissingInput,
    MissingPredecessor,
    MissingPredecessorInBranch,
    NumberNotIncreasing,
    ReferenceBelowZero,
    StoreExists,
    UnknownBlock,
    UnknownStore,
)


class NaiveModel:
    """pool: blocks in memory; stores: branches, oldest first; external, owned: holds, the latter of iterators and
    contexts and not part of the former. pending: a persist whose outcome the manager does not know yet."""

    def __init__(self) -> None:
        self.pool: dict[str, Block] = {}
        self.stores: dict[str, list[Block]] = {}
        self.external: Counter[str] = Counter()
        self.owned: Counter[str] = Counter()
        self.pending: tuple[str, str, list[Block], bool] | None = None

    # Questions.

    def find(self, block_id: str) -> Block | None:
        places = [self.pool.values(), *self.stores.values()]
        if self.pending is not None and self.pending[3]:
            places.append(self.pending[2])
        return next((block for place in places for block in place if block.block_id == block_id), None)

    def get_known(self, block_id: str) -> Block:
        block = self.find(block_id)
        if block is None:
            raise UnknownBlock(block_id)
        return block

    def contains(self, block_id: str) -> bool:
        return block_id == NULL_BLOCK_ID or self.find(block_id) is not None

    def is_stored(self, block_id: str) -> bool:
        return any(block.block_id == block_id for store in self.stores.values() for block in store)

    def count(self, block_id: str) -> tuple[int, int]:
        """external, internal."""
        self.get_known(block_id)
        below_head = any(block_id == block.block_id for store in self.stores.values() for block in store[:-1])
        dependents = sum(block.previous_id == block_id for block in self.pool.values())
        return self.external[block_id] + self.owned[block_id], dependents + below_head

    def branch(self, tip: str) -> list[str]:
        self.get_known(tip)
        walked = []
        while (block := self.find(tip)) is not None:
            walked.append(tip)
            tip = block.previous_id
        return walked

    def branch_diff(self, tip: str, exclude: str) -> list[str]:
        walked, excluded = self.branch(tip), self.branch(exclude)
        return [block_id for block_id in walked if block_id not in excluded]

    # Changes.

    def put(self, blocks: list[Block]) -> None:
        if not blocks:
            raise MissingInput
        first = blocks[0]
        if not self.contains(first.previous_id):
            raise MissingPredecessor(first.block_id, first.previous_id)
        for block, child in pairwise(blocks):
            if child.previous_id != block.block_id:
                raise MissingPredecessorInBranch(child.block_id, child.previous_id, block.block_id)
        for block, child in pairwise(blocks):
            if child.number <= block.number:
                raise NumberNotIncreasing(child.block_id, child.number, block.number)
        if len({block.block_id for block in blocks} | {NULL_BLOCK_ID}) <= len(blocks):
            raise BlockConflict(blocks[0].block_id, "twice, or null")
        parent = self.find(first.previous_id)
        if parent is not None and first.number <= parent.number:
            raise NumberNotIncreasing(first.block_id, first.number, parent.number)
        for block in blocks:
            if self.find(block.block_id) not in (None, block):
                raise BlockConflict(block.block_id, "different")
        new = [block for block in blocks if self.find(block.block_id) is None]
        for block in new:
            self.pool[block.block_id] = block
            if all(child.previous_id != block.block_id for child in new):
                self.external[block.block_id] += 1

    def ref_block(self, block_id: str) -> None:
        self.get_known(block_id)
        self.external[block_id] += 1

    def unref_block(self, block_id: str) -> bool:
        self.get_known(block_id)
        if not self.external[block_id]:
            raise ReferenceBelowZero(block_id)
        was_here = block_id in self.pool
        self.external[block_id] -= 1
        self.sweep()
        return was_here and block_id not in self.pool

    def take(self, *block_ids: str) -> None:
        for block_id in block_ids:
            self.get_known(block_id)
        self.owned.update(block_ids)

    def give_back(self, *block_ids: str) -> None:
        self.owned.subtract(block_ids)
        self.sweep()

    def add_store(self, store_name: str, blocks: list[Block]) -> None:
        if store_name in self.stores:
            raise StoreExists(store_name)
        for block in blocks:
            if self.pool.get(block.block_id, block) != block:
                raise BlockConflict(block.block_id, "different")
        if blocks and blocks[0].block_id in self.pool and blocks[0].previous_id in self.pool:
            raise BlockConflict(blocks[0].block_id, "without its parent")
        head = blocks[-1].block_id if blocks else None
        if head is not None and not self._is_referred_to(head) and head not in self.pool:
            self.external[head] += 1
        self.stores[store_name] = list(blocks)
        for block in blocks:
            self.pool.pop(block.block_id, None)

    def persist(self, head: str, store_name: str) -> None:
        if store_name not in self.stores:
            raise UnknownStore(store_name)
        line = [self.get_known(block_id) for block_id in reversed(self.branch(head))]
        self._exchange(store_name, line)

    def defer_persist(self, head: str, store_name: str, *, done: bool) -> None:
        """A persist that raised, whose store then could not be asked. done: whether it was done."""
        line = [self.get_known(block_id) for block_id in reversed(self.branch(head))]
        self.pending = (store_name, head, line, done)

    def settle(self) -> None:
        pending, self.pending = self.pending, None
        if pending is not None and pending[3]:
            self._exchange(pending[0], pending[2])

    def sweep(self) -> None:
        """Drop what nothing refers to, until everything left is referred to."""
        while dropped := [block_id for block_id in self.pool if not self._is_referred_to(block_id)]:
            for block_id in dropped:
                del self.pool[block_id]

    def _is_referred_to(self, block_id: str) -> bool:
        held = self.external[block_id] or self.owned[block_id]
        return bool(held) or any(block.previous_id == block_id for block in self.pool.values())

    def _exchange(self, store_name: str, line: list[Block]) -> None:
        stored = self.stores[store_name]
        if line[-1] in stored:
            return
        common = [block for block in stored if block in line]
        inserted = line[line.index(common[-1]) + 1 :] if common else line
        self.stores[store_name] = common + inserted
        for block in inserted:
            self.pool.pop(block.block_id, None)
        for block in stored:
            if not self.is_stored(block.block_id):
                self.pool[block.block_id] = block
        self.sweep()
