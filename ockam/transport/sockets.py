"""Sends on a socket without waiting, for which trio has no function. Names and closes sockets."""

from __future__ import annotations

import os
from typing import Any, Protocol

import trio


class HasDescriptor(Protocol):
    """A non-blocking socket. Its `fileno` is -1 once it is closed: another file can get the descriptor."""

    def fileno(self) -> int: ...


def send_nowait(socket: HasDescriptor, data: bytes) -> bytes:
    """Sends the bytes that the socket accepts right now, and returns the others: all if it is full, closed or broken.
    No task may be sending on the socket, and no earlier bytes may wait."""
    try:
        sent = os.write(socket.fileno(), data)
    except OSError:
        return data
    return data[sent:]


def socket_name(address: tuple[Any, ...]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


async def end_stream(stream: trio.abc.Stream, goodbye: bytes) -> None:
    # Closing a socket does not await. Any other stream awaits while closing, so cancellation is shielded off.
    if isinstance(stream, trio.SocketStream):
        if goodbye:
            send_nowait(stream.socket, goodbye)
        stream.socket.close()
    else:
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(stream)
