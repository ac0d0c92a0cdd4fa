"""Sending what a socket takes at once, without a task. It never waits and closes nothing."""

from __future__ import annotations

import os

import trio


def send_now(stream: trio.abc.Stream, data: bytes) -> bytes:
    """Give the socket under a plain TCP stream what it takes right now; the rest, which is still to be sent.

    Only for a stream on which nobody is sending. All is left of it where the stream is of another kind (TLS, a test's
    pipe), and where the socket is full, closed or broken: whoever sends the rest meets that again.
    """
    if not isinstance(stream, trio.SocketStream):
        return data
    try:
        # trio's sockets do not block, and after a close their number is -1, never that of another file.
        sent = os.write(stream.socket.fileno(), data)
    except OSError:
        return data
    return data[sent:]
