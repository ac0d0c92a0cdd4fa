"""A cache of the blocks that were used last, up to a count. One thread at a time may use it; it reads no store."""

from __future__ import annotations

from collections import OrderedDict

from block_manager.block import Block


class LruCache:
    """LruCache: blocks by id. A new block pushes out the block that was used longest ago.

    Invariant: at most `block_count_max` blocks, the one used longest ago first.
    """

    def __init__(self, block_count_max: int) -> None:
        assert block_count_max >= 0, "a cache cannot keep fewer than no blocks"
        self._block_count_max = block_count_max
        self._blocks: OrderedDict[str, Block] = OrderedDict()

    def find(self, block_id: str) -> Block | None:
        """The block with this id, which becomes the block used last; None where the cache lacks it."""
        block = self._blocks.get(block_id)
        if block is not None:
            self._blocks.move_to_end(block_id)
        return block

    def use(self, block: Block) -> None:
        """Remember a block that was written, or that was read from the disk, as the block used last."""
        self._blocks[block.block_id] = block
        self._blocks.move_to_end(block.block_id)
        if len(self._blocks) > self._block_count_max:
            self._blocks.popitem(last=False)

    def discard(self, block_id: str) -> None:
        self._blocks.pop(block_id, None)

    def clear(self) -> None:
        self._blocks.clear()

    def block_ids(self) -> list[str]:
        """From the one used longest ago to the one used last."""
        return list(self._blocks)
