"""Calls that are due later: thousands of them cost one task together. It knows nothing of workers."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import trio


class Timers:
    """Calls functions in the order in which they are due; those due at one moment in the order in which they were set.

    run: calls one function; it must not raise.
    Invariant: while anything waits, one task sleeps until the first of it is due, and ends when nothing is left.
    """

    def __init__(self, nursery: trio.Nursery, run: Callable[[Callable[[], None]], None]) -> None:
        self._nursery = nursery
        self._run = run
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._sleeps: trio.CancelScope | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def call_later(self, delay_s: float, function: Callable[[], None]) -> None:
        """Call once after the delay, not before the next turn of the event loop."""
        due_s = trio.current_time() + delay_s
        self._count += 1
        heapq.heappush(self._waiting, (due_s, self._count, function))
        if self._sleeps is None:
            self._sleeps = trio.CancelScope()
            self._nursery.start_soon(self._serve)
        elif self._waiting[0][1] == self._count:
            # This one is due before all others: the task wakes up and looks at it.
            self._sleeps.cancel()

    async def _serve(self) -> None:
        try:
            while self._waiting:
                assert self._sleeps is not None
                with self._sleeps:
                    await trio.sleep_until(self._waiting[0][0])
                self._sleeps = trio.CancelScope()
                now_s = trio.current_time()
                due = []
                while self._waiting and self._waiting[0][0] <= now_s:
                    due.append(heapq.heappop(self._waiting)[2])
                for function in due:
                    self._run(function)
        finally:
            self._sleeps = None
