"""Objects that hold references to blocks, so that the block manager does not drop the blocks.

Each object releases its references exactly once: when the object is closed or garbage-collected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol, Self

from block_manager.block import Block
from block_manager.walk import Walk


class ReferenceCounter(Protocol):
    """ReferenceCounter: the part of the block manager that counts the references to each block."""

    def acquire(self, block_ids: tuple[str, ...]) -> list[Block]:
        """Add one reference to each block, and return the blocks.

        Raises UnknownBlock if the block manager does not have one of the blocks. In this case no reference is added.
        """
        ...

    def release(self, block_ids: tuple[str, ...]) -> None:
        """Remove one reference from each block. A block in memory is dropped when its last reference is removed."""
        ...

    def release_later(self, block_ids: tuple[str, ...]) -> None:
        """Remove one reference from each block during the next call of the block manager.

        The garbage collector can call this method while the block manager's lock is taken. `release` waits for this
        lock, so a call of `release` at this moment could block for ever.
        """
        ...


class Hold:
    """Hold: one reference to each of some blocks, so that the block manager does not drop the blocks.

    The hold ends when it is closed or garbage-collected.

    blocks: the blocks, in the order of the ids that were passed.
    """

    def __init__(self, counter: ReferenceCounter, *block_ids: str) -> None:
        self._held_ids: tuple[str, ...] = ()
        self._counter = counter
        self.blocks = counter.acquire(block_ids)
        self._held_ids = block_ids

    def close(self) -> None:
        """Release the references to the blocks. A second call does nothing."""
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
    """BlockIterator: an iterator over the blocks of a branch, from the newest block towards the oldest.

    The iterator holds a reference to the first block until the end of the iteration or `close`. So neither the first
    block nor its ancestors are dropped. If fetching the next block raises an error, the caller can try again: the
    iterator has not moved.
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
        """End the iteration and release the reference. A second call does nothing."""
        self._walk = None
        self._hold.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class BlockContext:
    """BlockContext: a context manager that keeps one block from being dropped until the end of the `with` statement.

    Source: RFC block-manager, "Ensuring Holds are Released".
    """

    def __init__(self, counter: ReferenceCounter, block_id: str) -> None:
        self._counter = counter
        self._block_id = block_id
        self._holds: list[Hold] = []

    def __enter__(self) -> Block:
        """Add a reference to the block and return the block. Raises UnknownBlock."""
        hold = Hold(self._counter, self._block_id)
        self._holds.append(hold)
        return hold.blocks[0]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._holds.pop().close()
