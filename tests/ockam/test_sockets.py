"""Goal: the bytes that are sent at once and the rest that is sent later are together the bytes to be sent.

Method: real sockets with small buffers, and closed ones.
"""

from __future__ import annotations

import os
import socket

import trio

from ockam.transport.sockets import send_nowait


async def test_a_socket_takes_the_bytes_that_fit_and_the_rest_is_returned() -> None:
    ours, theirs = trio.socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    stream = trio.SocketStream(ours)
    data = os.urandom(1_000_000)
    rest = send_nowait(ours, data)
    assert 0 < len(rest) < len(data)
    assert send_nowait(ours, rest) == rest
    received = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, rest)
        while len(received) < len(data):
            received += await theirs.recv(65_536)
    assert received == data
    await stream.aclose()
    theirs.close()


async def test_a_closed_socket_takes_nothing() -> None:
    ours, theirs = trio.socket.socketpair()
    stream = trio.SocketStream(ours)
    theirs.close()
    assert send_nowait(ours, b"data") == b"data"
    await stream.aclose()
    assert send_nowait(ours, b"data") == b"data"
