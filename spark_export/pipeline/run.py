"""Runs a pipeline: builds its tables from the table of an export, and keeps them up to date by a streaming query.

The table `state/index_spans` has the indexes that were taken. So each query begins where these indexes end, with a new
checkpoint, which only counts the micro-batches of this process.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import structlog
from deltalake import QueryBuilder

from ockam.files.durable_files import make_folder
from spark_export.errors import SourceError
from spark_export.pipeline.bronze import FORMAT, BronzeTable, TableSource, read_bronze
from spark_export.pipeline.outputs import Manifest, load_manifest, table_at
from spark_export.pipeline.step import TAKEN, Settings, Step
from spark_export.session import WORKER_LATE, close_session, find_own_message, first_line, is_sparks, open_query
from spark_export.shipping import register_format
from spark_export.tables.errors import ExportError, TableRefused
from spark_export.tables.filesystem import locked

RETRY_S = 10.0
ATTEMPTS_MAX = 4
STOP_POLL_S = 0.5
TAKEN_ENDS = 'SELECT stream, "partition", era, max(last) + 1 FROM t GROUP BY stream, "partition", era'

logger = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Report:
    """The result of a run.

    rows: the number of new messages. steps: the number of published steps. rebuilt: whether all tables were built anew.
    notes: a line for each setting that has had no effect yet.
    """

    rows: int
    steps: int
    rebuilt: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pipeline:
    """A pipeline: the table of an export, the folder of the pipeline's tables, and the settings.

    step_rows: the number of new messages that one step takes at most. A rebuild is one step.
    """

    bronze: BronzeTable
    out: Path
    settings: Settings
    step_rows: int = 1_000_000

    def run(self, spark: Any, *, rebuild: bool = False) -> Report:
        """Updates the tables with the new messages of an export. If there are no tables yet, builds all of them.

        Raises TableRefused if another run is active in the output folder, or the tables were built from another export
        or with other settings, and other ExportErrors. A rebuild can have other settings.
        """
        with self.alone():
            state, export = self.find_state(rebuild=rebuild)
            steps = list[Report]()
            if state is None:
                state = Manifest(export, self.settings.named())
                with _sparks_errors():
                    step = Step(spark, self.out, state, self.settings, anew=True)
                    state, rows = step.take(read_bronze(spark, self.bronze))
                return Report(rows, 1, True, self.settings.notes(state))
            for attempt in range(ATTEMPTS_MAX):
                try:
                    with self._query(spark, {"availableNow": True}, steps.append) as query:
                        query.awaitTermination()
                    break
                except ExportError as error:
                    # Nothing is lost: another query begins where the tables end.
                    if WORKER_LATE not in str(error) or attempt + 1 == ATTEMPTS_MAX:
                        raise
            state = load_manifest(self.out)
            assert state is not None
            return Report(sum(each.rows for each in steps), len(steps), False, self.settings.notes(state))

    def run_daemon(
        self,
        open_session: Callable[[], Any],
        *,
        every_s: float,
        stop: threading.Event,
        on_report: Callable[[Report], None] = lambda report: None,
    ) -> int:
        """Updates the tables every `every_s` seconds until `stop` is set. Returns the number of failures.

        A failure is logged. Then another session continues where the tables end. open_session: starts a Spark session,
        which is closed here. on_report: called after the first run and after each later step. Raises TableRefused at
        the beginning, as `run`.
        """
        self.find_state()
        failures, session = 0, open_session()
        try:
            first = self.run(session)
            for note in first.notes:
                logger.warning("setting without effect", note=note)
            on_report(first)
            with self.alone():
                while not stop.is_set():
                    try:
                        session = session or open_session()
                        with self._query(session, {"processingTime": f"{every_s} seconds"}, on_report) as query:
                            while not stop.is_set() and not query.awaitTermination(STOP_POLL_S):
                                pass
                    except (ExportError, SourceError, OSError) as error:
                        failures += 1
                        logger.error("pipeline failed", error=" ".join(str(error).split()))
                        # The session's Java may have died, and PySpark would go on asking it.
                        if session is not None:
                            close_session(session)
                        session = None
                        stop.wait(RETRY_S)
        finally:
            if session is not None:
                close_session(session)
        return failures

    def find_state(self, *, rebuild: bool = False) -> tuple[Manifest | None, str]:
        """Returns the state of the tables, or None if they must be built anew, and the id of the export.

        Needs no Spark. Raises TableRefused if there is no export, or the tables are of another export or settings.
        """
        log, out = self.bronze.open(), self.out
        if not log.exists():
            raise TableRefused(f"{self.bronze.path} holds no table of the format {self.bronze.table_format}")
        export, state = log.table_id(), None if rebuild else load_manifest(out)
        if state is None:
            return None, export
        if state.export != export:
            raise TableRefused(
                f"the tables in {out} were built from the export {state.export}, and this is the export {export}: "
                "choose another folder for its tables, or build the tables anew with --rebuild"
            )
        for name, value in self.settings.named().items():
            if state.settings[name] != value:
                raise TableRefused(
                    f"the tables in {out} were built with {name}={state.settings[name]}, and now {name}={value} is "
                    "given: give the same value, or build the tables anew with --rebuild"
                )
        return state, export

    def alone(self) -> AbstractContextManager[None]:
        """Holds the lock of the output folder. Raises TableRefused if another run has it."""
        make_folder(self.out.absolute())
        return locked(self.out / "pipeline.lock", f"another pipeline works in {self.out}")

    @contextmanager
    def _query(self, spark: Any, trigger: dict[str, Any], on_step: Callable[[Report], None]) -> Iterator[Any]:
        """Starts the streaming query that updates the tables, and stops it at the end. Raises ExportError."""

        def take(rows: Any) -> None:
            try:
                state = load_manifest(self.out)
                assert state is not None
                published, new = Step(rows.sparkSession, self.out, state, self.settings, anew=False).take(rows)
                if new:
                    on_step(Report(new, 1, False, self.settings.notes(published)))
            except ExportError:
                raise
            except Exception as error:
                raise _told(error) from error

        register_format(spark, TableSource)
        taken = pa.table(QueryBuilder().register("t", table_at(self.out, TAKEN)).execute(TAKEN_ENDS).read_all())
        start = json.dumps([[*row.values()] for row in taken.to_pylist()])
        options = {**self.bronze.options(), "starting_ends": start, "rows_max": str(self.step_rows)}
        with _sparks_errors():
            rows = spark.readStream.format(FORMAT).options(**options).load()
            with open_query(rows, take, **trigger) as query:
                yield query


@contextmanager
def _sparks_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if is_sparks(error):
            raise _told(error) from error
        raise


def _told(error: Exception) -> ExportError:
    return ExportError(f"the pipeline failed: {find_own_message(str(error)) or first_line(error)}")
