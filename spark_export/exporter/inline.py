"""Executes the tasks of a run in threads of this process, without Spark and Java. Each task is tried once."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from spark_export.exporter.node_side import NodeSide
from spark_export.tables.files import write_ranges
from spark_export.tables.filesystem import remove_files
from spark_export.tables.model import FilesPlan, IndexRange, Written
from stream_storage.failpoint import failpoint

PROGRESS_INTERVAL_S = 0.2
GIVE_UP_S = 1.0
"""How long `run_tasks` waits for its threads after a failure, in seconds. Then it returns, even if a task still
waits for the node."""


class _Stopped(Exception):
    """The run has ended without this task, whose files are removed."""


async def run_tasks(
    tasks: Sequence[Sequence[IndexRange]],
    plan: FilesPlan,
    node: NodeSide,
    parallelism: int,
    on_rows: Callable[[int, int], None],
) -> Written:
    """Executes the tasks, and returns what they have written. Raises the error of the first task that failed.

    After an error or a cancellation, the files of all tasks are removed. on_rows: called about every
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

    workers = [_in_thread(work) for _ in range(min(parallelism, len(tasks)))]
    all_done = asyncio.gather(*workers)
    # After a cancellation nobody takes the errors of the threads, which asyncio would log.
    all_done.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    try:
        # `wait` does not cancel the workers. From Python 3.14 on, `shield` would log their errors.
        while not (await asyncio.wait([all_done], timeout=PROGRESS_INTERVAL_S))[0]:
            # An error of the caller's function is logged, and does not end the run.
            found = list(progress.values())
            sums = sum(rows for rows, _ in found), sum(data_bytes for _, data_bytes in found)
            asyncio.get_running_loop().call_soon(on_rows, *sums)
        all_done.result()
    except BaseException:
        stop.set()
        await asyncio.wait(workers, timeout=GIVE_UP_S)
        # A task that is still at work removes its files itself.
        await asyncio.to_thread(remove_files, plan, [each for written in done for each in written.files])
        raise
    return Written.together(done)


def _in_thread(work: Callable[[], None]) -> asyncio.Future[None]:
    """Starts a function in a new thread. Cancelling the future does not end the thread."""
    future = Future[None]()
    future.set_running_or_notify_cancel()

    def main() -> None:
        try:
            work()
            future.set_result(None)
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=main, name="export-task", daemon=True).start()
    return asyncio.wrap_future(future)
