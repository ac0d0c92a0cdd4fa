"""Iterations over what comes in pages. They may be left at any item, taken up again, and need not be closed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Self, TypeVar

from stream_client.consume.consumption import Consumption, Part
from stream_client.core.partition_handle import PartitionHandle

T = TypeVar("T")


class Messages(Generic[T]):
    """The messages that a consumer hands out, in the form that `show` gives them."""

    def __init__(
        self, consumption: Consumption, handles: Sequence[PartitionHandle], stop_at_end: bool, show: Callable[[Part], T]
    ) -> None:
        self._consumption = consumption
        self._handles = handles
        self._stop_at_end = stop_at_end
        self._show = show
        self._begun = self._ended = False
        self._part: Part | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """The next item. Whatever has been handed out before is processed by that."""
        self._consumption.commit()
        part = self._part
        if part is None or not part.has_messages:
            part = self._part = None if self._ended else await self._find_part()
            if part is None:
                self._ended = True
                raise StopAsyncIteration
        return self._show(part)

    async def aclose(self) -> None:
        """There is nothing to close; for `contextlib.aclosing`."""

    async def _find_part(self) -> Part | None:
        """The part that has the next message; None at the end."""
        if not self._begun:
            await self._consumption.add(self._handles)
            self._consumption.begin()
            self._begun = True
        return await self._consumption.next_part(self._stop_at_end)


class Listing(Generic[T]):
    """Items that are asked for in pages. next_page: gives the next one; an empty one is the end."""

    def __init__(self, next_page: Callable[[], Awaitable[Sequence[T]]]) -> None:
        self._next_page = next_page
        self._page: Sequence[T] = ()
        self._at = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._at >= len(self._page):
            self._page, self._at = await self._next_page(), 0
            if not self._page:
                raise StopAsyncIteration
        item = self._page[self._at]
        self._at += 1
        return item
