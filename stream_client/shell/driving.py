"""Runs the client's coroutines where there is no event loop: over the blocking shell they never suspend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Generic, Self, TypeVar, cast

T = TypeVar("T")


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Its result, or its exception. Raises RuntimeError where it waits for an event loop: it is not the client's."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine that is not the client's own waits for an event loop, and there is none")


class Driven(Generic[T]):
    """An iteration of the client's in an ordinary loop. before_each: called before each item is asked for."""

    def __init__(self, items: AsyncIterator[T], before_each: Callable[[], None] | None = None) -> None:
        # The client's iterations are classes whose __anext__ is a coroutine function.
        self._next = cast("Callable[[], Coroutine[Any, Any, T]]", items.__anext__)
        self._before_each = before_each

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._before_each is not None:
            self._before_each()
        try:
            return drive(self._next())
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        """There is nothing to close; for `contextlib.closing`."""
