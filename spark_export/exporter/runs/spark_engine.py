"""The engine that executes tasks on Spark: on this machine, on a cluster, or on a Spark Connect server."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog

from spark_export.exporter.errors import DataLost, TaskFailed
from spark_export.exporter.model import ExportTask, FileEntry, LeftOutStream
from spark_export.exporter.runs.spark_tasks import FORMAT, OPTION, ExportSource, decode_entry, encode_job
from spark_export.exporter.runs.task import TaskResult, TaskSettings
from spark_export.session import close_session, is_sparks, open_session
from spark_export.source.sent_code import sent_class

logger = structlog.get_logger(__name__)

OURS = re.compile(r"spark_export\.[\w.]*?(\w+): (.+)")
"""Finds an error class of this project, and its message, in the traceback of a Spark worker."""
PYTHONS = re.compile(r"^\w*Error: .+", re.MULTILINE)
"""Finds any other Python error, such as that of a full disk, in the traceback of a Spark worker."""
REMOTE_PARALLELISM = 8
"""The assumed number of parallel tasks of a Spark Connect server that does not report a number."""


class SparkEngine:
    """An engine that executes tasks on Spark. The first `prepare` starts the session, and later runs use the same
    session."""

    def __init__(
        self,
        master: str,
        remote: str | None,
        conf: Mapping[str, str],
        *,
        aot_cache: Path | None = None,
        session: Any = None,
    ) -> None:
        """session: an existing session to use in place of a new one; `close` does not stop it."""
        self._master = master
        self._remote = remote
        self._conf = dict(conf)
        self._aot_cache = aot_cache
        self._session: Any = session
        self._is_ours = session is None
        self._failed = False
        if session is not None:
            session.dataSource.register(sent_class(ExportSource))

    @property
    def description(self) -> str:
        return f"Spark, {self._remote or self._master or 'the session that was given'}"

    async def prepare(self, data_bytes: int = 0) -> int:
        if self._session is not None and self._is_ours and not await asyncio.to_thread(self._is_usable):
            logger.warning("the Spark session has ended; another one is started", master=self._remote or self._master)
            await self.close()
        if self._session is None:
            self._session = await asyncio.to_thread(self._open)
        return await asyncio.to_thread(self._parallelism)

    async def run(self, tasks: Sequence[ExportTask], settings: TaskSettings) -> TaskResult:
        if not tasks:
            return TaskResult([], [])
        await self.prepare()
        tag = f"export-{uuid.uuid4().hex}"
        collecting = asyncio.create_task(asyncio.to_thread(self._collect, tasks, settings, tag))
        try:
            return await asyncio.shield(collecting)
        except asyncio.CancelledError:
            await asyncio.to_thread(_if_it_is_there, lambda: self._interrupt(tag))
            # The Spark job has ended when this thread ends. Nobody needs its result.
            await asyncio.gather(collecting, return_exceptions=True)
            raise

    async def close(self) -> None:
        if self._session is not None and self._is_ours:
            session, self._session = self._session, None
            await asyncio.to_thread(close_session, session)

    def _is_usable(self) -> bool:
        """Returns whether the session still works. After a failed run, a Spark Connect server has perhaps been
        restarted."""
        if self._remote is not None:
            return not self._failed
        try:
            context = self._session.sparkContext._jsc
            return context is not None and not context.sc().isStopped()
        except Exception as error:
            if not is_sparks(error):
                raise
            return False

    def _open(self) -> Any:
        with no_output_of_java():
            session = open_session(
                self._master,
                remote=self._remote,
                name="stream-node export",
                config=self._conf,
                aot_cache=self._aot_cache,
            )
        session.dataSource.register(sent_class(ExportSource))
        self._failed = False
        return session

    def _parallelism(self) -> int:
        if self._remote is not None:
            return int(self._session.conf.get("spark.default.parallelism", str(REMOTE_PARALLELISM)))
        return int(self._session.sparkContext.defaultParallelism)

    def _interrupt(self, tag: str) -> None:
        # For a session with a master, `interruptTag` would only cancel jobs with the tags of the calling thread.
        if self._remote is None:
            self._session.sparkContext.cancelJobsWithTag(tag)
        else:
            self._session.interruptTag(tag)

    def _collect(self, tasks: Sequence[ExportTask], settings: TaskSettings, tag: str) -> TaskResult:
        """Executes the tasks as the Spark job `tag`, by which `_interrupt` can cancel the job. Raises TaskFailed,
        DataLost."""
        session = self._session
        if self._remote is None:
            add_tag, remove_tag = session.sparkContext.addJobTag, session.sparkContext.removeJobTag
        else:
            add_tag, remove_tag = session.addTag, session.removeTag
        self._failed = True
        try:
            add_tag(tag)
            frame = session.read.format(FORMAT).option(OPTION, encode_job(tasks, settings)).load()
            entries = [decode_entry(row.entry) for row in frame.collect()]
        except Exception as error:
            if not is_sparks(error):
                raise
            if self._remote is None and not self._is_usable():
                raise TaskFailed("Spark ended while the tasks of the run were at work; run again") from error
            raise task_error(str(error)) from error
        finally:
            _if_it_is_there(lambda: remove_tag(tag))
        self._failed = False
        left_out = [each for each in entries if isinstance(each, LeftOutStream)]
        return TaskResult([each for each in entries if isinstance(each, FileEntry)], left_out)


def _if_it_is_there(step: Callable[[], object]) -> None:
    """Calls `step`, and ignores errors of Spark, which has perhaps ended already."""
    try:
        step()
    except Exception as error:
        if not is_sparks(error):
            raise


@contextmanager
def no_output_of_java() -> Iterator[None]:
    """Discards the standard output of this process and of processes that start in the `with` block.

    A Java process writes to standard output when it ends, and would mix its text with the output of the command.
    """
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def task_error(text: str) -> TaskFailed | DataLost:
    """Returns a one-line error from Spark's error message with the traceback of the worker."""
    found = OURS.search(text)
    if found is None:
        python = PYTHONS.findall(text)
        reason = python[-1] if python else " ".join(text.split())[:500]
        return TaskFailed(f"Spark could not finish the run: {reason}")
    kind, message = found.groups()
    return DataLost(message) if kind == "DataLoss" else TaskFailed(message)
