"""Holds: objects that keep blocks from being dropped. Each releases its blocks exactly once, however it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol, Self

from block_manager.block import Block
from block_manager.walk import Walk


class ReferenceCounter(Protocol):
    """ReferenceCounter: the side of the block manager that holds need. It counts who refers to which block."""

    def acquire(self, block_ids: tuple[str, ...]) -> list[Block]:
        """Count one reference to each block, and return the blocks.

        Raises UnknownBlock where a block is not here; then no reference is counted.
        """
        ...

    def release(self, block_ids: tuple[str, ...]) -> None:
        """Count one reference less to each block. A block without references is dropped."""
        ...

    def release_later(self, block_ids: tuple[str, ...]) -> None:
        """As `release`, but only when the block manager is called next.

        The garbage collector calls this at any moment, also while the block manager holds its own lock.
        """
        ...


class Hold:
    """Hold: references to some blocks. They count from its creation until `close`, or until it is garbage."""

    def __init__(self, counter: ReferenceCounter, *block_ids: str) -> None:
        self._held_ids: tuple[str, ...] = ()
        self._counter = counter
        self.blocks = counter.acquire(block_ids)
        self._held_ids = block_ids

    def close(self) -> None:
        """Release the blocks. Safe to repeat."""
        block_ids, self._held_ids = self._held_ids, ()
        if block_ids:
            self._counter.release(block_ids)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if self._held_ids:
            self._counter.release_later(self._held_ids)


class BlockIterator(Iterator[Block]):
    """BlockIterator: the blocks of a walk, from a tip towards the root.

    It holds the block at which the walk began, and so all ancestors of that block, until its end or `close`. A step
    that raised may be repeated: the iterator is where it was.
    """

    def __init__(self, walk: Walk, find: Callable[[str], Block | None], hold: Hold) -> None:
        self._walk: Walk | None = walk
        self._find = find
        self._hold = hold

    def __next__(self) -> Block:
        block = None if self._walk is None else self._walk.step(self._find)
        if block is None:
            self.close()
            raise StopIteration
        return block

    def close(self) -> None:
        """End the walk and release its blocks. Safe to repeat."""
        self._walk = None
        self._hold.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class BlockContext:
    """BlockContext: for `with`; it holds one block inside the `with` (RFC, "Ensuring Holds are Released")."""

    def __init__(self, counter: ReferenceCounter, block_id: str) -> None:
        self._counter = counter
        self._block_id = block_id
        self._holds: list[Hold] = []

    def __enter__(self) -> Block:
        """Raises UnknownBlock."""
        hold = Hold(self._counter, self._block_id)
        self._holds.append(hold)
        return hold.blocks[0]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._holds.pop().close()
