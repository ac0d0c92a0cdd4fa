"""Executes the tasks of a run in threads of this process, without Spark and Java. Each task is tried once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import TypeVar

from spark_export.exporter.node_side import NodeSide
from spark_export.tables.files import write_ranges
from spark_export.tables.filesystem import remove_files
from spark_export.tables.model import FilesPlan, IndexRange, Written
from stream_storage.failpoint import failpoint

T = TypeVar("T")
PROGRESS_INTERVAL_S = 0.2
GIVE_UP_S = 1.0
"""How long `run_tasks` waits for its threads after a failure, in seconds. Then it returns, even if a task still
waits for the node."""


class _Stopped(Exception):
    """The run has ended without this task, whose files are removed."""


def run_tasks(
    tasks: Sequence[Sequence[IndexRange]],
    plan: FilesPlan,
    node: NodeSide,
    parallelism: int,
    on_rows: Callable[[int, int], None],
) -> Written:
    """Executes the tasks, and returns what they have written. Raises the error of the first task that failed.

    After an error, also one of `on_rows`, the files of all tasks are removed. on_rows: called about every
    PROGRESS_INTERVAL_S seconds with the rows and the bytes of message data that are written so far.
    """
    waiting, done, stop = deque(enumerate(tasks)), list[Written](), threading.Event()
    progress: dict[int, tuple[int, int]] = {}

    def work() -> None:
        while not stop.is_set():
            try:
                number, task = waiting.popleft()
            except IndexError:
                return

            def told(rows: int, data_bytes: int, number: int = number) -> None:
                progress[number] = rows, data_bytes
                failpoint("writing")
                if stop.is_set():
                    raise _Stopped

            written = write_ranges(task, node.read, plan, is_of_stream=node.is_of_stream, on_rows=told)
            done.append(written)
            if stop.is_set():
                # `run_tasks` may have removed the files of the tasks that were done, and does not wait for this one.
                remove_files(plan, written.files)

    workers = [in_thread(work, "export-task") for _ in range(min(parallelism, len(tasks)))]
    try:
        while True:
            ended, working = wait(workers, PROGRESS_INTERVAL_S, FIRST_EXCEPTION)
            for each in ended:
                each.result()
            if not working:
                return Written.together(done)
            found = list(progress.values())
            on_rows(sum(rows for rows, _ in found), sum(data_bytes for _, data_bytes in found))
    except BaseException:
        stop.set()
        wait(workers, GIVE_UP_S)
        # A task that is still at work removes its files itself.
        remove_files(plan, [each for written in done for each in written.files])
        raise


def in_thread(work: Callable[[], T], name: str) -> Future[T]:
    """Calls a function in a new thread, for which the end of the process does not wait."""
    future = Future[T]()
    future.set_running_or_notify_cancel()

    def main() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=main, name=name, daemon=True).start()
    return future
