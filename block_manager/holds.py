"""Holds: objects that keep blocks from being dropped. Each hold releases its blocks exactly once, when it is closed or
garbage-collected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol, Self

from block_manager.block import Block
from block_manager.walk import Walk


class ReferenceCounter(Protocol):
    """ReferenceCounter: the interface through which holds use the block manager. It counts the references to each
    block."""

    def acquire(self, block_ids: tuple[str, ...]) -> list[Block]:
        """Count one reference to each block, and return the blocks.

        Raises UnknownBlock if the block manager does not have a block; then no reference is counted.
        """
        ...

    def release(self, block_ids: tuple[str, ...]) -> None:
        """Remove one reference to each block. A block that has no references left is dropped."""
        ...

    def release_later(self, block_ids: tuple[str, ...]) -> None:
        """Remove one reference to each block at the next call of the block manager.

        The garbage collector calls this method at any moment, also while the block manager holds its own lock, so
        `release` could block for ever.
        """
        ...


class Hold:
    """Hold: references to some blocks. The references count from the creation of the hold until `close`, or until the
    hold is garbage-collected.

    blocks: the held blocks.
    """

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
    """BlockIterator: an iterator over the blocks of a walk, from a tip towards the root.

    Until its end or `close`, it holds the block at which the walk began, and so all ancestors of that block. A step
    that raised may be repeated, since it has not moved the iterator.
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
    """BlockContext: a context manager that holds one block until the end of the `with` statement (RFC, "Ensuring Holds
    are Released")."""

    def __init__(self, counter: ReferenceCounter, block_id: str) -> None:
        self._counter = counter
        self._block_id = block_id
        self._holds: list[Hold] = []

    def __enter__(self) -> Block:
        """Hold the block and return it. Raises UnknownBlock."""
        hold = Hold(self._counter, self._block_id)
        self._holds.append(hold)
        return hold.blocks[0]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._holds.pop().close()
