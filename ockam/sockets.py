"""Sends on a socket without waiting; trio has no function for this. This module closes no sockets."""

from __future__ import annotations

import os
from typing import Protocol


class HasDescriptor(Protocol):
    """The interface of a non-blocking socket.

    After the socket is closed, `fileno` must return -1, because another file can get the same descriptor."""

    def fileno(self) -> int: ...


def send_nowait(socket: HasDescriptor, data: bytes) -> bytes:
    """Sends the bytes that the socket accepts right now. Returns the bytes that were not sent.

    No task may be sending on the socket, and no earlier bytes may wait to be sent. If the socket is full, closed or
    broken, returns all bytes. The caller then sends the bytes with a function that waits or fails.
    """
    try:
        sent = os.write(socket.fileno(), data)
    except OSError:
        return data
    return data[sent:]
