"""Sending what a socket takes at once, without a task. It never waits and closes nothing."""

from __future__ import annotations

import os
from typing import Protocol


class HasDescriptor(Protocol):
    """A socket that does not block. After a close its number must be -1, never that of another file."""

    def fileno(self) -> int: ...


def send_nowait(socket: HasDescriptor, data: bytes) -> bytes:
    """Give the socket what it takes right now; the rest, which is still to be sent.

    Only for a socket on which nobody is sending, and nothing waits to be sent. All is left where the socket is full,
    closed or broken: whoever sends the rest meets that again.
    """
    try:
        sent = os.write(socket.fileno(), data)
    except OSError:
        return data
    return data[sent:]
