"""LateWatches: watches the requests that take long, so that their work ends when their peer has gone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

WATCH_AFTER_S = 0.1
"""A request is watched from about this time after its beginning."""


class LateWatches:
    """Watches, for each request that takes long, whether its peer has gone. For a short one, a task would cost much.

    Invariant: `_short` has the requests of about the last interval; a task looks at them while there are any."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._short: dict[_Watch, None] = {}
        self._looks = False

    @asynccontextmanager
    async def watched(self, function: Callable[[trio.CancelScope], Awaitable[None]]) -> AsyncIterator[None]:
        """Calls the function with the cancel scope of the block if that takes longer than WATCH_AFTER_S."""
        watch = _Watch(function)
        self._short[watch] = None
        if not self._looks:
            self._looks = True
            self._nursery.start_soon(self._look)
        try:
            with watch.scope:
                yield
        finally:
            self._short.pop(watch, None)
            # Two tasks must not read one connection.
            if watch.ended is not None:
                watch.own_scope.cancel()
                with trio.CancelScope(shield=True):
                    await watch.ended.wait()

    async def _look(self) -> None:
        while self._short:
            before = list(self._short)
            await trio.sleep(WATCH_AFTER_S)
            for watch in before:
                if watch in self._short:
                    del self._short[watch]
                    watch.ended = trio.Event()
                    self._nursery.start_soon(watch.run)
        self._looks = False


class _Watch:
    def __init__(self, function: Callable[[trio.CancelScope], Awaitable[None]]) -> None:
        self._function = function
        self.own_scope = trio.CancelScope()
        self.scope = trio.CancelScope()
        self.ended: trio.Event | None = None

    async def run(self) -> None:
        assert self.ended is not None, "set before the task begins"
        try:
            with self.own_scope:
                await self._function(self.scope)
        finally:
            self.ended.set()
