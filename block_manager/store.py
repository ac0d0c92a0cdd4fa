"""What a block store must do to be added to a block manager (RFC block-manager, "Block Store Interface").

A store holds one branch: blocks of which each follows the one before it, with increasing numbers. Its newest
block is its head; its oldest is a first block, or one whose parent was archived elsewhere. A store belongs to
the manager it was added to: from then on nobody else writes to it.

`get` and `iter` may be called in other threads while `put` or `delete` runs; these two are called by one at a
time. Every method raises BlockStoreError for what a disk or a file can cause.
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
        """Atomically delete the displaced blocks and add the others, oldest first: both, or nothing.

        The first must follow the store's head as it is without the displaced blocks. Raises UnknownBlock for a
        displaced block that is not here, BlockStoreError.
        """
        ...

    def get(self, block_ids: Iterable[str]) -> Iterator[Block]:
        """Those of the blocks that are here, in the order asked, as they were at one moment."""
        ...

    def iter(self) -> Iterator[Block]:
        """All blocks from the head down.

        Raises BlockStoreError, rather than mix two branches, where those it stands on were displaced.
        """
        ...

    def delete(self, block_ids: Sequence[str]) -> list[Block]:
        """Atomically delete the newest or the oldest blocks; what they were, in the order asked.

        Raises UnknownBlock, and deletes none, where one is not here.
        """
        ...


def check_follows(blocks: Sequence[Block], head: Block | None) -> None:
    """Whether the blocks continue the branch that ends at `head`. Raises BlockStoreError."""
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
    """Of an `iter` that cannot go on at or below this block."""
    return BlockStoreError(
        f"the store has nothing that follows below block {block_id}: it was displaced meanwhile, or the store is "
        "damaged; iterate again"
    )
