"""Receives over TLS, and connects with TLS, on a stream of trio. The bytes are encrypted by `tls_layer`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from ockam.identity.tls_faults import ENDED_IN_HANDSHAKE, TlsFault
from ockam.identity.tls_layer import TlsLayer

READ_BYTES = 16 * 1024


async def connect_tls(stream: trio.abc.Stream, layer: TlsLayer) -> None:
    """Completes a handshake that this side begins. Raises TlsFault, and the errors of the stream."""
    reply = layer.handshake()
    try:
        while reply or not layer.is_open:
            if reply:
                await stream.send_all(reply)
            reply = b""
            if not layer.is_open:
                chunk = bytes(await stream.receive_some(READ_BYTES))
                if not chunk:
                    raise TlsFault("tls_not_tls", ENDED_IN_HANDSHAKE)
                reply = layer.handshake(chunk)
    except TlsFault as fault:
        # The other side learns the reason, if it still reads.
        if fault.alert:
            await stream.send_all(fault.alert)
        raise


async def receive_decrypted(
    receive_some: Callable[[int], Awaitable[bytes | bytearray]],
    layer: TlsLayer,
    put_raw: Callable[[bytes], None],
    bytes_max: int,
) -> bytes:
    """Returns the next bytes, or b"" if the other side has closed its sending side. Raises TlsFault. put_raw: sends the
    bytes with which TLS itself answers, for example after a change of keys."""
    # The other side may have sent its first bytes together with the end of its handshake.
    chunk = b""
    while not layer.ended:
        data = layer.decrypt(chunk)
        # The other side may change its keys, and ask us to change ours.
        put_raw(layer.take_outgoing())
        if data:
            return data
        if not layer.ended:
            chunk = bytes(await receive_some(bytes_max))
            if not chunk:
                return b""
    return b""
