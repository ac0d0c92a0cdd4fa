"""Holds back the exception of a signal handler while bytes are exchanged, so that a signal costs no connection.

The handler of `stopping.stop_on_signals_blocking` uses it. Ctrl-C without such a handler is raised at once.
"""

from __future__ import annotations

import threading
from types import TracebackType


class _State(threading.local):
    """The state of one thread. held: whether it is exchanging bytes. waiting: an exception to raise after
    the exchange.
    """

    held = False
    waiting: BaseException | None = None


_state = _State()


def raise_when_whole(error: BaseException) -> None:
    """Raise the error now, or at the end of the exchange if this thread is exchanging bytes."""
    if _state.held:
        _state.waiting = error
    else:
        raise error


class Whole:
    """A context manager around an exchange of bytes: `raise_when_whole` raises nothing inside it. Not to be nested."""

    def __enter__(self) -> None:
        _state.held = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _state.held = False
        waiting, _state.waiting = _state.waiting, None
        if waiting is not None:
            raise waiting


WHOLE = Whole()
