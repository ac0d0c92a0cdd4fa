"""Ends calls to a database server that take too long, by shutting down the socket in another thread.

A server that is frozen or gone can leave a call waiting for ever: its kernel still answers, and a COMMIT that waits for
a standby knows no time limit. Cancelling the statement would not do: a cancelled COMMIT says that it has committed,
though no standby has the transaction."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

CHECKS = 8
"""The number of times that the thread checks all calls within the time that one call may take."""


class Deadlines:
    """The calls that run, and the thread that ends them after `seconds`, for all sessions of a database."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._ends_s: dict[int, float] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="storage-deadlines", daemon=True)
        self._thread.start()

    def begin(self, descriptor: int) -> None:
        """Notes that a call begins on the connection with this file descriptor."""
        with self._lock:
            self._ends_s[descriptor] = time.monotonic() + self.seconds

    def end(self, descriptor: int) -> None:
        """Notes the end of the call. After this, the connection may be closed."""
        with self._lock:
            self._ends_s.pop(descriptor, None)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self.seconds / CHECKS):
            now_s = time.monotonic()
            with self._lock:
                for descriptor, end_s in self._ends_s.items():
                    if now_s > end_s:
                        _shut_down(descriptor)


def _shut_down(descriptor: int) -> None:
    # An OSError says that it is closed already, here or at the other end.
    with suppress(OSError):
        connection = socket.socket(fileno=descriptor)
        try:
            connection.shutdown(socket.SHUT_RDWR)
        finally:
            # The descriptor stays open: its number must not be given to another connection while the call uses it. A
            # copy of it would be refused when the process has no more descriptors, and end this thread for good.
            connection.detach()
