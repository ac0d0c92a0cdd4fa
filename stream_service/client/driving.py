"""Runs the client's coroutines where there is no event loop: over the blocking shell they never suspend."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

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


def iterate(items: AsyncGenerator[T, None], before_each: Callable[[], None] | None = None) -> Iterator[T]:
    """The items of a generator, in an ordinary loop. before_each: called before each is asked for."""
    try:
        while True:
            if before_each is not None:
                before_each()
            try:
                item = drive(items.__anext__())
            except StopAsyncIteration:
                return
            yield item
    finally:
        drive(items.aclose())
