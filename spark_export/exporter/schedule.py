"""The schedule of a daemon's runs. This module is pure: time and randomness are parameters."""

from __future__ import annotations

import math
from typing import NamedTuple

JITTER = 0.1
"""Of the interval: many exporters of one node do not ask it all at once."""


class Next(NamedTuple):
    """The next start. delay_s: the time until then. skipped: the number of starts that fell into the last run."""

    delay_s: float
    skipped: int


def next_start(started_s: float, now_s: float, every_s: float, chance: float) -> Next:
    """The next start of a run every `every_s`, after one that began at `started_s` and is over.

    Starts stay on the grid of the first one: a slow run skips the starts that it covers, and delays no other. chance:
    from 0 to 1, the share of the jitter that this start gets.
    """
    passed = max(0, math.ceil((now_s - started_s) / every_s) - 1) if now_s > started_s else 0
    start_s = started_s + (passed + 1) * every_s
    return Next(max(0.0, start_s - now_s) + chance * JITTER * every_s, passed)
