"""Holds back the exception of a signal handler while bytes are exchanged, so that it costs no connection.

It concerns handlers that ask for it (`stopping.stop_on_signals_blocking`); Ctrl-C without one is raised at once.
"""

from __future__ import annotations

import threading
from types import TracebackType


class _State(threading.local):
    """One thread's: whether it exchanges bytes, and what is to be raised behind that."""

    held = False
    waiting: BaseException | None = None


_state = _State()


def raise_when_whole(error: BaseException) -> None:
    """Raise the error now, or at the end of the exchange of bytes that this thread is in."""
    if _state.held:
        _state.waiting = error
    else:
        raise error


class Whole:
    """A block that exchanges bytes. Not to be nested."""

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
