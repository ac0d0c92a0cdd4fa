"""The interface of block stores (RFC block-manager, "Block Store Interface").

A store contains one branch: a sequence of blocks in which each block is the parent of the next block, with increasing
numbers. Its newest block is its head. Its oldest block is a first block, or a block whose parent was archived
elsewhere. When a store was added to a manager, only that manager may write to it.

Other threads may call `get` and `iter` while `put` or `delete` runs. Only one thread at a time calls `put` or `delete`.
Every method raises BlockStoreError for a failure of the disk or the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from block_manager.block import Block
from block_manager.errors import BlockManagerError, BlockStoreError
from block_manager.tree import check_branch, check_number


class BlockStore(Protocol):
    """BlockStore: a place that keeps one branch of blocks, from its oldest block to its head."""

    def put(self, blocks: Sequence[Block], displaced_ids: Sequence[str] = ()) -> None:
        """Atomically delete the displaced blocks and add the new blocks: both, or nothing.

        blocks: the new blocks, oldest first. The parent of the first one must be the head that the store has without
        the displaced blocks. Raises UnknownBlock if the store does not have a displaced block. Raises BlockStoreError.
        """
        ...

    def get(self, block_ids: Iterable[str]) -> Iterator[Block]:
        """Returns the blocks with these ids, in order, all read at one moment. Ids that the store does not have are
        left out."""
        ...

    def iter(self) -> Iterator[Block]:
        """Iterates over all blocks from the head to the oldest block.

        Raises BlockStoreError if the next block was displaced meanwhile, so one iteration never mixes two branches.
        """
        ...

    def delete(self, block_ids: Sequence[str]) -> list[Block]:
        """Atomically delete the newest or the oldest blocks. Returns the deleted blocks in the order of `block_ids`.

        Raises UnknownBlock if the store does not have a block; then no block is deleted.
        """
        ...


def check_follows(blocks: Sequence[Block], head: Block | None) -> None:
    """Check that the blocks continue the branch that ends at `head`. Raises BlockStoreError."""
    if not blocks:
        return
    try:
        check_branch(blocks)
        if head is None:
            return
        check_number(blocks[0], head)
    except BlockManagerError as error:
        raise BlockStoreError(f"the blocks are no branch: {error}") from error
    if blocks[0].previous_id != head.block_id:
        raise BlockStoreError(f"block {blocks[0].block_id} does not follow the store's head {head.block_id}")


def changed_error(block_id: str) -> BlockStoreError:
    """Returns the error for an `iter` call that cannot continue at or below this block."""
    return BlockStoreError(
        f"the store has nothing that follows below block {block_id}: it was displaced meanwhile, or the store is "
        "damaged; iterate again"
    )
