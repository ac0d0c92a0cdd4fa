"""Sending on a socket without waiting, which trio does not offer. Nothing is closed here."""

from __future__ import annotations

import os
from typing import Protocol


class HasDescriptor(Protocol):
    """A non-blocking socket. After a close its number must be -1: the old number may belong to another file by then."""

    def fileno(self) -> int: ...


def send_nowait(socket: HasDescriptor, data: bytes) -> bytes:
    """Send the bytes that the socket takes right now; returns the rest.

    Only for a socket on which no task is sending, and for which no other bytes wait: they would be overtaken. If the
    socket is full, closed or broken, the rest is everything, and sending it waits or fails as usual.
    """
    try:
        sent = os.write(socket.fileno(), data)
    except OSError:
        return data
    return data[sent:]
