"""Where the tasks of a run are carried out. An engine collects what they wrote and publishes nothing."""

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
    """Carries tasks out, each at least once, and tells of the files of exactly one attempt at each."""

    async def prepare(self) -> int:
        """Start it, where it is not running; how many tasks it can run at a time. Raises ExportError."""
        ...

    async def run(self, tasks: Sequence[Task], settings: TaskSettings) -> list[FileEntry]:
        """Raises ExportError; TaskFailed where a task could not be done, however often it was tried."""
        ...

    async def close(self) -> None: ...


class InlineEngine:
    """Tasks in threads of this process: neither Spark nor Java. Each is tried once.

    A run that is given up waits for them a moment only: one that a node keeps waiting holds up nobody, not even the end
    of the process. What it still writes is in a folder that is gone.
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
        """Nothing is kept between runs."""


def _in_thread(work: Callable[[], None]) -> asyncio.Future[None]:
    """Done when the work is; cancelling it leaves the thread to itself."""
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
