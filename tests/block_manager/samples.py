"""Blocks, stores that fail, and questions that every test of the block manager asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from block_manager import NULL_BLOCK_ID, Block, BlockManager, BlockStore, BlockStoreError, MemoryStore


def chain(ids: str, parent: str = NULL_BLOCK_ID, number: int = 1) -> list[Block]:
    """Blocks named by the words of `ids`, each the child of the one before."""
    blocks = []
    for offset, block_id in enumerate(ids.split()):
        blocks.append(Block(block_id, parent, number + offset, f"data of {block_id}".encode()))
        parent = block_id
    return blocks


def ids(blocks: Iterable[Block | None]) -> str:
    """The ids in order, `-` for None."""
    return " ".join("-" if block is None else block.block_id for block in blocks)


def counts(manager: BlockManager, block_ids: str) -> str:
    """`id:external:internal` of each."""
    found = [(block_id, manager.get_reference_count(block_id)) for block_id in block_ids.split()]
    return " ".join(f"{block_id}:{count.external}:{count.internal}" for block_id, count in found)


def in_memory(manager: BlockManager) -> int:
    return manager.statistics().tree.block_count


class StoreBroken(BlockStoreError):
    """What `FaultyStore` raises."""


class FaultyStore:
    """Another store, by default in memory, that fails as told.

    before, after: the next `put` raises before or after it was done; partial: the next `put` breaks its promise,
    deletes only, and raises. blind: how many of the `get` behind such a `put` raise; unreadable: how many of the
    next. Hooks run in the middle of every `put`: while nothing is done, and when all is done and nobody knows.
    """

    def __init__(self, blocks: Sequence[Block] = (), *, store: BlockStore | None = None) -> None:
        self._store: BlockStore = MemoryStore(blocks) if store is None else store
        self.before = self.after = self.partial = False
        self.blind = self.unreadable = 0
        self.on_begin: Callable[[], None] = lambda: None
        self.on_done: Callable[[], None] = lambda: None

    def put(self, blocks: Sequence[Block], displaced_ids: Sequence[str] = ()) -> None:
        self.on_begin()
        before, after, partial = self.before, self.after, self.partial
        self.before = self.after = self.partial = False
        if before or after or partial:
            self.unreadable, self.blind = self.blind, 0
        if before:
            raise StoreBroken("before")
        if partial:
            self._store.delete(displaced_ids)
            raise StoreBroken("in the middle")
        self._store.put(blocks, displaced_ids)
        self.on_done()
        if after:
            raise StoreBroken("after")

    def get(self, block_ids: Iterable[str]) -> Iterator[Block]:
        if self.unreadable:
            self.unreadable -= 1
            raise StoreBroken("unreadable")
        return self._store.get(block_ids)

    def iter(self) -> Iterator[Block]:
        return self._store.iter()

    def delete(self, block_ids: Sequence[str]) -> list[Block]:
        return self._store.delete(block_ids)
