"""Repair: reads the rows of damaged and missing files again from the node, and replaces these files atomically.

A table of Delta or Iceberg that another program has changed is not repaired, since rows that somebody deleted would
come back.

The ledger, the record of all runs, lists every exported index. Repair subtracts the indexes that are in undamaged
files, and reads the messages with the remaining indexes from the node. It never uses a damaged file. Readers of the
table see either all old files or all new files (`tables/rewrite.py`). If rows are no longer on the node, repair raises
an error, unless the user accepts the loss (`--accept-lost`). In this case the ledger records the lost rows, and
`verify` counts them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from spark_export.exporter.errors import DataLost, ExportError, ExportMismatch
from spark_export.exporter.identity import was_put_back
from spark_export.exporter.intervals import Interval, merge, subtract, total
from spark_export.exporter.ledger.ledger import Ledger
from spark_export.exporter.model import Exported, ExportTask, Loss, PartitionEnd, Range, RangePart, RunFile
from spark_export.exporter.node_side import NodeSide, Selection
from spark_export.exporter.runs.task import TaskSettings, run_task
from spark_export.exporter.tables.rewrite import Rewriter
from spark_export.exporter.tables.table import Table
from spark_export.exporter.verify import check_file, read_intervals

Place: TypeAlias = tuple[str, int, int]
"""A stream, an era (how often the stream was created again), and a partition."""
Intervals: TypeAlias = dict[Place, list[Interval]]


@dataclass(frozen=True)
class Repair:
    """The result of a repair.

    damaged: a description of the damage of each damaged or missing file. These files are no longer in the table.
    rows: the number of rows of damaged files that were read from the node again.
    losses: the rows of damaged files that were given up.
    generation: the number of the table's new version, or None if there was nothing to repair.
    """

    damaged: tuple[str, ...] = ()
    rows: int = 0
    losses: tuple[Loss, ...] = ()
    generation: int | None = None

    @property
    def lost(self) -> int:
        return _count(self.losses)


class Repairer:
    """Repairs the table in one export folder. The caller holds the folder's lock.

    accept_lost: whether to give up rows that are no longer on the node; else such a repair raises DataLost.
    """

    def __init__(
        self,
        ledger: Ledger,
        table: Table,
        rewriter: Rewriter,
        node: NodeSide,
        *,
        settings: TaskSettings,
        accept_lost: bool = False,
    ) -> None:
        self._ledger = ledger
        self._table = table
        self._rewriter = rewriter
        self._node = node
        self._settings = settings
        self._accept_lost = accept_lost

    async def run(self, on_file: Callable[[int, int], None] | None = None) -> Repair:
        """Checks every file, and replaces the damaged files. After an error, the table is unchanged.

        Raises DataLost, other ExportErrors, and ClientErrors. `on_file` gets the numbers of checked files and of all
        files.
        """
        await self._rewriter.recover()
        listed, unlisted = await self._rewriter.load_listed()
        sound, damaged, there = await self._sort_out([*listed, *unlisted], on_file)
        if not damaged:
            return Repair()
        account = await self._ledger.load_account(await self._ledger.current_generation())
        ranges = [each for _, each in account.ranges]
        missing = find_missing(ranges, account.losses, there)
        check_explained(missing, [file for file, _ in damaged])
        ends = {(each.stream, each.partition): each for each in self._node.list_ends(Selection())}
        exported = await self._ledger.load_exported()
        saved = await self._ledger.load_exported(only_saved=True)
        positions = self._node.load_positions(self._ledger.identity.client_id)
        _check_not_put_back(missing, ends, exported, saved, positions)
        pieces, lost = split_available(missing, ranges, ends)
        if lost and not self._accept_lost:
            first = lost[0]
            raise DataLost(
                f"{_count(lost)} rows of damaged files are not on the node any more, the first of "
                f"{first.stream}/{first.partition} from {first.start_index} to "
                f"{first.end_index - 1}; --accept-lost gives them up, and repairs the rest"
            )
        runs: dict[tuple[str, int], int] = {}
        for file, _ in damaged:
            group = file.entry.stream, file.entry.era
            runs[group] = max(runs.get(group, 0), file.run_id)
        await self._rewriter.replace(sound, lambda folder: self._take(folder, pieces, runs), lost)
        return Repair(
            tuple(problem for _, problem in damaged),
            sum(each.rows for each in pieces),
            tuple(lost),
            await self._ledger.current_generation(),
        )

    async def _sort_out(
        self, files: Sequence[RunFile], on_file: Callable[[int, int], None] | None
    ) -> tuple[list[RunFile], list[tuple[RunFile, str]], Intervals]:
        sound, damaged, there = list[RunFile](), list[tuple[RunFile, str]](), defaultdict[Place, list[Interval]](list)
        for number, file in enumerate(files):
            found: Intervals = defaultdict(list)
            problems = await asyncio.to_thread(check_file, self._table.locate(file), file, found, True)
            if problems:
                damaged.append((file, problems[0]))
            else:
                sound.append(file)
                for place, intervals in found.items():
                    there[place] += intervals
            if on_file is not None:
                on_file(number + 1, len(files))
        return sound, damaged, there

    def _take(self, folder: Path, pieces: Sequence[RangePart], runs: Mapping[tuple[str, int], int]) -> list[RunFile]:
        """Reads the pieces from the node, writes their rows into `folder`, and checks the indexes of the new files."""
        if not pieces:
            return []
        written = run_task(ExportTask(0, tuple(pieces)), replace(self._settings, folder=str(folder)))
        if written.left_out:
            raise ExportError(f"{written.left_out[0].reason}; the table is as before")
        got: Intervals = defaultdict(list)
        for entry in written.files:
            for partition, interval in read_intervals(folder / entry.path):
                got[entry.stream, entry.era, partition].append(interval)
        wanted: Intervals = defaultdict(list)
        for piece in pieces:
            wanted[piece.stream, piece.era, piece.partition].append((piece.start_index, piece.end_index))
        if {place: merge(each) for place, each in got.items()} != {
            place: merge(each) for place, each in wanted.items()
        }:
            raise ExportError("the node gave other indexes than those of the damaged files; the table is as before")
        return [RunFile(runs[entry.stream, entry.era], entry) for entry in written.files]


def find_missing(ranges: Sequence[Range], losses: Sequence[Loss], there: Mapping[Place, list[Interval]]) -> Intervals:
    """Returns the exported indexes that are in no undamaged file and not in `losses`, by stream, era and partition."""
    wanted: Intervals = defaultdict(list)
    for each in ranges:
        wanted[each.stream, each.era, each.partition].append((each.start_index, each.end_index))
    given_up: Intervals = defaultdict(list)
    for loss in losses:
        given_up[loss.stream, loss.era, loss.partition].append((loss.start_index, loss.end_index))
    missing = {}
    for place, intervals in sorted(wanted.items()):
        known, _ = merge([*there.get(place, ()), *given_up[place]])
        if left := subtract(merge(intervals)[0], known):
            missing[place] = left
    return missing


def check_explained(missing: Mapping[Place, Sequence[Interval]], damaged: Sequence[RunFile]) -> None:
    """Raises ExportMismatch if the number of missing indexes is not the number of rows that the damaged files had."""
    should: dict[tuple[str, int], int] = defaultdict(int)
    for file in damaged:
        should[file.entry.stream, file.entry.era] += file.entry.rows
    found: dict[tuple[str, int], int] = defaultdict(int)
    for (stream, era, _), intervals in missing.items():
        found[stream, era] += total(intervals)
    for group in sorted(should.keys() | found.keys()):
        if should[group] != found[group]:
            raise ExportMismatch(
                f"{found[group]} rows of {group[0]} are missing, and the damaged files had {should[group]}: the ledger "
                "does not explain the table; put the whole folder back, or export into another one"
            )


def split_available(
    missing: Mapping[Place, Sequence[Interval]],
    ranges: Sequence[Range],
    ends: Mapping[tuple[str, int], PartitionEnd],
) -> tuple[list[RangePart], list[Loss]]:
    """Divides the missing indexes into those that the node still has, returned first, and those that are lost."""
    made = {(each.stream, each.era, each.partition): each.made_us for each in ranges}
    pieces, lost = list[RangePart](), list[Loss]()
    for place, intervals in missing.items():
        stream, era, partition = place
        end = ends.get((stream, partition))
        # A stream of the same name that was made later has other messages under the same indexes.
        kept = [(end.first_index, end.next_index)] if end is not None and end.made_us == made[place] else []
        gone = subtract(intervals, kept)
        lost += [Loss(stream, era, partition, *each) for each in gone]
        pieces += [RangePart(stream, era, made[place], partition, *each) for each in subtract(intervals, gone)]
    return pieces, lost


def _check_not_put_back(
    missing: Mapping[Place, Sequence[Interval]],
    ends: Mapping[tuple[str, int], PartitionEnd],
    exported: Mapping[tuple[str, int], Exported],
    saved: Mapping[tuple[str, int], Exported],
    positions: Mapping[tuple[str, int], int],
) -> None:
    """Raises DataLost if the node was restored to an earlier state after the export.

    Such a node can have other messages under the missing indexes. Raises ExportError if a saved index is low only
    because a published run has not saved its ends yet.
    """
    for stream, _, partition in missing:
        place = stream, partition
        end, known, position = ends.get(place), exported[place], positions.get(place, 0)
        if end is None or end.made_us != known.made_us:
            continue
        if was_put_back(end, known, saved.get(place), position):
            raise DataLost(
                f"{stream}/{partition} was exported up to {known.end_index}, and the node was put back to an earlier "
                "state since: it may have other messages under the same indexes, so nothing is taken from it"
            )
        if position < known.end_index:
            raise ExportError(
                f"{stream}/{partition} was exported up to {known.end_index}, and a crash came before the node saved "
                f"this (it has {position}): `stream-node export run` saves it, then repair again"
            )


def _count(lost: Sequence[Loss]) -> int:
    return sum(each.end_index - each.start_index for each in lost)
