"""Engines: they execute the tasks of a run, in threads or on Spark, and return the files that the tasks wrote."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from spark_export.exporter.model import ExportTask
from spark_export.exporter.runs.task import TaskResult, TaskSettings, run_task

GIVE_UP_S = 1.0
GIB = 1024**3


class ExportEngine(Protocol):
    """The interface of an engine, which executes the tasks of a run.

    An engine can repeat a task that failed. It returns the files of exactly one successful execution of each task.
    """

    @property
    def description(self) -> str:
        """Describes for the user how the tasks are executed, and why in this way."""
        ...

    async def prepare(self, data_bytes: int = 0) -> int:
        """Starts the engine. Returns the number of tasks that can run at the same time. Raises ExportError."""
        ...

    async def run(self, tasks: Sequence[ExportTask], settings: TaskSettings) -> TaskResult:
        """Executes the tasks. Returns the written files, and streams that could not be read. Raises a task's error."""
        ...

    async def close(self) -> None: ...


class InlineEngine:
    """An engine that executes tasks in threads of this process, without Spark and Java. Each task is tried once.

    When a task fails or the run is cancelled, `run` waits at most `GIVE_UP_S` seconds for the threads. A task that
    still waits for the node therefore delays neither the next run nor the end of the process. The exporter removes the
    folder into which such a task writes.
    """

    def __init__(self, parallelism: int) -> None:
        self._parallelism = parallelism

    @property
    def description(self) -> str:
        return f"inline, {self._parallelism} threads"

    async def prepare(self, data_bytes: int = 0) -> int:
        return self._parallelism

    async def run(self, tasks: Sequence[ExportTask], settings: TaskSettings) -> TaskResult:
        waiting, written = deque(tasks), TaskResult([], [])

        def work() -> None:
            while True:
                try:
                    task = waiting.popleft()
                except IndexError:
                    return
                done = run_task(task, settings)
                written.files.extend(done.files)
                written.left_out.extend(done.left_out)

        workers = [_in_thread(work) for _ in range(min(self._parallelism, len(tasks)))]
        try:
            await asyncio.shield(asyncio.gather(*workers))
        except BaseException:
            waiting.clear()
            await asyncio.wait(workers, timeout=GIVE_UP_S)
            raise
        return written

    async def close(self) -> None:
        """Does nothing: this engine keeps nothing between runs."""


class AutoEngine:
    """An engine that executes tasks in threads, and all tasks on Spark after the first export above `data_bytes_max`.

    make_spark: returns the engine for large exports, or the reason why Spark cannot be used.
    """

    def __init__(self, inline: InlineEngine, make_spark: Callable[[], ExportEngine | str], data_bytes_max: int) -> None:
        self._inline = inline
        self._make_spark = make_spark
        self._data_bytes_max = data_bytes_max
        self._spark: ExportEngine | None = None
        self._reason = ""

    @property
    def description(self) -> str:
        return f"{(self._spark or self._inline).description} ({self._reason})"

    async def prepare(self, data_bytes: int = 0) -> int:
        limit = f"{self._data_bytes_max / GIB:,g} GiB"
        if self._spark is None and data_bytes > self._data_bytes_max:
            made = self._make_spark()
            if isinstance(made, str):
                self._reason = f"{data_bytes / GIB:,.1f} GiB are new, more than {limit}, but {made}"
            else:
                self._spark = made
                self._reason = f"{data_bytes / GIB:,.1f} GiB are new, more than {limit}"
        elif self._spark is None and not self._reason:
            self._reason = f"{data_bytes / 1e6:,.1f} MB are new, at most {limit}"
        return await (self._spark or self._inline).prepare(data_bytes)

    async def run(self, tasks: Sequence[ExportTask], settings: TaskSettings) -> TaskResult:
        return await (self._spark or self._inline).run(tasks, settings)

    async def close(self) -> None:
        if self._spark is not None:
            await self._spark.close()


def _in_thread(work: Callable[[], None]) -> asyncio.Future[None]:
    """Starts a function in a new thread. Cancelling the future does not end the thread."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def tell(error: BaseException | None) -> None:
        if not future.done():
            future.set_result(None) if error is None else future.set_exception(error)

    def main() -> None:
        error = None
        try:
            work()
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # The event loop is closed, so nobody waits for the result.
            loop.call_soon_threadsafe(tell, error)

    threading.Thread(target=main, name="export-task", daemon=True).start()
    return future
