"""Runs one export by one function call, for a task of a scheduler such as Airflow or Dagster."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from spark_export.errors import SourceError, SourceUnreachable
from spark_export.exporter.job import ExportSettings
from spark_export.exporter.run import Exporter, ExportOutcome, Progress
from spark_export.tables import errors
from stream_client.errors import ClientError

DONE, FAILED, TRY_AGAIN, STOPPED = 0, 1, 75, 143
"""The results of `exit_code`. 75 is EX_TEMPFAIL of sysexits.h, and 143 is 128 plus the number of SIGTERM."""
PASSING = (errors.ExportDiskFull, errors.ExportNodeFailed, errors.PositionsMoved, errors.TaskFailed)
"""The errors after which the same export can succeed later, with the same settings."""
STOP_POLL_S = 0.1
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run_export(
    settings: ExportSettings,
    *,
    stop: threading.Event | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> ExportOutcome:
    """Exports all new messages, and returns after they are published. The call can be repeated after any error.

    SIGTERM, SIGINT and `stop` abandon the current run, unless it is already being published. A later call exports the
    messages of an abandoned run again. After a signal, the scheduler's own handler of the signal is called. In a thread
    other than the main thread, only `stop` works. Raises ExportStopped, StreamsLeftOut, ExportNodeFailed and other
    ExportErrors.
    """
    stop = stop or threading.Event()
    received: list[int] = []
    with _signals_caught(stop, received):
        try:
            outcome = asyncio.run(_run_until(settings, stop, on_progress))
        except (SourceError, ClientError, OSError) as error:
            # A node that answers, and refuses, refuses the next call, too.
            can_pass = isinstance(error, SourceUnreachable) or (isinstance(error, ClientError) and error.retriable)
            is_full = isinstance(error, OSError) and errors.is_disk_full(error)
            passing = errors.ExportDiskFull if is_full else errors.ExportNodeFailed
            raise (passing if is_full or can_pass else errors.ExportError)(" ".join(str(error).split())) from error
    if outcome is None:
        # The scheduler's own handler of the signal can raise.
        if received and callable(handler := signal.getsignal(received[0])):
            handler(received[0], None)
        raise errors.ExportStopped(
            f"the export into {settings.folder} was stopped; the next one takes its messages again"
        )
    return outcome


def exit_code(error: BaseException | None) -> int:
    """Returns the exit code of a process. TRY_AGAIN: the call can succeed later. FAILED: a person must act first."""
    if error is None:
        return DONE
    if isinstance(error, errors.ExportStopped):
        return STOPPED
    return TRY_AGAIN if isinstance(error, PASSING) else FAILED


async def _run_until(
    settings: ExportSettings, stop: threading.Event, on_progress: Callable[[Progress], None] | None
) -> ExportOutcome | None:
    """Executes one export. Returns None if `stop` was set and the export was abandoned."""

    task = asyncio.create_task(Exporter(settings, on_progress).run())
    while not task.done() and not stop.is_set():
        await asyncio.wait((task,), timeout=STOP_POLL_S)
    # This does nothing to a task that is done.
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
        return None


@contextmanager
def _signals_caught(stop: threading.Event, received: list[int]) -> Iterator[None]:
    """Makes SIGTERM and SIGINT set `stop` and be appended to `received`. Does nothing outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def caught(number: int, frame: Any) -> None:
        received.append(number)
        stop.set()

    before = {each: signal.signal(each, caught) for each in SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
