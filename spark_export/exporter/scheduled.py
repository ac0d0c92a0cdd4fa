"""Runs one export by one function call, for a task of a scheduler such as Airflow or Dagster."""

from __future__ import annotations

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
    try:
        with stop_signals(stop, received), Exporter(settings, on_progress, stop) as exporter:
            return exporter.run()
    except errors.ExportStopped:
        # The scheduler's own handler of the signal can raise.
        if received and callable(handler := signal.getsignal(received[0])):
            handler(received[0], None)
        raise
    except (SourceError, ClientError, OSError) as error:
        # A node that answers, and refuses, refuses the next call, too.
        can_pass = isinstance(error, SourceUnreachable) or (isinstance(error, ClientError) and error.retriable)
        failure = errors.ExportNodeFailed if can_pass else errors.ExportError
        raise failure(" ".join(str(error).split())) from error


def exit_code(error: BaseException | None) -> int:
    """Returns the exit code of a process. TRY_AGAIN: the call can succeed later. FAILED: a person must act first."""
    if error is None:
        return DONE
    if isinstance(error, errors.ExportStopped):
        return STOPPED
    return TRY_AGAIN if isinstance(error, PASSING) else FAILED


@contextmanager
def stop_signals(stop: threading.Event, received: list[int]) -> Iterator[None]:
    """Makes SIGTERM and SIGINT set `stop` and be appended to `received`; a second Ctrl-C raises KeyboardInterrupt.

    Does nothing outside of the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def caught(number: int, frame: Any) -> None:
        if number == signal.SIGINT and number in received:
            raise KeyboardInterrupt
        received.append(number)
        # The main thread may hold the event's lock, in `wait`, while it runs this handler.
        threading.Thread(target=stop.set).start()

    before = {each: signal.signal(each, caught) for each in SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
