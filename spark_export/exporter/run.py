"""Exports all new messages in steps of bounded size. Each step is one run, which is one commit of the table.

1. The node says where each partition ends, and the table's log says how far the table has it. The messages between are
   new; a step takes the first of them. A stream that has lost messages is left out.
2. Tasks read their ranges from the node and write files, which no reader sees. They check that they got every index.
3. One transaction of the table's log adds the files and moves the positions. Only this step decides what is exported:
   a crash before it changes nothing, and a crash after it only delays reports.
4. The node gets the positions, which show the lag and reveal a restored node. The history gets a line.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeAlias

import structlog

from spark_export.exporter.job import ExportSettings
from spark_export.exporter.node_side import run_tasks
from spark_export.exporter.planning import AMOUNTS, ExportStep, Pace, cut_at, plan_ranges, plan_tasks, take_step
from spark_export.tables.columns import DATE, ROWS
from spark_export.tables.errors import (
    ExportDiskFull,
    ExportError,
    ExportStopped,
    PositionsMoved,
    StreamsLeftOut,
    full_disk_told,
    is_disk_full,
)
from spark_export.tables.filesystem import remove_files
from spark_export.tables.model import FilesPlan, Incarnation, IndexRange, LeftOutStream, TableState, Written
from stream_client.errors import ClientError
from stream_storage.failpoint import failpoint

if TYPE_CHECKING:
    from spark_export.exporter.history import ExportHistory

OnStep: TypeAlias = Callable[[ExportStep], None]
"""Called after each committed step."""

logger = structlog.get_logger(__name__)

OVERTAKEN_MAX = 5
"""How often in a row another exporter may be faster before an export gives up."""


@dataclass(frozen=True)
class Progress:
    """The progress of an export over all its steps, which count from 1. `data_bytes_planned` is an estimate."""

    step: int
    rows: int
    rows_planned: int
    data_bytes: int
    data_bytes_planned: int


@dataclass(frozen=True)
class ExportOutcome:
    """The result of an export of all new messages.

    run_id: the run of the last step, None if there were no new messages.
    data_bytes, file_bytes: the size of the messages' data, and of the files.
    lost: the number of messages that retention removed before they could be exported.
    rows_left, data_bytes_left: the rows, and their estimated bytes of data, for which the time limit left no time.
    """

    run_id: int | None
    rows: int
    data_bytes: int
    file_bytes: int
    files: int
    partitions: int
    lost: int
    seconds: float
    steps: int = 0
    left_out: tuple[LeftOutStream, ...] = ()
    rows_left: int = 0
    data_bytes_left: int = 0


def log_step(step: ExportStep) -> None:
    """Logs a committed step. Programs pass this function to `Exporter.run`, which otherwise logs no steps."""
    logger.info("step published", run=step.run, rows=step.rows, files=step.files, seconds=round(step.seconds, 3))


class Exporter:
    """Executes the exports of one table, one at a time, in threads of this process. It is a context manager.

    on_progress: called about every PROGRESS_INTERVAL_S seconds while tasks write files.
    stop: a run ends soon after this event is set. A commit that has begun is completed first.
    """

    overtaken_event = "overtaken by another exporter"
    """The log text before an export is planned anew."""

    def __init__(
        self,
        settings: ExportSettings,
        on_progress: Callable[[Progress], None] | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """Creates a missing table. Raises ExportError."""
        self._settings = settings
        self._log = settings.open_log()
        self._table_id = self._log.table_id()
        self._client_id = settings.consumer(self._table_id)
        self._node = settings.node_side()
        self._on_progress = on_progress
        self.stop = stop or threading.Event()
        self._is_first_plan = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """Closes the resources that the exports have opened: none, in this class."""

    def run(self, *, on_step: OnStep | None = None) -> ExportOutcome:
        """Exports all messages that are on the node at the time of the call, in steps that are committed separately.

        Raises StreamsLeftOut at the end if a stream could not be exported, ExportStopped if messages were left when
        `stop` was set, and other ExportErrors and ClientErrors at once.
        """
        started_s, self._on_step = time.monotonic(), on_step
        # The committed steps of this export, and the streams that it cannot export.
        self._steps, self._left_out = list[ExportStep](), dict[str, LeftOutStream]()
        self._pace = Pace(self._settings.step_sizes()[0], self._settings.seconds_max, started_s)
        until: dict[Incarnation, int] | None = None
        left: list[IndexRange] | None = None
        overtaken = committed = 0
        while left is None:
            self._check_stop()
            # Each step is planned again, since retention and deletions may have removed messages during the last step.
            state, ranges = self._plan(until)
            if until is None:
                # Later messages are left to the next call. Otherwise this one would not end while a producer pushes.
                until = {each.of: each.end for each in ranges}
            try:
                with full_disk_told(self._log.place):
                    left = self._export(state, ranges) if ranges else []
            except PositionsMoved as error:
                # Another exporter has committed some of these messages; the plan is made anew from its positions. Only
                # failures in a row count: a long export that gets on may meet another exporter often.
                overtaken = overtaken + 1 if len(self._steps) == committed else 1
                committed = len(self._steps)
                if overtaken > OVERTAKEN_MAX:
                    raise
                logger.warning(self.overtaken_event, reason=str(error))
        steps = self._steps
        outcome = ExportOutcome(
            run_id=steps[-1].run if steps else None,
            **{name: sum(getattr(each, name) for each in steps) for name in AMOUNTS},
            partitions=len({each.of.place for step in steps for each in step.ranges}),
            seconds=time.monotonic() - started_s,
            steps=len(steps),
            left_out=tuple(self._left_out.values()),
            rows_left=sum(each.rows for each in left),
            data_bytes_left=sum(each.size_bytes for each in left),
        )
        # The caller gets the outcome in any case: other streams may have been exported.
        if self._left_out:
            raise StreamsLeftOut(outcome)
        return outcome

    def check_alive(self) -> None:
        """Raises SparkLost if no later call can succeed. A daemon calls this method between two runs."""

    def _check_stop(self) -> None:
        if self.stop.is_set():
            where = self._settings.folder
            raise ExportStopped(f"the export into {where} was stopped; the next one takes its messages again")

    def _plan(self, until: Mapping[Incarnation, int] | None) -> tuple[TableState, list[IndexRange]]:
        """Returns the state of the table, and the ranges of the new messages up to `until`."""
        # The table is read first. A position that another exporter moved later could be beyond the ends read before it.
        state = self._log.load()
        selection = self._settings.selection
        ends = self._node.list_ends(selection)
        if not ends and selection.pattern is not None:
            logger.warning("no stream of the node matches", pattern=selection.pattern)
        # A stream that was left out stays out until the next export, so that the stream is reported once.
        ends = [each for each in ends if each.stream not in self._left_out]
        # Without the saved positions, a node that was put back to an earlier state, and has grown again, could not be
        # told from a healthy one.
        saved = self._node.load_positions(self._client_id)
        put_back = self._node.find_put_back(ends, state, saved)
        planned, left_out = plan_ranges(ends, state, accept_lost=self._settings.accept_lost, put_back=put_back)
        # The table itself can refuse a stream, because of its name. Leave out each stream with a problem as a whole.
        refused = {each.of.stream: self._log.refusal_of(each.of.stream) for each in planned}
        for each in (*left_out, *(LeftOutStream(stream, reason) for stream, reason in refused.items() if reason)):
            self._leave_out(each)
        # A run that was killed after its commit has not saved its positions on the node. Save them now: otherwise the
        # node shows a wrong lag until new messages come.
        there = {(end.stream, end.partition, end.created_us) for end in ends if end.stream not in self._left_out}
        latest = [(of, each.end) for of, each in state.latest().values() if (*of.place, of.created_us) in there]
        self._tell({of: end for of, end in latest if saved.get(of.place, 0) < end})
        ranges = [each for each in planned if each.of.stream not in self._left_out]
        return state, ranges if until is None else cut_at(ranges, until)

    def _leave_out(self, each: LeftOutStream) -> None:
        self._left_out.setdefault(each.stream, each)
        logger.warning("stream left out", stream=each.stream, reason=each.reason)

    def _export(self, state: TableState, left: list[IndexRange]) -> list[IndexRange] | None:
        """Exports a step, which begins with these ranges. Returns the ranges for which there is no time, or [] at the
        end; None if the other ranges are to be planned again."""
        # Take a step of a size that fits into the time that is left.
        rows_max = self._pace.next_rows(time.monotonic(), sum(each.rows for each in left))
        if rows_max is None:
            return left
        part = take_step(left, rows_max, self._settings.step_sizes()[1])
        on_rows, parallelism = self._progress_reporter(left), os.cpu_count() or 1

        tasks = plan_tasks(part, parallelism)
        step = self._step(state, lambda plan: run_tasks(tasks, plan, self._node, parallelism, on_rows))
        if step is not None:
            # Learn the speed, which decides the size of the next step, and tell the caller.
            self._pace.took(step.rows, step.seconds)
            self._committed(step)
        return [] if part == left else None

    def _committed(self, step: ExportStep) -> None:
        self._steps.append(step)
        if self._on_step is not None:
            self._on_step(step)

    def _step(self, state: TableState, write: Callable[[FilesPlan], Written]) -> ExportStep | None:
        """Executes one run, whose tasks write files in `write`. Returns None, and commits nothing, without new rows."""
        started_us, started_s, written = time.time_ns() // 1000, time.monotonic(), Written()
        failpoint("planned")
        # Decide where the files go. Nobody else uses their names, so they can be removed after a failure.
        plan = self._plan_files(state)
        try:
            # Let the tasks write files.
            written = write(plan)
            failpoint("tasks_done")
            self._check_written(plan, written)
            # Leave out the streams that could not be read, with the files that other tasks wrote of them: a later
            # position would hide the gap.
            for each in written.left_out:
                self._leave_out(each)
            remove_files(plan, [each for each in written.files if each.stream in self._left_out])
            files = [each for each in written.files if each.stream not in self._left_out]
            written = Written(files, written.ranges, written.left_out)
        except BaseException as error:
            # Nothing was committed, so the files are of no use.
            self._abandon(plan, written, error, started_us)
            raise
        if not written.ranges:
            if written.left_out:
                self._abandon(plan, written, ExportError(written.left_out[0].reason), started_us)
            else:
                self._log.abandon(plan)
            return None
        return self._commit(plan, written, started_us, started_s)

    def _check_written(self, plan: FilesPlan, written: Written) -> None:
        """Raises ExportError if the files of a run must not be committed."""
        # The tasks of a small step can end before their progress is asked for.
        self._check_stop()

    def _commit(self, plan: FilesPlan, written: Written, started_us: int, started_s: float) -> ExportStep:
        failpoint("before_commit")
        try:
            commit = self._log.append(plan, written)
        except PositionsMoved as error:
            # Another exporter has committed these messages. The files of this run would double them.
            self._abandon(plan, written, error, started_us)
            raise
        except (ExportError, OSError) as error:
            # The answer may have got lost, and the table may have the files: they stay.
            self._abandon(plan, Written(), error, started_us)
            failure = ExportDiskFull if is_disk_full(error) else ExportError
            raise failure(f"the run is written, and was not added to the table: {error}") from error
        # The messages are in the table. The steps that follow only report this.
        failpoint("committed")
        step = ExportStep(
            run=commit.run,
            ranges=tuple(commit.ranges),
            rows=sum(each.rows for each in commit.ranges),
            data_bytes=sum(each.data_bytes for each in written.files),
            file_bytes=sum(each.file_bytes for each in written.files),
            files=len(written.files),
            seconds=time.monotonic() - started_s,
        )
        # The node comes first, because it shows the lag to everybody; then the history of this export.
        self._tell({each.of: each.end for each in commit.ranges})
        failpoint("saved")
        self._open_history().add_run(step, started_us)
        return step

    def _tell(self, moved: Mapping[Incarnation, int]) -> None:
        """Saves the positions on the node. A failure is only logged, because the next run saves them, too."""
        try:
            if moved:
                self._node.save_positions(self._client_id, moved)
        except ClientError as error:
            logger.warning("positions not told to the node", error=" ".join(str(error).split()))

    def _abandon(self, plan: FilesPlan, written: Written, error: BaseException, started_us: int) -> None:
        """Removes the files of a run that is not in the table, and notes in the history why."""
        # The error is one line in the history, in place of a traceback.
        said = "interrupted" if isinstance(error, (ExportStopped, KeyboardInterrupt)) else str(error)
        text = " ".join(said.split()) or type(error).__name__
        self._log.abandon(plan, written.files)
        logger.warning("run abandoned", error=text)
        self._open_history().add_failure(text, started_us)

    def _plan_files(self, state: TableState) -> FilesPlan:
        """Returns how the tasks of a run write files. Warns, once, of columns of our own table that stay null."""
        if self._is_first_plan and self._log.is_own():
            # A table of ours has more columns than a message only if it was begun with a decoder.
            known = {*ROWS.names, *self._settings.columns().names, DATE.name}
            if unfilled := [name for name in self._log.column_names() if name not in known]:
                event = "decoded columns stay null, give --decode and --schema as in the first run"
                logger.warning(event, columns=unfilled)
        self._is_first_plan = False
        return self._settings.plan_files(self._log, state)

    def _open_history(self) -> ExportHistory:
        # A run that finds nothing new does without SQLAlchemy, whose import is a third of its processor time.
        from spark_export.exporter.history import history_of

        place = self._settings.place()
        history = history_of(place, self._settings.history)
        history.begin(self._table_id, str(place), self._log.format, self._client_id)
        return history

    def _progress_reporter(self, left: Sequence[IndexRange]) -> Callable[[int, int], None]:
        """Returns a function that takes the progress of the current step, and reports the progress of the whole export.
        It raises ExportStopped."""
        steps = self._steps
        rows, data_bytes = sum(each.rows for each in steps), sum(each.data_bytes for each in steps)
        planned = rows + sum(each.rows for each in left), data_bytes + sum(each.size_bytes for each in left)

        def tell(step_rows: int, step_bytes: int) -> None:
            self._check_stop()
            if self._on_progress is not None:
                done = rows + step_rows, data_bytes + step_bytes
                try:
                    self._on_progress(Progress(len(steps) + 1, done[0], planned[0], done[1], planned[1]))
                except Exception:
                    # An error of the caller's function does not end the run.
                    logger.exception("progress not told")

        return tell
