"""Decides the size of each step of an export, and when no further step begins. This module is pure.

An export of everything new works in steps. Each step is planned, written and published on its own, so a crash loses at
most one step.
"""

from __future__ import annotations

from dataclasses import dataclass

STEP_ROWS_MAX = 5_000_000
STEP_BYTES_MAX = 2 * 1024 * 1024 * 1024
"""The default size of a step, which one machine writes in some seconds; publishing it takes a small part of this time.
"""
CLUSTER_FACTOR = 10
"""The factor of the default step size on a cluster, which executes many tasks at once."""
FIRST_STEP_ROWS = 100_000
"""The largest number of rows in the first step of an export with a time limit: the speed is not known before."""
TIME_SHARE = 0.5
"""The largest share of the remaining time that is planned for one step, by the speed of the previous step."""
WORTH_ROWS = 10_000
"""In an export with a time limit, a step begins only if there is time for this many rows, or for all remaining rows."""


@dataclass(frozen=True)
class Bounds:
    """The limits of an export.

    rows_max: the largest number of rows in one step.
    bytes_max: the largest estimated size of the message data in one step, in bytes.
    seconds_max: the time limit of the export, in seconds, or None for no limit. After this time no step begins. Steps
        get smaller towards the limit, so that the last step probably ends before it.
    """

    rows_max: int = STEP_ROWS_MAX
    bytes_max: int = STEP_BYTES_MAX
    seconds_max: float | None = None


class Pace:
    """The sizes of the steps of one export. Times are in seconds of a monotonic clock."""

    def __init__(self, bounds: Bounds, started_s: float) -> None:
        self._bounds = bounds
        self._started_s = started_s
        self._rows_per_s: float | None = None

    def next_rows(self, now_s: float, rows_left: int) -> int | None:
        """Returns the largest number of rows of the next step, or None if there is no time for a further step."""
        if self._bounds.seconds_max is None:
            return self._bounds.rows_max
        remaining_s = self._started_s + self._bounds.seconds_max - now_s
        if remaining_s <= 0:
            return None
        if self._rows_per_s is None:
            return min(self._bounds.rows_max, FIRST_STEP_ROWS)
        rows = min(self._bounds.rows_max, int(self._rows_per_s * remaining_s * TIME_SHARE))
        return rows if rows >= min(WORTH_ROWS, rows_left, self._bounds.rows_max) else None

    def took(self, rows: int, seconds: float) -> None:
        """Computes the speed of the export from the step that has just ended."""
        if rows and seconds > 0:
            self._rows_per_s = rows / seconds
