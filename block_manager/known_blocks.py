"""All blocks of a block manager, in memory and in its stores, under one lock; and the objects that hold references.

A call keeps the lock while it reads from a store, never while a store writes. A reader finds every block that moves:
on its way into a store, it stays in the tree until the store has confirmed it; on its way out, it is in a `Transfer`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Self

import msgspec

from block_manager.errors import UnknownBlock, UnknownStore
from block_manager.store import BlockStore
from block_manager.tree import NULL_BLOCK_ID, Block, ForkTree


class Transfer(msgspec.Struct, frozen=True):
    """Transfer: the blocks that one `persist` call moves into and out of one store.

    inserted: oldest first. displaced: newest first. returning: the displaced blocks that no other store has.
    root_id: if the store loses all its blocks, the id of the oldest one, whose parent can be missing. Otherwise None.
    """

    store_name: str
    inserted: tuple[Block, ...]
    displaced: tuple[Block, ...]
    returning: tuple[Block, ...]
    root_id: str | None


class KnownBlocks:
    """KnownBlocks: all blocks of a block manager. A caller must have taken the lock before it uses `tree`, `stores`, or
    a method whose name ends in "_locked".

    stores: by name, in the order in which they were added. transfer: the blocks that are moving, or None.

    Invariant: a block is either in the tree or in at least one store. It can be in both only while `persist` moves it.
    """

    def __init__(self) -> None:
        self.tree = ForkTree()
        self.stores: dict[str, BlockStore] = {}
        self.transfer: Transfer | None = None
        self._displaced: dict[str, Block] = {}
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
            found |= self.find_stored_locked(missing)
        return found

    def find_stored_locked(self, block_ids: Iterable[str], *, besides: str | None = None) -> dict[str, Block]:
        """Returns these blocks by id from the running transfer and from all stores but the one named `besides`."""
        wanted = dict.fromkeys(block_ids)
        found = {block_id: self._displaced[block_id] for block_id in wanted.keys() & self._displaced.keys()}
        for store_name, store in self.stores.items():
            missing = [block_id for block_id in wanted if block_id not in found]
            if missing and store_name != besides:
                found.update((block.block_id, block) for block in store.get(missing))
        return found

    def get_many_locked(self, block_ids: Iterable[str]) -> list[Block]:
        """Returns the blocks with these ids, in the same order. Raises UnknownBlock if one of them is missing."""
        wanted = list(block_ids)
        found = self.find_many_locked(wanted)
        for block_id in wanted:
            if block_id not in found:
                raise UnknownBlock(block_id)
        return [found[block_id] for block_id in wanted]

    def check_known_locked(self, block_id: str) -> None:
        """Raises UnknownBlock if the block does not exist. A block with an external reference exists for certain, so no
        store is read for it."""
        entry = self.tree.find_references(block_id)
        if entry is None or not entry.external:
            self.get_many_locked((block_id,))

    def get_store_locked(self, store_name: str) -> BlockStore:
        try:
            return self.stores[store_name]
        except KeyError:
            raise UnknownStore(store_name) from None

    def begin_locked(self, transfer: Transfer) -> None:
        assert self.transfer is None, "a second transfer began before the first was settled"
        self.transfer = transfer
        self._displaced = {block.block_id: block for block in transfer.displaced}

    def end_locked(self) -> None:
        self.transfer, self._displaced = None, {}

    def acquire(self, block_ids: tuple[str, ...]) -> list[Block]:
        """Adds one owned reference to each block, or to none and raises UnknownBlock. Returns the blocks."""
        with self.lock():
            blocks = self.get_many_locked(block_ids)
            for block_id in block_ids:
                self.tree.hold(block_id, owned=True)
            return blocks

    def release(self, block_ids: tuple[str, ...]) -> None:
        with self.lock():
            self._release_locked(block_ids)

    def release_later(self, block_ids: tuple[str, ...]) -> None:
        # The garbage collector may call this while the lock is taken, and `release` would then wait for ever.
        self._released_later.append(block_ids)

    def _release_locked(self, block_ids: tuple[str, ...]) -> None:
        for block_id in block_ids:
            self.tree.release(block_id, owned=True)


class Hold:
    """Hold: references to some blocks, one to each. They are released when it is closed or garbage-collected.

    blocks: the blocks, in the order of the ids.
    """

    def __init__(self, known: KnownBlocks, *block_ids: str) -> None:
        self._held_ids: tuple[str, ...] = ()
        self._known = known
        self.blocks = known.acquire(block_ids)
        self._held_ids = block_ids

    def close(self) -> None:
        block_ids, self._held_ids = self._held_ids, ()
        if block_ids:
            self._known.release(block_ids)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._held_ids:
            self._known.release_later(self._held_ids)


class BlockIterator(Iterator[Block]):
    """BlockIterator: an iterator over the blocks of a branch, from the newest block towards the oldest.

    The iterator holds a reference to the first block, and to `exclude` if it is given, until the end of the iteration
    or `close`. So neither these blocks nor their ancestors are dropped. If fetching the next block raises an error, the
    caller can try again: the iterator has not moved.

    Invariant: `_block` is the next block of the branch; None while its id, `_next_id`, was not looked up. `_excluded`
    is the lowest block on the branch of `exclude` that was looked at.
    """

    def __init__(self, known: KnownBlocks, tip: str, exclude: str | None = None) -> None:
        self._find = known.find
        self._hold = Hold(known, tip) if exclude is None else Hold(known, tip, exclude)
        self._next_id = tip
        self._block: Block | None = self._hold.blocks[0]
        self._excluded: Block | None = None if exclude is None else self._hold.blocks[1]

    def __next__(self) -> Block:
        if self._block is None:
            self._block = self._find(self._next_id)
        while (block := self._block) is not None:
            excluded = self._excluded
            if excluded is not None and excluded.block_id == block.block_id:
                break
            # The position at the higher number moves. Numbers increase along every branch, so both positions reach the
            # newest common block; without one, the iteration covers the whole branch.
            if excluded is None or excluded.number <= block.number:
                self._block, self._next_id = None, block.previous_id
                return block
            self._excluded = self._find(excluded.previous_id)
        self.close()
        raise StopIteration

    def close(self) -> None:
        """Ends the iteration and releases the references. A second call does nothing."""
        self._block, self._next_id = None, NULL_BLOCK_ID
        self._hold.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BlockContext:
    """BlockContext: a context manager that keeps one block from being dropped until the end of the `with` statement.

    Source: RFC block-manager, "Ensuring Holds are Released".
    """

    def __init__(self, known: KnownBlocks, block_id: str) -> None:
        self._known = known
        self._block_id = block_id
        self._holds: list[Hold] = []

    def __enter__(self) -> Block:
        """Adds a reference to the block and returns the block. Raises UnknownBlock."""
        hold = Hold(self._known, self._block_id)
        self._holds.append(hold)
        return hold.blocks[0]

    def __exit__(self, *_: object) -> None:
        self._holds.pop().close()
