"""The interface of block stores (RFC block-manager, "Block Store Interface").

A store holds one branch: blocks of which each follows the one before it, with increasing numbers. Its newest
block is its head; its oldest is a first block, or a block whose parent was archived elsewhere. A store belongs to
the manager that it was added to: from then on nobody else writes to it.

Other threads may call `get` and `iter` while `put` or `delete` runs. Only one thread at a time calls `put` or
`delete`. Every method raises BlockStoreError for a failure of the disk or the file.
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
        """The asked blocks that are here, in the order asked, as they were at one moment."""
        ...

    def iter(self) -> Iterator[Block]:
        """All blocks from the head down.

        Raises BlockStoreError where the next block was displaced meanwhile: it never mixes two branches.
        """
        ...

    def delete(self, block_ids: Sequence[str]) -> list[Block]:
        """Atomically delete the newest or the oldest blocks. Returns them in the order asked.

        Raises UnknownBlock where a block is not here; then none is deleted.
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
    """The error of an `iter` that cannot go on at or below this block."""
    return BlockStoreError(
        f"the store has nothing that follows below block {block_id}: it was displaced meanwhile, or the store is "
        "damaged; iterate again"
    )
