"""Sends on a socket without waiting, for which trio has no function. Names and closes sockets."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, Protocol

import trio


class HasDescriptor(Protocol):
    """A non-blocking socket. Its `fileno` is -1 once it is closed: another file can get the descriptor."""

    def fileno(self) -> int: ...


def send_nowait(socket: HasDescriptor, *pieces: bytes) -> bytes:
    """Sends the bytes that the socket accepts right now, and returns the others: all if it is full, closed or broken.
    No task may be sending on the socket, and no earlier bytes may wait."""
    sent = 0
    with suppress(OSError):
        sent = os.write(socket.fileno(), pieces[0]) if len(pieces) == 1 else os.writev(socket.fileno(), pieces)
    for number, piece in enumerate(pieces):
        if sent < len(piece):
            return b"".join((memoryview(piece)[sent:], *pieces[number + 1 :])) if sent or number else b"".join(pieces)
        sent -= len(piece)
    return b""


async def receive_ready(socket: trio.socket.SocketType, bytes_max: int) -> bytes:
    """Waits for bytes, and returns them as soon as the event loop sees them; b"" at the end. A socket stream of trio
    tries to read before it waits, and lets all other tasks run before it returns the bytes. Raises
    ClosedResourceError and BrokenResourceError."""
    while True:
        if socket.fileno() < 0:
            raise trio.ClosedResourceError("this socket is closed")
        await trio.lowlevel.wait_readable(socket)
        try:
            return os.read(socket.fileno(), bytes_max)
        except BlockingIOError:
            continue
        except OSError as error:
            raise trio.BrokenResourceError("the connection is broken") from error


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
