"""A wall clock that jumps while a test says so: what a node's process sees of it, and of no other clock.

A shared library that the loader puts before the C library adds the seconds that stand in a control file to each look at
the system's real-time clock. The steady clocks are as they were, as they are when an operator sets the time.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    const char *control = getenv("JUMPING_CLOCK");
    if (result || clock != CLOCK_REALTIME || !control) return result;
    FILE *file = fopen(control, "r");
    long long seconds = 0;
    if (file && fscanf(file, "%lld", &seconds) == 1) now->tv_sec += seconds;
    if (file) fclose(file);
    return result;
}
"""


class JumpingClock:
    """Made by the fixture `jumping_clock`. environment: for the process whose clock this is."""

    def __init__(self, folder: Path) -> None:
        self._control = folder / "seconds"
        library, source = folder / "jumping_clock.so", folder / "jumping_clock.c"
        source.write_text(SOURCE)
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        self.environment: Mapping[str, str] = {"LD_PRELOAD": str(library), "JUMPING_CLOCK": str(self._control)}

    def set(self, ahead_s: int) -> None:
        """From now on the clock is ahead of the right time by so much."""
        beside = self._control.with_suffix(".new")
        beside.write_text(str(ahead_s))
        beside.rename(self._control)


@pytest.fixture
def jumping_clock(tmp_path_factory: pytest.TempPathFactory) -> JumpingClock:
    if shutil.which("cc") is None:
        pytest.skip("a clock that jumps is made by a small C library, and there is no C compiler (cc)")
    return JumpingClock(tmp_path_factory.mktemp("jumping_clock"))
