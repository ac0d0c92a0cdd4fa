"""Decides the size of each step of an export, and when no further step begins. This module is pure.

An export of everything new works in steps. Each step is planned, written and published on its own, so a crash loses at
most one step.
"""

from __future__ import annotations

from dataclasses import dataclass

STEP_ROWS_MAX = 5_000_000
STEP_BYTES_MAX = 2 * 1024 * 1024 * 1024
"""The default size of a step, in rows and in bytes of message data.

One machine writes a step of this size in some seconds. Publishing the step takes a small part of this time.
"""
CLUSTER_FACTOR = 10
"""The factor by which the default size of a step is larger on a cluster, which executes many tasks at the same time."""
FIRST_STEP_ROWS = 100_000
"""The number of rows of the first step if the time is limited, because the rate of the export is not yet known."""
TIME_SHARE = 0.5
"""The share of the remaining time that one step may take. The rate of the previous step gives the estimate."""
WORTH_ROWS = 10_000
"""The smallest number of rows for which a step begins if the time is limited. The last rows may be fewer."""


@dataclass(frozen=True)
class Bounds:
    """The limits of an export.

    rows_max: the largest size of one step, in rows. bytes_max: the same in estimated bytes of message data.
    seconds_max: the time limit of the export, or None for no limit. No step begins after this time, and steps become
    smaller so that they end before.
    """

    rows_max: int = STEP_ROWS_MAX
    bytes_max: int = STEP_BYTES_MAX
    seconds_max: float | None = None


class Pace:
    """Computes the sizes of the steps of one export.

    started_s: the time when the export began, in seconds of a monotonic clock.
    """

    def __init__(self, bounds: Bounds, started_s: float) -> None:
        self._bounds = bounds
        self._started_s = started_s
        self._rows_per_s: float | None = None

    def next_rows(self, now_s: float, rows_left: int) -> int | None:
        """Returns the largest number of rows of the next step, or None if no further step may begin.

        now_s: the present time of the same clock as `started_s`. rows_left: the number of rows that are not exported
        yet.
        """
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
        """Computes the rate of the export from the step that has ended."""
        if rows and seconds > 0:
            self._rows_per_s = rows / seconds
