"""Plans an export: the index ranges behind the table's positions, the steps, and the tasks that export the ranges.

An export of everything new works in steps. Each step is planned, written and published on its own, so a crash loses at
most one step. This module does no input or output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spark_export.source.plan import StreamEnds
from spark_export.tables.model import Incarnation, IndexRange, LeftOutStream, TablePosition, TableState

STEP_ROWS_MAX = 5_000_000
STEP_BYTES_MAX = 2 * 1024 * 1024 * 1024
"""The default size of a step, which one machine writes in some seconds; publishing it takes a small part of this time.
"""
FIRST_STEP_ROWS = 100_000
"""The largest number of rows in the first step of an export with a time limit: the speed is not known before."""
TIME_SHARE = 0.5
"""The largest share of the remaining time that is planned for one step, by the speed of the previous step."""
WORTH_ROWS = 10_000
"""In an export with a time limit, a step begins only if there is time for this many rows, or for all remaining rows."""
TASK_ROWS_MIN = 100_000
"""A task is planned for at least this many rows, or TASK_BYTES_MAX: starting a task takes about 0.15 s of a core."""
TASK_ROWS_MAX = 4_000_000
TASK_BYTES_MAX = 1024 * 1024 * 1024
"""The largest estimated size of a task, in bytes of message data. A failed task is repeated as a whole."""
AMOUNTS = ("rows", "data_bytes", "file_bytes", "files", "lost")
"""The fields of a step that are summed up."""


@dataclass(frozen=True)
class ExportStep:
    """A step of an export, which is one commit of the table, with the number of its run.

    rows: the number of messages in `ranges`, also of forgotten ones, which are not written.
    data_bytes, file_bytes: the size of the written messages' data, and of the files.
    """

    run: int
    ranges: tuple[IndexRange, ...]
    rows: int
    data_bytes: int
    file_bytes: int
    files: int
    seconds: float

    @property
    def lost(self) -> int:
        return sum(each.lost for each in self.ranges)


def plan_ranges(
    ends: Iterable[StreamEnds], state: TableState, *, accept_lost: bool, put_back: Mapping[str, str] | None = None
) -> tuple[list[IndexRange], list[LeftOutStream]]:
    """Returns an index range for each partition with new or lost messages, ordered by stream and partition, and the
    streams to leave out, without a range.

    accept_lost: whether to export the rest of a stream that lost messages; and, as another era, a stream that was made
        anew. Otherwise such streams are left out.
    put_back: the streams that are left out because the node was restored to an earlier state, with the reason.
    """
    ranges: list[IndexRange] = []
    left_out = {stream: LeftOutStream(stream, reason) for stream, reason in (put_back or {}).items()}
    latest = state.latest()
    for end in sorted(ends, key=lambda each: (each.stream, each.partition)):
        if end.stream in left_out:
            continue
        found = _plan_one(end, latest.get((end.stream, end.partition)), accept_lost)
        if isinstance(found, str):
            left_out[end.stream] = LeftOutStream(end.stream, found)
        elif found.rows or found.lost:
            ranges.append(found)
    return [each for each in ranges if each.of.stream not in left_out], list(left_out.values())


def _plan_one(end: StreamEnds, known: tuple[Incarnation, TablePosition] | None, accept_lost: bool) -> IndexRange | str:
    """Returns the range of one partition, or why its stream is left out."""
    of, begin = Incarnation(end.stream, end.partition, 0, end.created_us), end.first_index
    place = f"{end.stream}/{end.partition}"
    if known is not None and known[0].created_us != end.created_us:
        if not accept_lost:
            return (
                f"{place} was deleted and made anew since the last run; what it held behind index {known[1].end} may "
                "be lost. --accept-lost exports the new one beside the old one's rows"
            )
        of = of._replace(era=known[0].era + 1)
    elif known is not None:
        of, begin = known[0], known[1].end
        if end.next_index < begin:
            return (
                f"{place} ends at {end.next_index}, and was exported up to {begin}: the node was put back to an "
                "earlier state; export into a new table"
            )
    lost = max(0, end.first_index - begin)
    if lost and not accept_lost:
        return (
            f"{place}: retention deleted {lost} messages ({begin} to {end.first_index - 1}) before they were exported; "
            "--accept-lost goes on behind them and reports them"
        )
    begin += lost
    average = end.size_bytes / max(1, end.next_index - end.first_index)
    return IndexRange(of, begin, end.next_index, int(average * (end.next_index - begin)), lost)


def cut_at(ranges: Iterable[IndexRange], until: Mapping[Incarnation, int]) -> list[IndexRange]:
    """Cuts each range at the end that `until` has for its incarnation. Leaves out ranges without an end, and those that
    become empty, unless they record lost messages."""
    cut = [each.cut(each.begin, max(each.begin, min(each.end, until[each.of]))) for each in ranges if each.of in until]
    return [each for each in cut if each.rows or each.lost]


class Pace:
    """The sizes of the steps of one export. Times are in seconds of a monotonic clock.

    seconds_max: the time limit of the export, or None. After this time no step begins. Steps get smaller towards the
        limit, so that the last step probably ends before it.
    """

    def __init__(self, rows_max: int, seconds_max: float | None, started_s: float) -> None:
        self._rows_max = rows_max
        self._end_s = None if seconds_max is None else started_s + seconds_max
        self._rows_per_s: float | None = None

    def next_rows(self, now_s: float, rows_left: int) -> int | None:
        """Returns the largest number of rows of the next step, or None if there is no time for a further step."""
        if self._end_s is None:
            return self._rows_max
        if self._end_s <= now_s:
            return None
        if self._rows_per_s is None:
            return min(self._rows_max, FIRST_STEP_ROWS)
        rows = min(self._rows_max, int(self._rows_per_s * (self._end_s - now_s) * TIME_SHARE))
        return rows if rows >= min(WORTH_ROWS, rows_left, self._rows_max) else None

    def took(self, rows: int, seconds: float) -> None:
        if rows and seconds > 0:
            self._rows_per_s = rows / seconds


def take_step(ranges: Sequence[IndexRange], rows_max: int, bytes_max: int) -> list[IndexRange]:
    """Returns the first part of each range, so that together they are one step of an export.

    The step takes one row of each range, so that every partition makes progress, and the other rows in proportion to
    the sizes of the ranges. The size in bytes is an estimate.
    """
    filled = [each for each in ranges if each.rows]
    share = min(
        _share(rows_max, sum(each.rows for each in filled), len(filled)),
        _share(bytes_max, sum(each.size_bytes for each in filled), sum(each.size_bytes / each.rows for each in filled)),
    )
    # A range without rows only records a loss, and does not count for the size of the step.
    return [
        each.cut(each.begin, each.begin + 1 + int(share * (each.rows - 1))) if each.rows else each for each in ranges
    ]


def _share(most: float, total: float, first: float) -> float:
    """Returns which share of the rows after the first rows, from 0 to 1, fits into a step of the size `most`.

    total, first: the sizes of all rows, and of the first row of each range.
    """
    return 1.0 if total <= most else max(0.0, (most - first) / (total - first)) if total > first else 0.0


def plan_tasks(ranges: Sequence[IndexRange], parallelism: int) -> list[list[IndexRange]]:
    """Returns tasks, each a list of ranges, that together export each index once. Small ranges share a task."""
    rows, parallelism = sum(each.rows for each in ranges), max(1, parallelism)
    # The number of tasks is a multiple of `parallelism`, so that no task runs alone at the end.
    rounds = max(1, -(-rows // (parallelism * TASK_ROWS_MAX)))
    task_rows = max(TASK_ROWS_MIN, -(-rows // (parallelism * rounds)))
    # `filled` is the share of the last task that its pieces fill, from 0 to 1.
    tasks, filled = list[list[IndexRange]](), 0.0
    for each in ranges:
        average = each.size_bytes / max(1, each.rows)
        rows_max = max(1, min(task_rows, int(TASK_BYTES_MAX / average) if average else task_rows))
        # A range without rows records a loss, which the run must have, too.
        count = max(1, -(-each.rows // rows_max))
        # The pieces of a range have equal sizes, so that no piece is tiny.
        for number in range(count):
            begin = each.begin + each.rows * number // count
            end = each.begin + each.rows * (number + 1) // count
            share = (end - begin) / rows_max
            if not tasks or filled + share > 1.0:
                tasks.append([])
                filled = 0.0
            tasks[-1].append(each.cut(begin, end))
            filled += share
    return tasks
