"""The clock of the clients, and the interface of their timers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Timers(Protocol):
    """The interface of the clock and the timers of a client."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after `delay_s` seconds. Returns a function that cancels this.

        A blocking client runs timers only inside its calls, so it can call `callback` later than that. If the client
        has ended, raises the error that ended it.
        """
        ...

    def now_s(self) -> float:
        """Return the time in seconds on a monotonic clock.

        The clock also runs while the machine sleeps, if the system supports this.
        """
        ...


def boot_time_s() -> float:
    """Return the time in seconds on a monotonic clock. It also runs while the machine sleeps, if the system
    supports this.

    A lease must end on time even if the machine was suspended. Most monotonic clocks stop during suspension.
    """
    return time.clock_gettime(_CLOCK) if _CLOCK is not None else time.monotonic()


_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)
