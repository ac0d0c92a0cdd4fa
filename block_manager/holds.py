"""What holds blocks for somebody: iterators and contexts. Each gives its holds back once, however it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol, Self

from block_manager.block import Block
from block_manager.walk import Walk


class Keeper(Protocol):
    """The block manager, as far as holds need it."""

    def take(self, block_ids: tuple[str, ...]) -> list[Block]:
        """Hold them all, and give the blocks. Raises UnknownBlock, and holds none, where one is not here."""
        ...

    def give_back(self, block_ids: tuple[str, ...]) -> None: ...

    def abandon(self, block_ids: tuple[str, ...]) -> None:
        """As `give_back`, at the next call of anybody: the garbage collector runs anywhere, even in the
        keeper."""
        ...


class Hold:
    """Owned references to some blocks, from when it is made until `close`, or until it is forgotten."""

    def __init__(self, keeper: Keeper, *block_ids: str) -> None:
        self._held_ids: tuple[str, ...] = ()
        self._keeper = keeper
        self.blocks = keeper.take(block_ids)
        self._held_ids = block_ids

    def close(self) -> None:
        """Give the holds back. Safe to repeat."""
        block_ids, self._held_ids = self._held_ids, ()
        if block_ids:
            self._keeper.give_back(block_ids)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if self._held_ids:
            self._keeper.abandon(self._held_ids)


class BlockIterator(Iterator[Block]):
    """The blocks of a walk. What it began at is held, and so all that it walks, until its end or `close`.

    After a step that raised it is where it was: the next step tries again.
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
        """End the walk and let its blocks go. Safe to repeat."""
        self._walk = None
        self._hold.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class BlockContext:
    """Holds a block inside a `with`, which gives the block (RFC, "Ensuring Holds are Released")."""

    def __init__(self, keeper: Keeper, block_id: str) -> None:
        self._keeper = keeper
        self._block_id = block_id
        self._holds: list[Hold] = []

    def __enter__(self) -> Block:
        """Raises UnknownBlock."""
        hold = Hold(self._keeper, self._block_id)
        self._holds.append(hold)
        return hold.blocks[0]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._holds.pop().close()
