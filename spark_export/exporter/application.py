"""The exporter as a PySpark application: a streaming query reads a node, and its executors write the table's files.

    spark-submit …/stream_node/__main__.py export daemon LAKE --node HOST:PORT

A run is a query `readStream` with the trigger `availableNow` (`spark_export/session.py::open_query`). For each
micro-batch, tasks write its rows as files (`spark_files`), and this process commits them and the new positions in one
transaction of the table. These positions decide where the next query begins, so each checkpoint is used by one query
only, and this exporter and the one without Spark (`run.py`) can continue each other's exports.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import wait
from dataclasses import replace
from typing import Any

import structlog

from spark_export.exporter.job import ExportSettings
from spark_export.exporter.node_side import in_thread
from spark_export.exporter.planning import take_step
from spark_export.exporter.run import Exporter
from spark_export.exporter.spark_files import PAGES, PagesSource, write_files
from spark_export.session import (
    WORKER_LATE,
    close_session,
    find_own_message,
    is_embedded,
    is_sparks,
    is_submitted,
    open_query,
    open_session,
)
from spark_export.shipping import register_format
from spark_export.source.plan import QueryPosition, by_place, to_offsets
from spark_export.source.spark_versions import HAS_LIMITS
from spark_export.tables.address import parse_place
from spark_export.tables.errors import ExportError, PositionsMoved, SparkLost, TaskFailed
from spark_export.tables.model import FilesPlan, IndexRange, LeftOutStream, TablePosition, TableState, Written

logger = structlog.get_logger(__name__)

STOP_POLL_S = 0.2
CLUSTER_FACTOR = 10
"""The factor of the default step size on a cluster, which executes many tasks at once."""
PYTHONS = re.compile(r"^\w*Error: .+", re.MULTILINE)
"""Finds a Python error that is not of this project, such as that of a full disk, in the traceback of a Spark worker."""


class SparkExporter(Exporter):
    """Executes the exports of one table on Spark, one at a time.

    session: an existing session to use, which is not stopped. None: the first export with new messages starts one, and
        later exports use it; a session that has ended is replaced.
    options: the arguments of `spark_export.session.open_session`, which say where Spark runs.
    """

    overtaken_event = "run begun anew"

    def __init__(self, settings: ExportSettings, session: Any = None, **options: Any) -> None:
        super().__init__(settings)
        self._options, self._is_remote = options, options.get("remote") is not None
        self._session, self._is_own = session, session is None
        self._planned: dict[tuple[str, int], IndexRange] = {}
        self._submitter = os.getppid() if is_submitted() else None

    def check_alive(self) -> None:
        # Java, which spark-submit has started, is the parent of this process. A killed Java leaves this process behind.
        if self._submitter not in (None, os.getppid()):
            raise SparkLost("the Spark of spark-submit has ended; submit the daemon again")

    def __exit__(self, *raised: object) -> None:
        if self._session is not None and self._is_own:
            session, self._session = self._session, None
            close_session(session)

    def _export(self, state: TableState, left: list[IndexRange]) -> list[IndexRange] | None:
        """Exports all ranges by one query. Returns None if streams were left out: the others are planned again."""
        self._planned = planned = {each.of.place: each for each in left}
        # A range without rows only records that messages were lost.
        empty = [each for each in planned.values() if not each.rows]
        if empty:
            plan = self._plan_files(state)
            self._committed(self._commit(plan, Written((), empty), time.time_ns() // 1000, time.monotonic()))
        if len(empty) == len(planned):
            return []
        self._check_stop()
        # In the main thread, PySpark would replace the handler of Ctrl-C.
        querying = in_thread(self._query, "export-query")
        wait([querying])
        # After a signal, a commit that had begun is complete, and whatever ended the query is no failure.
        self._check_stop()
        try:
            querying.result()
        except TaskFailed as error:
            if WORKER_LATE in str(error):
                # The caller plans what is left, and starts another query.
                raise PositionsMoved("a process of Spark started too late") from error
            blamed = blamed_streams(planned, str(error))
            if not blamed:
                raise
            for stream in blamed:
                self._leave_out(LeftOutStream(stream, str(error)))
            return None
        return []

    def _query(self) -> None:
        """Exports the planned ranges. Raises TaskFailed, and the ExportErrors of `_take`."""
        left = [each for each in self._planned.values() if each.rows]
        try:
            session = self._ensure_session()
            register_format(session, PagesSource)
            is_cluster = self._is_remote or not is_embedded(session.sparkContext.master)
            rows_max, bytes_max = self._settings.step_sizes(CLUSTER_FACTOR if is_cluster else 1)
            if not self._is_remote and HAS_LIMITS:
                # Spark bounds a micro-batch by its rows.
                rows_max = sum(each.rows for each in take_step(left, rows_max, bytes_max))
                options = {"maxOffsetsPerTrigger": str(rows_max), **self._source_options(left)}
                rows = session.readStream.format(PAGES).options(**options).load()
                with open_query(rows, self._take, availableNow=True) as query:
                    while not self.stop.is_set() and not query.awaitTermination(STOP_POLL_S):
                        pass
                return
            # A Connect server would run `foreachBatch` itself, but only this process has the table. A Spark before 4.2
            # would make one micro-batch of everything. So in both cases each step is a batch query.
            while left and not self.stop.is_set():
                part = take_step(left, rows_max, bytes_max)
                ends = to_offsets({each.of.place: QueryPosition(each.end) for each in part})
                options = {**self._source_options(part), "endingOffsets": json.dumps(ends)}
                self._take(session.read.format(PAGES).options(**options).load())
                left = [each.cut(done.end, each.end) for each, done in zip(left, part, strict=True)]
                left = [each for each in left if each.rows]
        except Exception as error:
            if not is_sparks(error):
                raise
            raise task_error(str(error)) from error

    def _source_options(self, ranges: Sequence[IndexRange]) -> dict[str, str]:
        """Returns the options of the source that read these ranges, from their beginnings."""
        starts = to_offsets({each.of.place: QueryPosition(each.begin) for each in ranges})
        assigned = {stream: [int(partition) for partition in each] for stream, each in starts.items()}
        return {**self._node.source, "assign": json.dumps(assigned), "startingOffsets": json.dumps(starts)}

    def _take(self, rows: Any) -> None:
        """Exports one micro-batch, without the rows that the table has already."""
        state = self._log.load()
        self._check_incarnations()
        latest = state.latest()
        starts = dict(self._planned)
        for place, each in self._planned.items():
            of, position = latest.get(place, (None, TablePosition(0)))
            # Earlier micro-batches have moved the table's position.
            if of == each.of and position.end > each.begin:
                starts[place] = replace(each, begin=position.end, lost=0)
        step = self._step(state, lambda plan: write_files(rows, plan, starts, is_remote=self._is_remote))
        if step is not None:
            self._committed(step)

    def _check_written(self, plan: FilesPlan, written: Written) -> None:
        self._check_incarnations()
        # The table's log would name files that this process does not see.
        if (place := parse_place(plan.root)).is_local:
            missing = [each.path for each in written.files if not (place.folder / each.path).is_file()]
            if missing:
                raise ExportError(
                    f"{plan.root} has no {missing[0]}, which an executor wrote: the machines do not share this folder; "
                    "export to a folder that all of them share, or to a store. Nothing of this step is in the table"
                )
        self._check_stop()

    def _check_incarnations(self) -> None:
        """Raises PositionsMoved if a stream was deleted or made anew after the plan.

        Called before the tasks read: their reads of such a stream would fail, and the run would leave the stream out.
        Called again before the commit, because Spark plans a batch query only after the first call.
        """
        now = by_place(self._node.list_ends(self._settings.selection))
        for each in self._planned.values():
            if each.of.place not in now or now[each.of.place].created_us != each.of.created_us:
                raise PositionsMoved(f"{each.of.stream} was deleted or made anew during the export")

    def _ensure_session(self) -> Any:
        if self._session is not None and self._is_own:
            try:
                self._session.range(1).count()
            except Exception as error:
                if not is_sparks(error):
                    raise
                logger.warning("the Spark session has ended; another one is started")
                self.__exit__()
        if self._session is None:
            self._session = open_session(name="stream-node export", **self._options)
        return self._session


def blamed_streams(places: Iterable[tuple[str, int]], text: str) -> set[str]:
    """Returns the streams whose partitions an error text names as STREAM/PARTITION. places: all partitions."""
    blamed = set()
    # The name of one stream can be the end of another stream's name, so the longest names are looked for first.
    names = ((f"{stream}/{partition}", stream) for stream, partition in places)
    for name, stream in sorted(names, key=lambda named: -len(named[0])):
        if name in text:
            blamed.add(stream)
            text = text.replace(name, "")
    return blamed


def task_error(text: str) -> TaskFailed:
    """Returns a one-line error from Spark's error message with the traceback of the worker."""
    if (own := find_own_message(text)) is not None:
        return TaskFailed(own)
    python = PYTHONS.findall(text)
    return TaskFailed(f"Spark could not finish the run: {python[-1] if python else ' '.join(text.split())[:500]}")
