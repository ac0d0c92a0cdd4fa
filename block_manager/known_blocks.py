"""All blocks of the block manager, in memory and in stores, protected by one lock.

A call keeps the lock while it reads from a store, but never while a store writes. `block_manager.persist` moves blocks
between memory and stores.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Lock

from block_manager.block import NULL_BLOCK_ID, Block
from block_manager.errors import UnknownBlock
from block_manager.stores import StoreSet
from block_manager.tree import ForkTree


class KnownBlocks:
    """KnownBlocks: all blocks of the block manager. Each block is in memory, in the fork tree, or in a store.

    A caller must have taken the lock before it calls a method whose name ends in "_locked".

    Invariant: a block is either in the tree or in at least one store. It can be in both only while `persist` moves it.
    """

    def __init__(self) -> None:
        self.tree = ForkTree()
        self.stores = StoreSet()
        self._lock = Lock()
        self._released_later: deque[tuple[str, ...]] = deque()

    @contextmanager
    def lock(self) -> Iterator[None]:
        with self._lock:
            # Release the references of garbage-collected objects here. The garbage collector cannot do so itself,
            # because it may run while this lock is taken.
            while self._released_later:
                self._release_locked(self._released_later.popleft())
            yield

    def find(self, block_id: str) -> Block | None:
        with self.lock():
            return self.find_locked(block_id)

    def find_locked(self, block_id: str) -> Block | None:
        return self.find_many_locked((block_id,)).get(block_id)

    def find_many_locked(self, block_ids: Iterable[str]) -> dict[str, Block]:
        found: dict[str, Block] = {}
        missing: list[str] = []
        for block_id in block_ids:
            if (block := self.tree.find(block_id)) is not None:
                found[block_id] = block
            elif block_id != NULL_BLOCK_ID:
                missing.append(block_id)
        if missing:
            found |= self.stores.find_many(missing)
        return found

    def get_many_locked(self, block_ids: Iterable[str]) -> list[Block]:
        """Returns the blocks with these ids, in the same order.

        Raises UnknownBlock if one of the blocks is neither in the tree nor in a store.
        """
        wanted = list(block_ids)
        found = self.find_many_locked(wanted)
        for block_id in wanted:
            if block_id not in found:
                raise UnknownBlock(block_id)
        return [found[block_id] for block_id in wanted]

    def check_known_locked(self, block_id: str) -> None:
        """Raises UnknownBlock if a block is neither in memory nor in a store.

        If the block has a reference from outside the manager, it exists for certain, and no store is read.
        """
        entry = self.tree.find_references(block_id)
        if entry is None or not entry.external:
            self.get_many_locked((block_id,))

    # The three methods of `holds.ReferenceCounter`.

    def acquire(self, block_ids: tuple[str, ...]) -> list[Block]:
        with self.lock():
            blocks = self.get_many_locked(block_ids)
            for block_id in block_ids:
                self.tree.hold(block_id, owned=True)
            return blocks

    def release(self, block_ids: tuple[str, ...]) -> None:
        with self.lock():
            self._release_locked(block_ids)

    def release_later(self, block_ids: tuple[str, ...]) -> None:
        self._released_later.append(block_ids)

    def _release_locked(self, block_ids: tuple[str, ...]) -> None:
        for block_id in block_ids:
            self.tree.release(block_id, owned=True)
