"""The clock of the clients, and the interface of their timers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class ClockTimers(Protocol):
    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls `callback` after `delay_s` seconds. Returns a function that cancels this. A blocking client runs timers
        only inside its calls, so perhaps later. Raises the error that ended the client."""
        ...

    def now_s(self) -> float:
        """Returns the time in seconds on a monotonic clock that, where possible, also runs while the machine sleeps."""
        ...


def boot_time_s() -> float:
    # A lease must end on time even if the machine was suspended. Most monotonic clocks stop during suspension.
    return time.clock_gettime(_CLOCK) if _CLOCK is not None else time.monotonic()


_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)
