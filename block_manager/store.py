"""The interface of block stores (RFC block-manager, "Block Store Interface"), a store in memory, and `open_store`.

A store contains one branch: a sequence of blocks in which each block is the parent of the next one, with increasing
numbers. The newest block is the head. The oldest block can name a parent that the store does not have. After a store
was added to a block manager, only this manager may write to it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Lock
from typing import Protocol

from block_manager.errors import BlockManagerError, BlockStoreError, UnknownBlock
from block_manager.tree import Block, check_branch, check_number


class BlockStore(Protocol):
    """BlockStore: the interface of a location that keeps one branch of blocks.

    Only one thread at a time may call `put` or `delete`. Other threads can call `get` and `iter` at the same time.
    Every method raises BlockStoreError if the disk or the file fails.
    """

    def put(self, blocks: Sequence[Block], displaced_ids: Sequence[str] = ()) -> None:
        """Atomically deletes the displaced blocks and adds new blocks.

        blocks: the new blocks, oldest first. The parent of the first one must be the newest block that remains in the
        store. If no block remains, any block can be the first one.
        displaced_ids: the ids of the blocks to delete.

        Raises UnknownBlock. After an error the store has made all of the change or none of it.
        """
        ...

    def get(self, block_ids: Iterable[str]) -> Iterator[Block]:
        """Returns the blocks with these ids, in the same order, from one state of the store. Skips unknown ids."""
        ...

    def iter(self) -> Iterator[Block]:
        """Iterates over all blocks, newest first. Raises BlockStoreError if the next block was removed meanwhile."""
        ...

    def delete(self, block_ids: Sequence[str]) -> list[Block]:
        """Deletes and returns the newest or the oldest blocks: all of them, or none and raises UnknownBlock."""
        ...


def check_follows(blocks: Sequence[Block], head: Block | None) -> None:
    """Raises BlockStoreError if new blocks are not one branch that continues `head`. None: the store is empty."""
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
    """Returns the error of an iteration that cannot continue below the block with this id."""
    return BlockStoreError(
        f"the store has nothing that follows below block {block_id}: it was displaced meanwhile, or the store is "
        "damaged; iterate again"
    )


class MemoryStore:
    """MemoryStore: a `BlockStore` in memory, for tests and for programs that do not need their blocks after they end.

    blocks: the initial blocks of the store, oldest first.

    Invariant: `_blocks`, a map by id, has the blocks oldest first.
    """

    def __init__(self, blocks: Sequence[Block] = ()) -> None:
        self._lock = Lock()
        self._blocks: dict[str, Block] = {}
        self.put(blocks)

    def put(self, blocks: Sequence[Block], displaced_ids: Sequence[str] = ()) -> None:
        with self._lock:
            remaining = self._without(displaced_ids)
            check_follows(blocks, _newest(remaining))
            for block in blocks:
                if block.block_id in remaining:
                    raise BlockStoreError(f"block {block.block_id} is stored already")
            remaining.update((block.block_id, block) for block in blocks)
            self._blocks = remaining

    def get(self, block_ids: Iterable[str]) -> Iterator[Block]:
        with self._lock:
            found = [block for block_id in block_ids if (block := self._blocks.get(block_id)) is not None]
        return iter(found)

    def iter(self) -> Iterator[Block]:
        with self._lock:
            block = _newest(self._blocks)
        while block is not None:
            yield block
            with self._lock:
                if block.block_id not in self._blocks:
                    raise changed_error(block.block_id)
                block = self._blocks.get(block.previous_id)

    def delete(self, block_ids: Sequence[str]) -> list[Block]:
        with self._lock:
            remaining = self._without(block_ids)
            deleted = [self._blocks[block_id] for block_id in block_ids]
            self._blocks = remaining
        return deleted

    def _without(self, block_ids: Sequence[str]) -> dict[str, Block]:
        """Returns the blocks that remain without these. Raises UnknownBlock if the store lacks one of them."""
        if not block_ids:
            return self._blocks
        for block_id in block_ids:
            if block_id not in self._blocks:
                raise UnknownBlock(block_id)
        leaving = set(block_ids)
        return {block_id: block for block_id, block in self._blocks.items() if block_id not in leaving}


def _newest(blocks: dict[str, Block]) -> Block | None:
    return next(reversed(blocks.values()), None)


@contextmanager
def open_store(folder: str | os.PathLike[str], name: str = "commit") -> Iterator[BlockStore]:
    """Opens a commit store in a database of its own, and closes it at the end of the `with` statement.

    folder: the folder of the database; it is made if it does not exist. Only one process can have it open.
    name: the name of the store; one database can contain several.

    Raises StorageError, for example if another process has the database open, and BlockStoreError.
    """
    # A manager without a database needs none of these modules. The import adds a table to the schema.
    from block_manager.commit_store import CommitStore
    from block_manager.transactions import SessionTransactions
    from stream_storage.sqlite.database import Database

    with (
        closing(Database.open(Path(folder))) as database,
        closing(SessionTransactions(database, on_fatal=database.distrust)) as transactions,
    ):
        yield CommitStore(transactions, name)
