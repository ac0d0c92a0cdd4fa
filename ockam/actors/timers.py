"""Timers: calls functions after a delay. Thousands of timers share one task. This module does not use workers."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import trio


class Timers:
    """Calls functions in the order of their due times. run: calls one of them, and must not raise.

    Invariant: while functions wait, one task sleeps until the earliest is due. The task ends when no function waits."""

    def __init__(self, nursery: trio.Nursery, run: Callable[[Callable[[], None]], None]) -> None:
        self._nursery = nursery
        self._run = run
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._sleeps: trio.CancelScope | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def call_later(self, delay_s: float, function: Callable[[], None]) -> None:
        """Calls the function once after the delay. Even if the delay is 0, the call happens later, in another task."""
        due_s = trio.current_time() + delay_s
        self._count += 1
        heapq.heappush(self._waiting, (due_s, self._count, function))
        if self._sleeps is None:
            self._sleeps = trio.CancelScope()
            self._nursery.start_soon(self._serve)
        elif self._waiting[0][1] == self._count:
            # This function is due before all others, so the task must wake up earlier than it planned.
            self._sleeps.cancel()

    async def _serve(self) -> None:
        try:
            while self._waiting:
                assert self._sleeps is not None
                with self._sleeps:
                    await trio.sleep_until(self._waiting[0][0])
                self._sleeps = trio.CancelScope()
                now_s = trio.current_time()
                # All due functions are taken before the first is called. A function may add other functions that are
                # due at once. If this loop also called those, it might never let other tasks run.
                due = []
                while self._waiting and self._waiting[0][0] <= now_s:
                    due.append(heapq.heappop(self._waiting)[2])
                for function in due:
                    self._run(function)
        finally:
            self._sleeps = None
