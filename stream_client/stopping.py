"""Ends a `with` block when a stop signal arrives, so that the block's consumers and publishers end cleanly."""

from __future__ import annotations

import signal
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import FrameType

STOP_SIGNALS: Sequence[signal.Signals] = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)
)
"""The signals that end the block by default: from systemd and containers, from Ctrl-C, and from a closed terminal."""


class Stopped:
    """The end of a `with stop_on_signals()` block, with the number of its signal; None if no signal ended it."""

    def __init__(self) -> None:
        self.signal: int | None = None


@asynccontextmanager
async def stop_on_signals(*signals: signal.Signals) -> AsyncIterator[Stopped]:
    """Cancels the `with` block when one of these signals arrives, and continues with the code after the block. Without
    arguments, the signals are SIGTERM, SIGINT and SIGHUP.

        async with stop_on_signals(), connect() as client: ...

    Without such a block, SIGTERM ends a Python program at once, and positions are not saved. The message being
    processed when the signal arrives does not count as processed, so the consumer gets it again. A second signal has
    its normal effect. A signal that the process has ignored from its start, for example under `nohup`, stays ignored.
    Use this only in the main thread.
    """
    import anyio

    from stream_client.shell.async_shell import background_tasks

    stopped = Stopped()
    chosen = _not_ignored(signals or STOP_SIGNALS)
    async with background_tasks() as tasks:

        async def cancel_at_signal(*, task_status: anyio.abc.TaskStatus[None]) -> None:
            with anyio.open_signal_receiver(*chosen) as received:
                task_status.started()
                async for number in received:
                    stopped.signal = number
                    break
            # The receiver is closed by now, so a second signal has its normal effect and need not wait for a slow end.
            tasks.cancel_scope.cancel()

        if chosen:
            await tasks.start(cancel_at_signal)
        yield stopped


@contextmanager
def stop_on_signals_blocking(*signals: signal.Signals) -> Iterator[Stopped]:
    """Ends the block when one of these signals arrives, as `stop_on_signals` does, by an exception inside the block."""
    stopped = Stopped()
    previous = {number: signal.getsignal(number) for number in _not_ignored(signals or STOP_SIGNALS)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def leave(number: int, frame: FrameType | None) -> None:
        # A second signal acts as it does without this block, because the end of the block may be slow.
        restore()
        stopped.signal = number
        # An exception in the middle of an exchange of bytes would cost the connection.
        if not WHOLE.held:
            raise _Leave
        WHOLE.waiting = _Leave()

    try:
        for number in previous:
            signal.signal(number, leave)
        yield stopped
    except _Leave:
        pass
    finally:
        restore()


class Whole(threading.local):
    """A context manager that delays the exception of a signal handler to the end of the block. Not to be nested. held:
    whether this thread is in a block, i.e. exchanges bytes. waiting: the exception to raise after the block."""

    held = False
    waiting: BaseException | None = None

    def __enter__(self) -> None:
        self.held = True

    def __exit__(self, *_: object) -> None:
        self.held = False
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            raise waiting


WHOLE = Whole()


class _Leave(BaseException):
    """The exception by which the signal handler ends the block. No `except Exception` inside the block catches it."""


def _not_ignored(signals: Sequence[signal.Signals]) -> list[signal.Signals]:
    return [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]
