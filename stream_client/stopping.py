"""Ends a block of a program when a signal says to stop, so that consumers and publishers end in good order.

Without it, SIGTERM kills a Python program at once: leases stay until they run out, and positions are not saved.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import FrameType

from stream_client.shell.interruption import raise_when_whole

STOP_SIGNALS: Sequence[signal.Signals] = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)
)
"""The signals to stop: SIGTERM from systemd and containers, SIGINT from Ctrl-C, SIGHUP from a closed terminal."""


class Stopped:
    """How a block ended. signal: the number of the signal that ended it, or None where it ended by itself."""

    def __init__(self) -> None:
        self.signal: int | None = None


@asynccontextmanager
async def stop_on_signals(*signals: signal.Signals) -> AsyncIterator[Stopped]:
    """Cancel the block at the first of these signals (STOP_SIGNALS by default), and go on behind the block.

    async with stop_on_signals(), connect() as client: ...

    The message at hand does not count as processed and comes again. The second signal acts as it does without this
    block. A signal that the program was started to ignore (`nohup`) stays ignored. For the main thread only.
    """
    import anyio

    stopped = Stopped()
    chosen = _not_ignored(signals or STOP_SIGNALS)
    body_error: BaseException | None = None
    async with anyio.create_task_group() as tasks:

        async def cancel_at_signal(*, task_status: anyio.abc.TaskStatus[None]) -> None:
            with anyio.open_signal_receiver(*chosen) as received:
                task_status.started()
                async for number in received:
                    stopped.signal = number
                    break
            # The receiver is closed by now, so the next signal acts as ever and does not wait for a slow end.
            tasks.cancel_scope.cancel()

        if chosen:
            await tasks.start(cancel_at_signal)
        try:
            yield stopped
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:
            # Raised behind the task group, so that the error leaves the block as it is and not as a group of one.
            body_error = error
        tasks.cancel_scope.cancel()
    if body_error is not None:
        raise body_error


@contextmanager
def stop_on_signals_blocking(*signals: signal.Signals) -> Iterator[Stopped]:
    """As `stop_on_signals`, for the blocking client: an exception leaves the block from wherever it stands."""
    stopped = Stopped()
    previous = {number: signal.getsignal(number) for number in _not_ignored(signals or STOP_SIGNALS)}

    def restore() -> None:
        """Make each signal act as it did before the block."""
        for number, handler in previous.items():
            signal.signal(number, handler)

    def leave(number: int, frame: FrameType | None) -> None:
        # The second signal acts as it does without this block, since the end of the block may be slow.
        restore()
        stopped.signal = number
        # In the middle of an exchange of bytes, the exception would cost the connection.
        raise_when_whole(_Leave())

    try:
        for number in previous:
            signal.signal(number, leave)
        yield stopped
    except _Leave:
        pass
    finally:
        restore()


class _Leave(BaseException):
    """Raised by the signal handler. It is no Exception, so that no `except Exception` of the program stops it."""


def _not_ignored(signals: Sequence[signal.Signals]) -> list[signal.Signals]:
    return [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]
