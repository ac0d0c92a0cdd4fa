"""Opening: reads the first bytes of a connection, until the framing and the hello (the opening byte) are known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from ockam.actors.turns import READ_BYTES_MAX
from ockam.transport.connection_machine import ConnectionMachine, TransportState


async def open_framing(
    machine: ConnectionMachine,
    read: Callable[[], Awaitable[bytes]],
    receive_some: Callable[[int], Awaitable[bytes | bytearray]],
    put: Callable[[bytes], None],
) -> bytes | None:
    """Returns the bytes after the hello of the peer, or None if the peer has closed the connection. Raises
    RemoteProtocolError. read: returns the next bytes within the machine's deadlines. put: sends bytes."""
    frames = b""
    while machine.state is TransportState.OPENING:
        if machine.wire is None:
            # A peer that connected to us may be silent without limit before its first frame.
            chunk = await read()
            if not chunk:
                return None
        else:
            # A node that we connected to sends its hello at once. If no hello comes, the other side is not a node.
            chunk = b""
            with trio.move_on_after(machine.limits.hello_s):
                chunk = bytes(await receive_some(READ_BYTES_MAX))
        reply, frames = machine.receive_opening(chunk, trio.current_time())
        put(reply)
    return frames
