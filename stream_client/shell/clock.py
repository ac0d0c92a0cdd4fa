"""The clock of the clients, and their timers."""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable

import msgspec


class ClientTimer(msgspec.Struct, order=True):
    """A callback and the time when it is due. Timers with the same time run in the order of their creation, by their
    numbers."""

    due_s: float
    number: int
    callback: Callable[[], None] | None

    def cancel(self) -> None:
        self.callback = None

    def run(self) -> None:
        if self.callback is not None:
            self.callback()


class TimerQueue:
    """The timers of one client. It reads no clock and does not wait."""

    def __init__(self) -> None:
        self._waiting: list[ClientTimer] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def due_s(self) -> float:
        """The time when the earliest timer is due; infinite without a timer."""
        return self._waiting[0].due_s if self._waiting else math.inf

    def add(self, due_s: float, callback: Callable[[], None]) -> ClientTimer:
        timer = ClientTimer(due_s, next(self._numbers), callback)
        heapq.heappush(self._waiting, timer)
        return timer

    def pop_due(self, now_s: float) -> ClientTimer | None:
        """Removes and returns the earliest timer if it is due; else None."""
        return heapq.heappop(self._waiting) if self.due_s <= now_s else None


def boot_time_s() -> float:
    # A lease must end on time even if the machine was suspended. Most monotonic clocks stop during suspension.
    return time.clock_gettime(_CLOCK) if _CLOCK is not None else time.monotonic()


_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)
