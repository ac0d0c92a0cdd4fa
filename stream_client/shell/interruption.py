"""Delays the exception of a signal handler (`stopping`) until the client has exchanged its bytes."""

from __future__ import annotations

import threading


class _Interruption(threading.local):
    """Whether this thread is exchanging bytes (`held`), and the exception to raise after the exchange (`waiting`)."""

    held = False
    waiting: BaseException | None = None


_state = _Interruption()


def raise_when_whole(error: BaseException) -> None:
    """Raises the error at once, or at the end of the exchange if this thread is exchanging bytes."""
    if _state.held:
        _state.waiting = error
    else:
        raise error


class Whole:
    """A context manager for an exchange of bytes, not to be nested: inside it, `raise_when_whole` delays its error."""

    def __enter__(self) -> None:
        _state.held = True

    def __exit__(self, *_: object) -> None:
        _state.held = False
        waiting, _state.waiting = _state.waiting, None
        if waiting is not None:
            raise waiting


WHOLE = Whole()
