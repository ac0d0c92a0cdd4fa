"""Where the tasks of a run are carried out. An engine collects what they wrote and publishes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from spark_export.exporter.model import FileEntry, Task
from spark_export.exporter.task import TaskSettings, run_task


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
    """Tasks in threads of this process: neither Spark nor Java. Each is tried once."""

    def __init__(self, parallelism: int) -> None:
        self._parallelism = parallelism
        self._threads = ThreadPoolExecutor(parallelism, thread_name_prefix="export-task")

    async def prepare(self) -> int:
        return self._parallelism

    async def run(self, tasks: Sequence[Task], settings: TaskSettings) -> list[FileEntry]:
        loop = asyncio.get_running_loop()
        futures = [loop.run_in_executor(self._threads, run_task, task, settings) for task in tasks]
        try:
            written = await asyncio.gather(*futures)
        finally:
            for future in futures:
                future.cancel()
            await asyncio.gather(*futures, return_exceptions=True)
        return [entry for entries in written for entry in entries]

    async def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
