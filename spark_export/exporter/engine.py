"""Engines, which execute the tasks of a run, in threads or on Spark, and return the files that the tasks wrote."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from spark_export.exporter.model import FileEntry, Task
from spark_export.exporter.task import TaskSettings, run_task

GIVE_UP_S = 1.0


class Engine(Protocol):
    """The interface of an engine, which executes the tasks of a run.

    An engine may repeat a task that failed. It returns the files of exactly one successful execution of each task."""

    async def prepare(self) -> int:
        """Starts the engine if the engine is not running.

        Returns how many tasks can run at the same time. Raises ExportError.
        """
        ...

    async def run(self, tasks: Sequence[Task], settings: TaskSettings) -> list[FileEntry]:
        """Executes the tasks and returns the files that they wrote.

        Raises the error of a task that fails, in general an ExportError.
        """
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

    async def prepare(self) -> int:
        return self._parallelism

    async def run(self, tasks: Sequence[Task], settings: TaskSettings) -> list[FileEntry]:
        waiting, written = deque(tasks), list[FileEntry]()

        def work() -> None:
            while True:
                try:
                    task = waiting.popleft()
                except IndexError:
                    return
                written.extend(run_task(task, settings))

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


def _in_thread(work: Callable[[], None]) -> asyncio.Future[None]:
    """Starts a function in a new thread.

    Returns a future that ends with the function. Cancelling the future does not end the thread.
    """
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
