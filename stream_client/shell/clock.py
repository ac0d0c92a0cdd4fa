"""The clients' clock."""

from __future__ import annotations

import time


def boot_time_s() -> float:
    """Seconds on a clock that never jumps, and that goes on while the machine sleeps where the system has one.

    A lease must be over when its time is, also for a consumer whose machine was suspended; most monotonic clocks stand
    still meanwhile.
    """
    return time.clock_gettime(_CLOCK) if _CLOCK is not None else time.monotonic()


_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)
