"""A cache of the most recently used blocks. Only one thread at a time may use it."""

from __future__ import annotations

from collections import OrderedDict

from block_manager.block import Block


class LruCache:
    """LruCache: a cache of blocks by id. When the cache is full, a new block replaces the least recently used block.

    Invariant: the cache has at most `block_count_max` blocks, ordered from the least to the most recently used.
    """

    def __init__(self, block_count_max: int) -> None:
        assert block_count_max >= 0, "a cache cannot keep fewer than no blocks"
        self._block_count_max = block_count_max
        self._blocks: OrderedDict[str, Block] = OrderedDict()

    def find(self, block_id: str) -> Block | None:
        """Returns the block with this id, or None if it is not in the cache. Marks the block as the most recently
        used."""
        block = self._blocks.get(block_id)
        if block is not None:
            self._blocks.move_to_end(block_id)
        return block

    def use(self, block: Block) -> None:
        """Add a block, or replace it, and mark it as the most recently used."""
        self._blocks[block.block_id] = block
        self._blocks.move_to_end(block.block_id)
        if len(self._blocks) > self._block_count_max:
            self._blocks.popitem(last=False)

    def discard(self, block_id: str) -> None:
        self._blocks.pop(block_id, None)

    def clear(self) -> None:
        self._blocks.clear()

    def block_ids(self) -> list[str]:
        """Returns the ids of all blocks in the cache, from the least to the most recently used."""
        return list(self._blocks)
