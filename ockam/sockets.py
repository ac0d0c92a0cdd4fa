"""Sends on a socket without waiting, which trio does not offer. It closes nothing."""

from __future__ import annotations

import os
from typing import Protocol


class HasDescriptor(Protocol):
    """The interface of a non-blocking socket. After a close `fileno` must return -1, because another file may get the
    old number."""

    def fileno(self) -> int: ...


def send_nowait(socket: HasDescriptor, data: bytes) -> bytes:
    """Sends the bytes that the socket takes right now. Returns the bytes that were not sent.

    No task may be sending on the socket, and no earlier bytes may wait for it. If the socket is full, closed or broken,
    returns all bytes; sending them the usual way then waits or fails.
    """
    try:
        sent = os.write(socket.fileno(), data)
    except OSError:
        return data
    return data[sent:]
