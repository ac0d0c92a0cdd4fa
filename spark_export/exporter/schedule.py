"""The schedule of the daemon, which repeats runs of the exporter. Pure: time and randomness are parameters."""

from __future__ import annotations

import math
from typing import NamedTuple

JITTER = 0.1
"""The largest random delay of a start, as a fraction of the interval. It spreads the load of exporters on one node."""


class Next(NamedTuple):
    """The delay of the next start of a run, and the number of start times that passed during the last run."""

    delay_s: float
    skipped: int


def next_start(started_s: float, now_s: float, every_s: float, chance: float) -> Next:
    """Returns the next start, after a run that began at `started_s` and has ended by `now_s`.

    Starts are planned at whole numbers of intervals after `started_s`. The next start is the first of these that has
    not passed yet, plus the share `chance` of the largest random delay.
    """
    passed = max(0, math.ceil((now_s - started_s) / every_s) - 1) if now_s > started_s else 0
    start_s = started_s + (passed + 1) * every_s
    return Next(max(0.0, start_s - now_s) + chance * JITTER * every_s, passed)
