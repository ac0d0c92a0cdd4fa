"""The clients' clock, and the interface of timers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Timers(Protocol):
    """The interface of the part of a shell that keeps time."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after `delay_s`. Returns a function that cancels the call.

        A blocking client runs timers only inside its calls, so there the callback may run later. Raises the error that
        ended the client, if one did.
        """
        ...

    def now_s(self) -> float:
        """Return the seconds on a clock that never jumps back and, if the system offers it, also runs while the machine
        sleeps.
        """
        ...


def boot_time_s() -> float:
    """Return the seconds on a clock that never jumps and, if the system offers it, also runs while the machine sleeps.

    A lease must end on time also for a consumer whose machine was suspended. Most monotonic clocks stop during
    suspension.
    """
    return time.clock_gettime(_CLOCK) if _CLOCK is not None else time.monotonic()


_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)
