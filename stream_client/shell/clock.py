"""The clients' clock, and the part of a shell that keeps time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Timers(Protocol):
    """The part of a shell that keeps time."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after that delay; the function returned prevents the call.

        A blocking client runs timers inside its calls only, so that the call may come later. Raises the error that
        ended the client.
        """
        ...

    def now_s(self) -> float:
        """Seconds on a clock that never jumps back and counts the time a machine sleeps, where the system has one."""
        ...


def boot_time_s() -> float:
    """Seconds on a clock that never jumps, and that goes on while the machine sleeps where the system has one.

    A lease must be over when its time is, also for a consumer whose machine was suspended; most monotonic clocks stand
    still meanwhile.
    """
    return time.clock_gettime(_CLOCK) if _CLOCK is not None else time.monotonic()


_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)
