"""The sizes of the steps of an export, and when no further step begins. This module is pure: time is a parameter.

An export of everything new works in steps. Each step is planned, written and published on its own, so a crash loses at
most one step.
"""

from __future__ import annotations

from dataclasses import dataclass

STEP_ROWS_MAX = 5_000_000
STEP_BYTES_MAX = 2 * 1024 * 1024 * 1024
"""The default size of a step, in rows and in bytes of message data.

One machine writes such a step in some seconds, and a publication costs a small part of that.
"""
CLUSTER_FACTOR = 10
"""How many times larger the default size of a step is on a cluster, which writes many tasks at the same time."""
FIRST_STEP_ROWS = 100_000
"""The rows of the first step if the time is limited: the rate of the export is not known yet."""
TIME_SHARE = 0.5
"""The share of the remaining time that one step may take, as estimated from the rate of the step before it."""
WORTH_ROWS = 10_000
"""If the time is limited, a step with fewer rows is not begun, unless no more rows are left."""


@dataclass(frozen=True)
class Bounds:
    """The limits of an export.

    rows_max, bytes_max: the size of one step, in rows and in bytes of message data; the bytes are an estimate.
    seconds_max: after this time no step begins, and steps are made small enough to end before; None for no limit.
    """

    rows_max: int = STEP_ROWS_MAX
    bytes_max: int = STEP_BYTES_MAX
    seconds_max: float | None = None


class Pace:
    """The sizes of the steps of one export. started_s: when the export began, in seconds of a monotonic clock."""

    def __init__(self, bounds: Bounds, started_s: float) -> None:
        self._bounds = bounds
        self._started_s = started_s
        self._rows_per_s: float | None = None

    def next_rows(self, now_s: float, rows_left: int) -> int | None:
        """Returns the largest number of rows of the next step, or None if no step may begin any more.

        rows_left: the number of rows that are not exported yet."""
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
        """Measures the rate of the step that has ended."""
        if rows and seconds > 0:
            self._rows_per_s = rows / seconds
