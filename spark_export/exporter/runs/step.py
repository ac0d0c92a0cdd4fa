"""Executes one step of an export: writes files, publishes them in the table, and saves the exported indexes.

A step is one run in the ledger, the record of all runs. `run.py` plans the steps and describes the order of the actions
in a step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from spark_export.exporter.cleaning import remove_own
from spark_export.exporter.errors import NO_ROOM, ExportDiskFull, ExportError
from spark_export.exporter.failpoint import failpoint
from spark_export.exporter.ledger.ledger import Ledger
from spark_export.exporter.model import FileEntry, LeftOutStream, Range, RunState
from spark_export.exporter.node_side import NodeSide
from spark_export.exporter.runs.engine import ExportEngine
from spark_export.exporter.runs.plan import plan_tasks
from spark_export.exporter.runs.task import TaskResult, TaskSettings, read_progress
from spark_export.exporter.runs.waiting import to_its_end
from spark_export.exporter.tables.layout import Layout, remove_tree
from spark_export.exporter.tables.table import Table

logger = structlog.get_logger(__name__)

PROGRESS_INTERVAL_S = 0.2


@dataclass(frozen=True)
class ExportStep:
    """A published step of an export, which is one run in the ledger, the record of all runs.

    rows: the number of exported messages.
    data_bytes: the size of the data of these messages.
    file_bytes: the total size of the files.
    places: the exported streams and partitions.
    lost: the number of messages that retention removed before they could be exported.
    """

    run_id: int
    rows: int
    data_bytes: int
    file_bytes: int
    files: int
    places: frozenset[tuple[str, int]]
    lost: int
    seconds: float


async def log_step(step: ExportStep) -> None:
    """Logs a published step. Programs pass this function to `Exporter.run`, which otherwise logs no steps."""
    logger.info("step published", run=step.run_id, rows=step.rows, files=step.files, seconds=round(step.seconds, 3))


class _NothingRead(Exception):
    """No stream of a step could be read. The text of this error says why one of the streams could not be read."""


class StepRunner:
    """Executes the steps of one export, one at a time. The caller holds the lock of the export folder.

    settings: the settings of the tasks of all steps.
    now_us: returns the wall-clock time in microseconds since 1970.
    is_ending: True after the caller was cancelled during a publication. The runner completes the publication, and the
        caller then begins no further step.
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
        now_us: Callable[[], int],
    ) -> None:
        self._layout = layout
        self._ledger = ledger
        self._table = table
        self._node = node
        self._engine = engine
        self._settings = settings
        self._now_us = now_us
        self.is_ending = False

    async def run(
        self,
        ranges: Sequence[Range],
        left_out: dict[str, LeftOutStream],
        *,
        bytes_left: int,
        on_rows: Callable[[int, int], None],
    ) -> ExportStep | None:
        """Exports the ranges as one run. Streams that cannot be read are added to `left_out`.

        Returns None, and publishes nothing, if no stream could be read. Raises ExportError, ClientError.

        bytes_left: the estimated size of all messages that are not exported yet, including this step.
        on_rows: called every PROGRESS_INTERVAL_S seconds with the number of rows and of bytes of message data that this
            step has written so far.
        """
        started_s = time.monotonic()
        # From here on the ledger has the run, so that after a crash the next export finishes or abandons it.
        run_id = await self._ledger.begin_run(ranges, self._now_us())
        failpoint("planned")
        try:
            written = await self._write(run_id, ranges, bytes_left, on_rows)
            # One stream that cannot be read does not hold up the others: its messages stay for a later run.
            for each in written.left_out:
                left_out.setdefault(each.stream, each)
                logger.warning("stream left out", stream=each.stream, reason=each.reason)
            ranges = [each for each in ranges if each.stream not in left_out]
            if not ranges:
                raise _NothingRead(written.left_out[0].reason)
            entries = await to_its_end(self._arrange(run_id, ranges, written))
        except BaseException as error:
            # Readers see nothing of the run yet. A further cancellation, such as a second Ctrl-C, ends this wait, and
            # the abandoning goes on.
            await asyncio.shield(self._abandon(run_id, error))
            if isinstance(error, _NothingRead):
                return None
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                raise ExportDiskFull(
                    f"no room in {self._layout.folder} for what is new: {error.strerror}; nothing of it is in the "
                    "table, free space and run again"
                ) from error
            raise
        failpoint("written")
        # The run is being published and can no longer be abandoned, so a cancellation waits for the end of the run.
        await self.end_after(self._finish(run_id, entries))
        return ExportStep(
            run_id=run_id,
            rows=sum(each.rows for each in entries),
            data_bytes=sum(each.data_bytes for each in entries),
            file_bytes=sum(each.file_bytes for each in entries),
            files=len(entries),
            places=frozenset((each.stream, each.partition) for each in ranges),
            lost=sum(each.lost for each in ranges),
            seconds=time.monotonic() - started_s,
        )

    async def end_after(self, work: Awaitable[None]) -> None:
        """Waits until `work` has ended, even if the caller is cancelled meanwhile.

        A cancellation only sets `is_ending`; no CancelledError is raised.
        """
        task = asyncio.ensure_future(work)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            self.is_ending = True
            await task

    async def _write(
        self, run_id: int, ranges: Sequence[Range], bytes_left: int, on_rows: Callable[[int, int], None]
    ) -> TaskResult:
        attempts = self._layout.attempts(run_id)
        attempts.mkdir(parents=True)
        await self._ledger.advance(run_id, RunState.WRITING)
        # The engine starts first, because only a started engine knows how many tasks it executes side by side.
        tasks = plan_tasks(ranges, await self._engine.prepare(bytes_left))
        settings = self._table.place_files(run_id, replace(self._settings, folder=str(attempts)))
        # The tasks may be in other processes. They note their progress in files, which are read until the tasks end.
        watching = asyncio.create_task(_watch(attempts, on_rows))
        try:
            written = await self._engine.run(tasks, settings)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        failpoint("tasks_done")
        return written

    async def _arrange(self, run_id: int, ranges: Sequence[Range], written: TaskResult) -> list[FileEntry]:
        """Moves the written files to their paths for publication, and records the files in the ledger.

        Files of streams that are left out are not recorded, and so never published. Raises ExportError if the files
        have more or fewer rows than the ranges.
        """
        without = {each.stream for each in written.left_out}
        files = [each for each in written.files if each.stream not in without]
        # Each task has checked its own range. The sum also shows a task whose result is missing or came twice.
        self._check_rows(ranges, files)
        entries = await asyncio.to_thread(self._table.arrange, run_id, files)
        await self._ledger.record_written(run_id, await self._ledger.current_generation(), entries, without)
        return entries

    def _check_rows(self, ranges: Sequence[Range], written: Sequence[FileEntry]) -> None:
        wanted, got = sum(each.rows for each in ranges), sum(each.rows for each in written)
        if wanted != got:
            raise ExportError(f"the tasks wrote {got} rows of {wanted}; nothing is published")

    async def _finish(self, run_id: int, entries: Sequence[FileEntry]) -> None:
        await self.publish(run_id, entries)
        await self.save(run_id)

    async def publish(self, run_id: int, entries: Sequence[FileEntry]) -> None:
        """Adds the files of a run to the table, and records the publication in the ledger.

        Raises ExportError if this fails. The next run then publishes the files.
        """
        ranges = await self._ledger.load_ranges(run_id)
        # 1. Readers see all rows of the run, or none. After a crash behind this step, the next export finds the run in
        # the table, and goes on with step 2.
        try:
            await asyncio.to_thread(self._table.publish, run_id, entries, ranges)
        except OSError as error:
            raise ExportError(
                f"run {run_id} is written, and cannot be put into the table: {error}; the next run does it"
            ) from error
        failpoint("between_publish_and_ledger")
        # 2. Files of failed attempts are listed here, and removed only when the ledger has the publication.
        leftovers = await asyncio.to_thread(self._table.find_leftovers, run_id, entries)
        await self._ledger.advance(run_id, RunState.PUBLISHED)
        failpoint("published")
        await remove_own(self._table, self._ledger, leftovers)

    async def save(self, run_id: int) -> None:
        """Saves the end indexes of a published run at the node, and removes the staging folder of the run."""
        # After a crash before `advance`, the next run saves the same indexes again, which changes nothing.
        taken = await self._ledger.load_ranges(run_id)
        await asyncio.to_thread(self._node.save_positions, self._ledger.identity.client_id, taken)
        await self._ledger.advance(run_id, RunState.SAVED, now_us=self._now_us())
        failpoint("saved")
        # A folder that a crash leaves here is removed by the next run, which empties the staging folder.
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


async def _watch(attempts: Path, on_rows: Callable[[int, int], None]) -> None:
    """Calls `on_rows` every PROGRESS_INTERVAL_S seconds with the numbers of rows and bytes that tasks have written.

    attempts: the folder into which the tasks write their progress.
    """
    while True:
        await asyncio.sleep(PROGRESS_INTERVAL_S)
        rows, data_bytes = await asyncio.to_thread(read_progress, attempts)
        if rows:
            failpoint("writing")
        on_rows(rows, data_bytes)
