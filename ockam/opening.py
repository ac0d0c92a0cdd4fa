"""The first bytes of a connection: learning which framing the peer speaks, and taking its hello off.

It waits for bytes and keeps the time that `era` speaks of; what the bytes mean is decided there.
"""

from __future__ import annotations

import math

import trio

from ockam.era import maybe_wire
from ockam.errors import RemoteProtocolError
from ockam.wire import Wire
from ockam.wire_head import HEAD
from ockam.wire_legacy import LEGACY

READ_BYTES_MAX = 256 * 1024


async def learn_wire(
    stream: trio.abc.ReceiveStream, header_s: float, head_silence_s: float
) -> tuple[Wire | None, bytes]:
    """The peer's framing and all bytes read so far; None where the peer left before it was told.

    Raises RemoteProtocolError (header_timeout) where nothing that decides came in `header_s`.
    """
    first = b""
    wire: Wire | None = None
    with trio.move_on_after(header_s):
        while wire is None:
            with trio.move_on_after(head_silence_s if first else math.inf) as silence:
                chunk = await stream.receive_some(READ_BYTES_MAX)
            if silence.cancelled_caught:
                return HEAD if first == HEAD.hello else LEGACY, first
            if not chunk:
                return None, b""
            first += chunk
            wire = maybe_wire(first)
        return wire, first
    raise RemoteProtocolError("header_timeout", f"no header came in {header_s} s")


async def skip_hello(stream: trio.abc.ReceiveStream, chunk: bytes, hello: bytes, header_s: float) -> bytes:
    """`chunk` without the peer's hello, which is waited for where nothing has come. Raises RemoteProtocolError."""
    if not chunk:
        with trio.move_on_after(header_s):
            chunk = bytes(await stream.receive_some(READ_BYTES_MAX))
    if not chunk.startswith(hello):
        raise RemoteProtocolError("header", f"the peer opened with {chunk[:1].hex() or 'nothing'}, not {hello.hex()}")
    return chunk[len(hello) :]
