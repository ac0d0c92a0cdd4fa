"""The interface of block stores (RFC block-manager, "Block Store Interface").

A store contains one branch: a sequence of blocks in which each block is the parent of the next one, with increasing
numbers. The newest block is the head. The oldest block can name a parent that the store does not have. After a store
was added to a block manager, only this manager may write to it.

Only one thread at a time may call `put` or `delete`. Other threads can call `get` and `iter` at the same time. Every
method raises BlockStoreError if the disk or the file fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from block_manager.block import Block
from block_manager.errors import BlockManagerError, BlockStoreError
from block_manager.tree import check_branch, check_number


class BlockStore(Protocol):
    """BlockStore: the interface of a place that keeps one branch of blocks."""

    def put(self, blocks: Sequence[Block], displaced_ids: Sequence[str] = ()) -> None:
        """Atomically delete the displaced blocks and add new blocks.

        blocks: the new blocks, oldest first. The parent of the first one must be the newest block that remains in the
        store. If no block remains, any block can be the first one.
        displaced_ids: the ids of the blocks to delete.

        Raises UnknownBlock if the store does not have a displaced block. Raises BlockStoreError. After an error the
        store has made all of the change or none of it.
        """
        ...

    def get(self, block_ids: Iterable[str]) -> Iterator[Block]:
        """Returns the blocks with these ids, in the same order, all from one state of the store.

        An id that the store does not have is skipped.
        """
        ...

    def iter(self) -> Iterator[Block]:
        """Iterates over all blocks from the newest to the oldest.

        Raises BlockStoreError if the next block was removed during the iteration. So one iteration never mixes two
        branches.
        """
        ...

    def delete(self, block_ids: Sequence[str]) -> list[Block]:
        """Atomically delete the newest blocks or the oldest blocks. Returns the deleted blocks in the order of
        `block_ids`.

        Raises UnknownBlock if the store does not have one of the blocks. In this case no block is deleted.
        """
        ...


def check_follows(blocks: Sequence[Block], head: Block | None) -> None:
    """Check that new blocks form a branch that continues after the block `head`. Raises BlockStoreError.

    head: the newest block of the store. None means an empty store, which any branch can start.
    """
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
    """Returns the error for an iteration over a store that cannot continue.

    block_id: the id of the block at which the iteration stopped.
    """
    return BlockStoreError(
        f"the store has nothing that follows below block {block_id}: it was displaced meanwhile, or the store is "
        "damaged; iterate again"
    )
