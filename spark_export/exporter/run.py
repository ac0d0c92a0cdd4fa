"""One run of the exporter. The order of its steps makes each message arrive in the table exactly once.

A run uses the ledger, an SQLite file that records all runs, and a staging folder for unpublished files.

1. Finish or abandon every earlier run that a crash interrupted (`run_machine.py::recover`). Then empty the staging
folder.
2. Ask the node for the ends of its partitions, and the ledger for the ends of the export. Plan to export the messages
between these ends.
3. Tasks write files into the run's staging folder, and check that they get every index. Each file is hashed and synced.
4. The files are moved to their final structure in staging, and the ledger records them with checksums (state written).
5. One atomic step adds all files of the run to the table, and the ledger records this (state published).
6. The node saves the end indexes of the export (state saved).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import structlog

from spark_export.exporter.engine import Engine
from spark_export.exporter.errors import NO_ROOM, DiskFull, ExportError, ExportMismatch
from spark_export.exporter.failpoint import failpoint
from spark_export.exporter.layout import Layout, remove_tree
from spark_export.exporter.ledger import Ledger
from spark_export.exporter.model import FileEntry, Range, Run, RunState
from spark_export.exporter.node_side import NodeSide, Selection
from spark_export.exporter.plan import plan_ranges, plan_tasks
from spark_export.exporter.run_machine import Found, Recovery, recover
from spark_export.exporter.table import Table
from spark_export.exporter.table_state import UNKNOWN_RUN, check_runs
from spark_export.exporter.task import TaskSettings, read_progress

logger = structlog.get_logger(__name__)

PROGRESS_INTERVAL_S = 0.2

T = TypeVar("T")


@dataclass(frozen=True)
class Progress:
    """The progress of a run while its tasks write files.

    rows, data_bytes: the rows, and the bytes of message data, written so far. rows_planned, data_bytes_planned: the
    totals of the run; the bytes are an estimate."""

    rows: int
    rows_planned: int
    data_bytes: int
    data_bytes_planned: int


@dataclass(frozen=True)
class Outcome:
    """The result of one run of the exporter.

    run_id: None if there were no new messages. data_bytes: the size of the messages' data. file_bytes: the size of the
    files. lost: the number of messages that retention removed before they could be exported. recovered: descriptions of
    the earlier runs that this run recovered. swept: the number of files of earlier runs that were removed."""

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


class Exporter:
    """Executes the runs of one export folder, one at a time. The caller holds the folder's lock.

    settings: for the tasks of all runs. accept_lost: whether to go on if messages were removed before they could be
    exported. now_us: returns the wall-clock time in microseconds since 1970. on_progress: called about every
    PROGRESS_INTERVAL_S while tasks write files.
    """

    def __init__(
        self,
        layout: Layout,
        ledger: Ledger,
        table: Table,
        node: NodeSide,
        engine: Engine,
        *,
        settings: TaskSettings,
        selection: Selection,
        accept_lost: bool,
        now_us: Callable[[], int],
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._layout = layout
        self._ledger = ledger
        self._table = table
        self._node = node
        self._engine = engine
        self._settings = settings
        self._selection = selection
        self._accept_lost = accept_lost
        self._now_us = now_us
        self._on_progress = on_progress

    async def run(self) -> Outcome:
        """Exports all new messages.

        Raises ExportError, ClientError. After an error, the next run exports the unpublished messages.
        """
        started_s = time.monotonic()
        recovered, swept = await self.recover()
        await check_runs(self._table, self._ledger)
        ends = await asyncio.to_thread(self._node.list_ends, self._selection)
        positions = await asyncio.to_thread(self._node.load_positions, self._ledger.identity.client_id)
        exported = await self._ledger.load_exported()
        ranges = plan_ranges(ends, exported, positions, accept_lost=self._accept_lost)
        if not ranges:
            elapsed_s = time.monotonic() - started_s
            return Outcome(None, 0, 0, 0, 0, 0, 0, elapsed_s, tuple(recovered), swept)
        for refusal in filter(None, map(self._table.refusal_of, dict.fromkeys(each.stream for each in ranges))):
            raise ExportError(refusal)
        run_id = await self._ledger.begin_run(ranges, self._now_us())
        failpoint("planned")
        try:
            entries = await self._write(run_id, ranges)
        except BaseException as error:
            await asyncio.shield(self._abandon(run_id, error))
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                raise DiskFull(
                    f"no room in {self._layout.folder} for what is new: {error.strerror}; nothing of it is in the "
                    "table, free space and run again"
                ) from error
            raise
        failpoint("written")
        finishing = asyncio.create_task(self._finish(run_id, entries))
        try:
            await asyncio.shield(finishing)
        except asyncio.CancelledError:
            # The run is being published and cannot be abandoned any more, so a cancellation waits for its end.
            await finishing
        return Outcome(
            run_id,
            sum(each.rows for each in entries),
            sum(each.data_bytes for each in entries),
            sum(each.file_bytes for each in entries),
            len(entries),
            len(ranges),
            sum(each.lost for each in ranges),
            time.monotonic() - started_s,
            tuple(recovered),
            swept,
        )

    async def recover(self) -> tuple[list[str], int]:
        """Finishes or abandons every interrupted run.

        Returns a description of each such run, and the number of removed files.
        """
        done: list[str] = []
        swept = 0
        for run in await self._ledger.load_unfinished():
            action, files = await self._recover_one(run)
            swept += files
            done.append(f"run {run.run_id}, left {run.state}: {action.value}")
            logger.info("run recovered", run=run.run_id, state=run.state, action=action.value, files_removed=files)
        return done, swept + await asyncio.to_thread(self._sweep)

    async def _recover_one(self, run: Run) -> tuple[Recovery, int]:
        entries = await self._ledger.load_run_files(run.run_id)
        found = Found(
            in_table=self._table.has_run(run.run_id), staged_whole=self._table.staged_whole(run.run_id, entries)
        )
        action = recover(run.state, found)
        if action is Recovery.REFUSE:
            raise ExportMismatch(f"run {run.run_id}: {UNKNOWN_RUN}")
        if action is Recovery.ABANDON:
            removed = await asyncio.to_thread(self._table.discard, run.run_id, entries)
            await self._ledger.record_abandoned(run.run_id, self._now_us(), f"left {run.state} by a crash")
            return action, removed
        if action is Recovery.PUBLISH:
            await self._publish(run.run_id, entries)
        elif action is Recovery.RECORD_PUBLISHED:
            await asyncio.to_thread(self._table.sync)
            await self._ledger.advance(run.run_id, RunState.PUBLISHED)
        await self._save(run.run_id)
        return action, 0

    def _sweep(self) -> int:
        """Removes all files in staging; no run needs them, since every run has ended. Returns the number of files."""
        return sum(remove_tree(folder) for folder in self._layout.staging.iterdir())

    async def _write(self, run_id: int, ranges: Sequence[Range]) -> list[FileEntry]:
        attempts = self._layout.attempts(run_id)
        attempts.mkdir(parents=True)
        await self._ledger.advance(run_id, RunState.WRITING)
        tasks = plan_tasks(ranges, await self._engine.prepare())
        settings = replace(self._settings, folder=str(attempts))
        watching = asyncio.create_task(self._watch(attempts, ranges))
        try:
            written = await self._engine.run(tasks, settings)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        self._check_rows(ranges, written)
        failpoint("tasks_done")
        return await _to_its_end(self._arrange(run_id, written))

    async def _arrange(self, run_id: int, written: Sequence[FileEntry]) -> list[FileEntry]:
        entries = await asyncio.to_thread(self._table.arrange, run_id, written)
        await self._ledger.record_written(run_id, await self._ledger.current_generation(), entries)
        return entries

    async def _watch(self, attempts: Path, ranges: Sequence[Range]) -> None:
        rows_planned = sum(each.rows for each in ranges)
        bytes_planned = sum(each.size_bytes for each in ranges)
        while True:
            await asyncio.sleep(PROGRESS_INTERVAL_S)
            rows, data_bytes = await asyncio.to_thread(read_progress, attempts)
            if rows:
                failpoint("writing")
            if self._on_progress is not None:
                self._on_progress(Progress(rows, rows_planned, data_bytes, bytes_planned))

    def _check_rows(self, ranges: Sequence[Range], written: Sequence[FileEntry]) -> None:
        wanted, got = sum(each.rows for each in ranges), sum(each.rows for each in written)
        if wanted != got:
            raise ExportError(f"the tasks wrote {got} rows of {wanted}; nothing is published")

    async def _finish(self, run_id: int, entries: Sequence[FileEntry]) -> None:
        await self._publish(run_id, entries)
        await self._save(run_id)

    async def _publish(self, run_id: int, entries: Sequence[FileEntry]) -> None:
        try:
            await asyncio.to_thread(self._table.publish, run_id, entries)
        except OSError as error:
            raise ExportError(
                f"run {run_id} is written, and cannot be put into the table: {error}; the next run does it"
            ) from error
        failpoint("between_publish_and_ledger")
        await self._ledger.advance(run_id, RunState.PUBLISHED)
        failpoint("published")

    async def _save(self, run_id: int) -> None:
        taken = await self._ledger.load_ranges(run_id)
        await asyncio.to_thread(self._node.save_positions, self._ledger.identity.client_id, taken)
        await self._ledger.advance(run_id, RunState.SAVED, now_us=self._now_us())
        failpoint("saved")
        await asyncio.to_thread(remove_tree, self._layout.run_staging(run_id))

    async def _abandon(self, run_id: int, error: BaseException) -> None:
        """Abandons a run that failed before its files were published: removes its files, and records the error.

        If the ledger cannot record the error, the next run abandons this run."""
        said = "interrupted" if isinstance(error, asyncio.CancelledError) else str(error)
        text = " ".join(said.split()) or type(error).__name__
        try:
            removed = await asyncio.to_thread(self._table.discard, run_id, [])
            await self._ledger.record_abandoned(run_id, self._now_us(), text)
        except ExportError as second:
            # The caller raises the first error; the second one is only logged.
            logger.warning("run left behind", run=run_id, error=text, reason=str(second))
        else:
            logger.warning("run abandoned", run=run_id, error=text, files_removed=removed)


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Executes `work` to its end, even if the caller is cancelled; the cancellation is raised after the end.

    Otherwise `work` could go on after this exporter has released the folder's lock."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise
