"""Delays the exception of a signal handler while the client exchanges bytes, so that a signal does not cost the
connection.

The handler of `stopping.stop_on_signals_blocking` uses this. Without that handler, Ctrl-C raises its exception at once.
"""

from __future__ import annotations

import threading
from types import TracebackType


class _State(threading.local):
    """The state of one thread.

    held: whether the thread is exchanging bytes.
    waiting: an exception to raise after the exchange; None: there is none.
    """

    held = False
    waiting: BaseException | None = None


_state = _State()


def raise_when_whole(error: BaseException) -> None:
    """Raise the error at once. If this thread is exchanging bytes, raise the error at the end of the
    exchange instead.
    """
    if _state.held:
        _state.waiting = error
    else:
        raise error


class Whole:
    """A context manager for an exchange of bytes: inside it, `raise_when_whole` delays its error until the end of the
    block.

    It must not be nested.
    """

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
