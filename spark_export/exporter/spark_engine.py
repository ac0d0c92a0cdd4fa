"""The engine that carries tasks out on Spark: embedded, on a cluster, or behind a Connect server. It keeps its session
between runs."""

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
from spark_export.exporter.model import FileEntry, Task
from spark_export.exporter.spark_tasks import FORMAT, OPTION, ExportSource, decode_entry, encode_job
from spark_export.exporter.task import TaskSettings
from spark_export.session import close_session, is_sparks, open_session

logger = structlog.get_logger(__name__)

OURS = re.compile(r"spark_export\.[\w.]*?(\w+): (.+)")
"""An error of ours in the trace-back that Spark gives from a worker."""
PYTHONS = re.compile(r"^\w*Error: .+", re.MULTILINE)
"""Any other error in it, such as of a full disk."""
REMOTE_PARALLELISM = 8
"""Of a Connect server that does not tell its own."""


class SparkEngine:
    """An engine on Spark. The session starts with the first run that has new messages."""

    def __init__(
        self,
        master: str,
        remote: str | None,
        conf: Mapping[str, str],
        *,
        aot_cache: Path | None = None,
        session: Any = None,
    ) -> None:
        """session: an existing session, which is used in place of a new one and is not stopped at the end."""
        self._master = master
        self._remote = remote
        self._conf = dict(conf)
        self._aot_cache = aot_cache
        self._session: Any = session
        self._is_ours = session is None
        self._failed = False
        if session is not None:
            session.dataSource.register(ExportSource)

    async def prepare(self) -> int:
        if self._session is not None and self._is_ours and not await asyncio.to_thread(self._is_usable):
            logger.warning("the Spark session has ended; another one is started", master=self._remote or self._master)
            await self.close()
        if self._session is None:
            self._session = await asyncio.to_thread(self._open)
        return await asyncio.to_thread(self._parallelism)

    async def run(self, tasks: Sequence[Task], settings: TaskSettings) -> list[FileEntry]:
        if not tasks:
            return []
        await self.prepare()
        tag = f"export-{uuid.uuid4().hex}"
        collecting = asyncio.create_task(asyncio.to_thread(self._collect, tasks, settings, tag))
        try:
            return await asyncio.shield(collecting)
        except asyncio.CancelledError:
            await asyncio.to_thread(_if_it_is_there, lambda: self._interrupt(tag))
            # The job has ended when its thread has. Nobody waits for its result any more.
            await asyncio.gather(collecting, return_exceptions=True)
            raise

    async def close(self) -> None:
        if self._session is not None and self._is_ours:
            session, self._session = self._session, None
            await asyncio.to_thread(close_session, session)

    def _is_usable(self) -> bool:
        """Whether the session still works: its JVM may have died, its cluster may be lost, or its server may be another
        one."""
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
        session.dataSource.register(ExportSource)
        self._failed = False
        return session

    def _parallelism(self) -> int:
        if self._remote is not None:
            return int(self._session.conf.get("spark.default.parallelism", str(REMOTE_PARALLELISM)))
        return int(self._session.sparkContext.defaultParallelism)

    def _interrupt(self, tag: str) -> None:
        # A session with its own master would cancel jobs by the tags of the calling thread only.
        if self._remote is None:
            self._session.sparkContext.cancelJobsWithTag(tag)
        else:
            self._session.interruptTag(tag)

    def _collect(self, tasks: Sequence[Task], settings: TaskSettings, tag: str) -> list[FileEntry]:
        """Collects the files that the tasks wrote. Raises TaskFailed, DataLost."""
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
        return entries


def _if_it_is_there(step: Callable[[], object]) -> None:
    """Ignores errors of a call to Spark when Spark has already ended."""
    try:
        step()
    except Exception as error:
        if not is_sparks(error):
            raise


@contextmanager
def no_output_of_java() -> Iterator[None]:
    """Processes that are started in the `with` block have no standard output. Java writes there at its end, and
    standard output belongs to the command."""
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
    """The error of a worker in one line, taken from Spark's description of it."""
    found = OURS.search(text)
    if found is None:
        python = PYTHONS.findall(text)
        reason = python[-1] if python else " ".join(text.split())[:500]
        return TaskFailed(f"Spark could not finish the run: {reason}")
    kind, message = found.groups()
    return DataLost(message) if kind == "DataLoss" else TaskFailed(message)
