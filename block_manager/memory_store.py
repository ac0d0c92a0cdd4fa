"""A block store in memory, for tests and for programs that do not need their blocks after they end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from threading import Lock

from block_manager.block import Block
from block_manager.errors import BlockStoreError, UnknownBlock
from block_manager.store import changed_error, check_follows


class MemoryStore:
    """MemoryStore: a `BlockStore` in memory.

    blocks: the initial blocks of the store, oldest first.

    Invariant: `_branch` (a list, oldest first) and `_blocks` (a map by id) have the same blocks.
    """

    def __init__(self, blocks: Sequence[Block] = ()) -> None:
        self._lock = Lock()
        self._branch: list[Block] = []
        self._blocks: dict[str, Block] = {}
        self.put(blocks)

    def put(self, blocks: Sequence[Block], displaced_ids: Sequence[str] = ()) -> None:
        with self._lock:
            branch = self._branch_without(displaced_ids)
            check_follows(blocks, branch[-1] if branch else None)
            displaced = set(displaced_ids)
            for block in blocks:
                if block.block_id in self._blocks and block.block_id not in displaced:
                    raise BlockStoreError(f"block {block.block_id} is stored already")
            self._forget(displaced_ids, branch)
            self._branch.extend(blocks)
            self._blocks.update((block.block_id, block) for block in blocks)

    def get(self, block_ids: Iterable[str]) -> Iterator[Block]:
        with self._lock:
            found = [block for block_id in block_ids if (block := self._blocks.get(block_id)) is not None]
        return iter(found)

    def iter(self) -> Iterator[Block]:
        with self._lock:
            block = self._branch[-1] if self._branch else None
        while block is not None:
            yield block
            with self._lock:
                if block.block_id not in self._blocks:
                    raise changed_error(block.block_id)
                block = self._blocks.get(block.previous_id)

    def delete(self, block_ids: Sequence[str]) -> list[Block]:
        with self._lock:
            branch = self._branch_without(block_ids)
            deleted = [self._blocks[block_id] for block_id in block_ids]
            self._forget(block_ids, branch)
        return deleted

    def _branch_without(self, block_ids: Sequence[str]) -> list[Block]:
        """Returns the branch without the blocks that have these ids. Raises UnknownBlock if the store lacks one of
        them.
        """
        if not block_ids:
            return self._branch
        for block_id in block_ids:
            if block_id not in self._blocks:
                raise UnknownBlock(block_id)
        leaving = set(block_ids)
        return [block for block in self._branch if block.block_id not in leaving]

    def _forget(self, block_ids: Sequence[str], branch: list[Block]) -> None:
        self._branch = branch
        for block_id in block_ids:
            self._blocks.pop(block_id, None)
