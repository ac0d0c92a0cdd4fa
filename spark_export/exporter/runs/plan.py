"""Plans a run: the index ranges that the run exports, and the tasks that export them.

This module does no input or output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from spark_export.exporter.errors import DataLost
from spark_export.exporter.model import Exported, ExportTask, LeftOutStream, PartitionEnd, Range, RangePart

TASK_ROWS_MIN = 100_000
"""The planned size of a task is at least this many rows, because starting a task takes about 0.15 s of one core."""
TASK_ROWS_MAX = 4_000_000
TASK_BYTES_MAX = 1024 * 1024 * 1024
"""The largest estimated size of a task, in bytes of message data. A failed task is repeated as a whole."""


@dataclass(frozen=True)
class RangePlan:
    """The ranges of new messages to export, one for each partition, and the streams to leave out, without a range."""

    ranges: list[Range]
    left_out: list[LeftOutStream]


def plan_ranges(
    ends: Iterable[PartitionEnd],
    exported: Mapping[tuple[str, int], Exported],
    positions: Mapping[tuple[str, int], int],
    *,
    accept_lost: bool,
) -> RangePlan:
    """Plans an index range for each partition with new or lost messages, ordered by stream and partition.

    The range of a partition that was never exported begins at the earliest stored message. A stream is left out if the
    node was restored to an earlier state: a saved index, or the end of a partition, is then less than the end of the
    previous exports. With `accept_lost`, a stream that lost messages is exported without them; else it is left out.
    """
    ranges: list[Range] = []
    left_out: dict[str, LeftOutStream] = {}
    for end in sorted(ends, key=lambda each: (each.stream, each.partition)):
        place = end.stream, end.partition
        if end.stream in left_out:
            continue
        try:
            ranges.append(_plan_one(end, exported.get(place), positions.get(place, 0), accept_lost))
        except DataLost as loss:
            left_out[end.stream] = LeftOutStream(end.stream, str(loss))
    wanted = [each for each in ranges if each.stream not in left_out and (each.rows or each.lost)]
    return RangePlan(wanted, list(left_out.values()))


def cut_at(ranges: Iterable[Range], until: Mapping[tuple[str, int], int]) -> list[Range]:
    """Cuts each range at the exclusive end that `until` has for its partition. Leaves out ranges without an end.

    Also leaves out ranges that become empty, unless they record lost messages.
    """
    cut = [
        _cut_one(each, until[each.stream, each.partition]) for each in ranges if (each.stream, each.partition) in until
    ]
    return [each for each in cut if each.rows or each.lost]


def _cut_one(each: Range, until: int) -> Range:
    return _shorten(each, max(0, min(each.end_index, until) - each.start_index))


def take_step(ranges: Sequence[Range], rows_max: int, bytes_max: int) -> list[Range]:
    """Returns the first part of each range, so that together they are one step of an export.

    The step takes one row of each range, so that every partition makes progress. Its other rows come from the ranges in
    proportion to their sizes. The size in bytes is an estimate.
    """
    filled = [each for each in ranges if each.rows]
    share = min(
        _share(rows_max, sum(each.rows for each in filled), len(filled)),
        _share(bytes_max, sum(each.size_bytes for each in filled), sum(each.size_bytes / each.rows for each in filled)),
    )
    # A range without rows only records a loss, and does not count for the size of the step.
    return [_shorten(each, 1 + int(share * (each.rows - 1))) if each.rows else each for each in ranges]


def _share(most: float, total: float, first: float) -> float:
    """Returns the share of each range, from 0 to 1, that a step takes in addition to its first row."""
    return 1.0 if total <= most else max(0.0, (most - first) / (total - first)) if total > first else 0.0


def _shorten(each: Range, rows: int) -> Range:
    if rows >= each.rows:
        return each
    size_bytes = each.size_bytes * rows // each.rows
    return replace(each, end_index=each.start_index + rows, size_bytes=size_bytes)


def _plan_one(end: PartitionEnd, exported: Exported | None, position: int, accept_lost: bool) -> Range:
    era, start = (0, end.first_index) if exported is None else (exported.era, exported.end_index)
    place = f"{end.stream}/{end.partition}"
    if exported is not None and exported.made_us != end.made_us:
        if not accept_lost:
            raise DataLost(
                f"{place} was deleted and made anew since the last run; what it held behind index "
                f"{exported.end_index} may be lost. --accept-lost exports the new one beside the old one's rows"
            )
        era, start = exported.era + 1, end.first_index
    elif end.next_index < start:
        raise DataLost(
            f"{place} ends at {end.next_index}, and was exported up to {start}: the node was put back to an earlier "
            "state; export into a new folder"
        )
    elif exported is not None and position < start:
        raise DataLost(
            f"{place} was exported up to {start}, and the node keeps {position} as the export's position: it was put "
            f"back to an earlier state, and may have other messages below {start}. Export into a new folder; or, if "
            f"somebody changed the position, `stream-node index set` it to {start}"
        )
    lost = max(0, end.first_index - start)
    if lost and not accept_lost:
        raise DataLost(
            f"{place}: retention deleted {lost} messages ({start} to {end.first_index - 1}) before they were exported; "
            "--accept-lost goes on behind them and reports them"
        )
    start += lost
    average = end.size_bytes / max(1, end.next_index - end.first_index)
    return Range(
        stream=end.stream,
        partition=end.partition,
        era=era,
        made_us=end.made_us,
        start_index=start,
        end_index=end.next_index,
        size_bytes=int(average * (end.next_index - start)),
        lost=lost,
    )


def plan_tasks(ranges: Sequence[Range], parallelism: int) -> list[ExportTask]:
    """Returns tasks that together export each index of the ranges once. Small neighbouring ranges share a task.

    A task is large enough to be worth its start, and small enough to be repeated after a failure.
    """
    rows, parallelism = sum(each.rows for each in ranges), max(1, parallelism)
    # The number of tasks is a multiple of `parallelism`, so that no task runs alone at the end.
    rounds = max(1, -(-rows // (parallelism * TASK_ROWS_MAX)))
    task_rows = max(TASK_ROWS_MIN, -(-rows // (parallelism * rounds)))
    tasks: list[ExportTask] = []
    pieces: list[RangePart] = []
    filled = 0.0
    for piece, weight in _pieces(ranges, task_rows):
        if pieces and filled + weight > 1.0:
            tasks.append(ExportTask(len(tasks), tuple(pieces)))
            pieces, filled = [], 0.0
        pieces.append(piece)
        filled += weight
    if pieces:
        tasks.append(ExportTask(len(tasks), tuple(pieces)))
    return tasks


def _pieces(ranges: Iterable[Range], task_rows: int) -> Iterator[tuple[RangePart, float]]:
    """Yields pieces that fit into one task, each with the share of a task that it fills, from 0 to 1."""
    for each in ranges:
        if not each.rows:
            continue
        average = each.size_bytes / each.rows
        rows_max = max(1, min(task_rows, int(TASK_BYTES_MAX / average) if average else task_rows))
        count = -(-each.rows // rows_max)
        # The pieces of a range have equal sizes, so that no piece is tiny.
        for number in range(count):
            start = each.start_index + each.rows * number // count
            end = each.start_index + each.rows * (number + 1) // count
            yield RangePart(each.stream, each.era, each.made_us, each.partition, start, end), (end - start) / rows_max
