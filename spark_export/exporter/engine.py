"""Engines, which carry out the tasks of a run and collect the files that the tasks wrote. An engine publishes no
files."""

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
    """The interface of an engine. It carries out each task at least once, and returns the files of exactly one attempt
    at each task."""

    async def prepare(self) -> int:
        """Starts the engine if it is not running. Returns how many tasks it can run at a time. Raises ExportError."""
        ...

    async def run(self, tasks: Sequence[Task], settings: TaskSettings) -> list[FileEntry]:
        """Carries the tasks out. Raises ExportError; TaskFailed if a task failed in all its attempts."""
        ...

    async def close(self) -> None: ...


class InlineEngine:
    """Carries tasks out in threads of this process, without Spark and Java. Each task is tried once.

    A run that is abandoned waits for its tasks a moment only. A task that waits for a node therefore delays neither the
    next run nor the end of the process. Files that it still writes are in a folder that was removed.
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
    """Runs a function in a thread, and waits for its result. Cancelling the wait does not end the thread."""
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
        with suppress(RuntimeError):  # The loop is closed: nobody waits any more.
            loop.call_soon_threadsafe(tell, error)

    threading.Thread(target=main, name="export-task", daemon=True).start()
    return future
