"""Exports all new messages in steps of bounded size. Each step is one run.

The order of the actions in a run ensures that each message gets into the table exactly once.

A run uses the ledger, a database that records all runs, and a staging folder for unpublished files.

1. Finish or abandon every earlier run that a crash interrupted (`run_machine.py::recover`). Then empty the
staging folder.
2. Ask the node for the ends of its partitions, and the ledger for the ends of the export. Plan to export the messages
between these ends, at most as many as a step can have. A stream that has lost messages is left out.
3. Tasks write files into the run's staging folder, and check that they get every index. Each file is hashed and synced.
4. The files are moved to their final structure in staging, and the ledger records them with checksums (state written).
5. One atomic change adds all files of the run to the table, and the ledger records this (state published).
6. The node saves the end indexes of the export (state saved). The next step begins at 2, until nothing new is left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from spark_export.exporter.cleaning import remove_leftovers
from spark_export.exporter.errors import ExportMismatch, StreamsLeftOut
from spark_export.exporter.identity import check_positions
from spark_export.exporter.ledger.ledger import Ledger
from spark_export.exporter.model import LeftOutStream, Range, Run, RunState
from spark_export.exporter.node_side import NodeSide, Selection
from spark_export.exporter.runs.engine import ExportEngine
from spark_export.exporter.runs.pace import Bounds, Pace
from spark_export.exporter.runs.plan import cut_at, plan_ranges, take_step
from spark_export.exporter.runs.run_machine import Recovery, RunFiles, recover
from spark_export.exporter.runs.step import ExportStep, StepRunner
from spark_export.exporter.runs.task import TaskSettings
from spark_export.exporter.runs.waiting import to_its_end
from spark_export.exporter.tables.layout import Layout, remove_tree
from spark_export.exporter.tables.table import Table
from spark_export.exporter.tables.table_state import UNKNOWN_RUN, check_runs

logger = structlog.get_logger(__name__)

DEFAULT_BOUNDS = Bounds()


@dataclass(frozen=True)
class Progress:
    """The progress of an export over all its steps; `data_bytes_planned` is an estimate. Steps count from 1."""

    step: int
    rows: int
    rows_planned: int
    data_bytes: int
    data_bytes_planned: int


@dataclass(frozen=True)
class ExportOutcome:
    """The result of an export of all new messages.

    run_id: the run of the last step, None if there were no new messages.
    data_bytes: the size of the messages' data.
    file_bytes: the size of the files.
    lost: the number of messages that retention removed before they could be exported.
    recovered: descriptions of the earlier runs that this export recovered.
    swept: the number of files of earlier runs that were removed.
    steps: the number of published steps.
    left_out: the streams that could not be exported.
    rows_left, data_bytes_left: the number of rows and the estimated bytes of message data that are not exported yet,
        because the time limit was reached.
    engine: a text that says how the tasks were executed, and why; empty if there was no task.
    """

    run_id: int | None
    rows: int
    data_bytes: int
    file_bytes: int
    files: int
    partitions: int
    lost: int
    seconds: float
    recovered: tuple[str, ...] = ()
    swept: int = 0
    steps: int = 0
    left_out: tuple[LeftOutStream, ...] = ()
    rows_left: int = 0
    data_bytes_left: int = 0
    engine: str = ""


class Exporter:
    """Executes the runs of one export folder, one at a time. The caller holds the folder's lock.

    settings: the settings of the tasks of all runs.
    selection: the streams to export.
    accept_lost: whether to go on if messages were removed before they could be exported. If False, the stream of these
        messages is left out.
    now_us: returns the wall-clock time in microseconds since 1970.
    bounds: the size of a step, and the time after which no step begins.
    on_progress: called about every PROGRESS_INTERVAL_S seconds while tasks write files.
    """

    def __init__(
        self,
        layout: Layout,
        ledger: Ledger,
        table: Table,
        node: NodeSide,
        engine: ExportEngine,
        *,
        settings: TaskSettings,
        selection: Selection,
        accept_lost: bool,
        now_us: Callable[[], int],
        bounds: Bounds = DEFAULT_BOUNDS,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._layout = layout
        self._ledger = ledger
        self._table = table
        self._node = node
        self._engine = engine
        self._selection = selection
        self._accept_lost = accept_lost
        self._now_us = now_us
        self._bounds = bounds
        self._on_progress = on_progress
        self._steps = StepRunner(layout, ledger, table, node, engine, settings=settings, now_us=now_us)

    async def run(self, *, on_step: Callable[[ExportStep], Awaitable[None]] | None = None) -> ExportOutcome:
        """Exports all messages that are on the node at the time of the call, in steps that are published separately.

        Later messages are left to the next call, so this call ends even if new messages keep coming. If the caller
        cancels this call during a publication, the publication is completed first. Raises StreamsLeftOut at the end if
        a stream could not be exported, and other ExportErrors and ClientErrors at once; the published steps stay in the
        table.
        """
        started_s = time.monotonic()
        self._steps.is_ending = False
        recovered, swept = await self.recover()
        pace, steps, left_out = Pace(self._bounds, started_s), list[ExportStep](), dict[str, LeftOutStream]()
        left = await self._plan(None, left_out)
        # The first plan fixes the end of the export, which would otherwise never end while a producer pushes messages.
        until = {(each.stream, each.partition): each.end_index for each in left}
        while left:
            rows_left, bytes_left = sum(each.rows for each in left), sum(each.size_bytes for each in left)
            rows_max = pace.next_rows(time.monotonic(), rows_left)
            if rows_max is None:
                break
            part = take_step(left, rows_max, self._bounds.bytes_max)
            on_rows = self._progress_reporter(steps, rows_left, bytes_left)
            step = await self._steps.run(part, left_out, bytes_left=bytes_left, on_rows=on_rows)
            if step is not None:
                steps.append(step)
                pace.took(step.rows, step.seconds)
                if on_step is not None:
                    await self._steps.end_after(on_step(step))
            if self._steps.is_ending and part != left:
                raise asyncio.CancelledError
            # Each step is planned again, since retention and deletions may have removed messages during the last step.
            left = [] if part == left else await self._plan(until, left_out)
        outcome = ExportOutcome(
            run_id=steps[-1].run_id if steps else None,
            rows=sum(each.rows for each in steps),
            data_bytes=sum(each.data_bytes for each in steps),
            file_bytes=sum(each.file_bytes for each in steps),
            files=sum(each.files for each in steps),
            partitions=len(frozenset[tuple[str, int]]().union(*(each.places for each in steps))),
            lost=sum(each.lost for each in steps),
            seconds=time.monotonic() - started_s,
            recovered=tuple(recovered),
            swept=swept,
            steps=len(steps),
            left_out=tuple(left_out.values()),
            rows_left=sum(each.rows for each in left),
            data_bytes_left=sum(each.size_bytes for each in left),
            engine=self._engine.description if steps else "",
        )
        if left_out:
            raise StreamsLeftOut(outcome)
        return outcome

    def _progress_reporter(
        self, steps: Sequence[ExportStep], rows_left: int, data_bytes_left: int
    ) -> Callable[[int, int], None]:
        """Returns a function that reports the progress of the whole export, given the progress of the current step."""
        number, rows = len(steps) + 1, sum(each.rows for each in steps)
        data_bytes = sum(each.data_bytes for each in steps)

        def tell(step_rows: int, step_bytes: int) -> None:
            if self._on_progress is not None:
                so_far = rows + step_rows, rows + rows_left, data_bytes + step_bytes, data_bytes + data_bytes_left
                self._on_progress(Progress(number, *so_far))

        return tell

    async def _plan(
        self, until: Mapping[tuple[str, int], int] | None, left_out: dict[str, LeftOutStream]
    ) -> list[Range]:
        """Returns the index ranges of the new messages up to `until`. Adds streams that cannot be exported to
        `left_out`."""
        ends = await asyncio.to_thread(self._node.list_ends, self._selection)
        positions = await asyncio.to_thread(self._node.load_positions, self._ledger.identity.client_id)
        if not ends and self._selection.pattern is not None:
            logger.warning("no stream of the node matches", pattern=self._selection.pattern)
        wanted = [each for each in ends if each.stream not in left_out]
        exported = await self._ledger.load_exported()
        try:
            check_positions(wanted, exported, positions, self._ledger.identity.client_id)
        except ExportMismatch:
            # An exporter that has taken over this table also saves higher indexes.
            await self._ledger.check_owner()
            raise
        plan = plan_ranges(wanted, exported, positions, accept_lost=self._accept_lost)
        refused = {each.stream: self._table.refusal_of(each.stream) for each in plan.ranges}
        for each in (*plan.left_out, *(LeftOutStream(stream, reason) for stream, reason in refused.items() if reason)):
            left_out[each.stream] = each
            logger.warning("stream left out", stream=each.stream, reason=each.reason)
        ranges = [each for each in plan.ranges if each.stream not in left_out]
        return ranges if until is None else cut_at(ranges, until)

    async def recover(self) -> tuple[list[str], int]:
        """Finishes or abandons every interrupted run, and removes the files that such runs left.

        Returns a description of each such run, and the number of removed files. Raises ExportMismatch, and removes
        nothing, if the ledger and the table disagree.
        """
        await self._ledger.check_owner()
        done: list[str] = []
        swept = 0
        for run in await self._ledger.load_unfinished():
            action, files = await self._recover_one(run)
            swept += files
            done.append(f"run {run.run_id}, left {run.state}: {action.value}")
            logger.info("run recovered", run=run.run_id, state=run.state, action=action.value, files_removed=files)
        await check_runs(self._table, self._ledger)
        swept += await to_its_end(asyncio.to_thread(self._empty_staging))
        return done, swept + await remove_leftovers(self._table, self._ledger)

    async def _recover_one(self, run: Run) -> tuple[Recovery, int]:
        entries = await self._ledger.load_run_files(run.run_id)
        found = RunFiles(
            in_table=self._table.has_run(run.run_id), staged_whole=self._table.staged_whole(run.run_id, entries)
        )
        # Only if this exporter still owns the table, what it found is the state of the table.
        await self._ledger.check_owner()
        action = recover(run.state, found)
        if action is Recovery.REFUSE:
            raise ExportMismatch(f"run {run.run_id}: {UNKNOWN_RUN}")
        if action is Recovery.ABANDON:
            removed = await asyncio.to_thread(self._table.discard, run.run_id, entries)
            await self._ledger.record_abandoned(run.run_id, self._now_us(), f"left {run.state} by a crash")
            return action, removed
        if action is Recovery.PUBLISH:
            await self._steps.publish(run.run_id, entries)
        elif action is Recovery.RECORD_PUBLISHED:
            await asyncio.to_thread(self._table.sync)
            await self._ledger.advance(run.run_id, RunState.PUBLISHED)
        await self._steps.save(run.run_id)
        return action, 0

    def _empty_staging(self) -> int:
        """Removes all files in the staging folder, after every run has ended. Returns their number."""
        return sum(remove_tree(folder) for folder in self._layout.staging.iterdir())
