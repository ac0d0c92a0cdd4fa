"""SocketBytes: the bytes of one TCP connection under trio, with TLS or without. It knows no frames."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import islice
from typing import Final

import trio

from ockam.errors import RemoteProtocolError
from ockam.identity.tls_layer import TlsLayer
from ockam.identity.tls_stream import receive_decrypted

READ_BYTES: Final = 256 * 1024
PIECES_MAX: Final = 128
"""The most pieces in one call of the kernel. More would cost more than they save."""
KERNEL_BYTES: Final = 1024 * 1024
"""The most unsent bytes that the kernel takes. trio lets the kernel take 16 KiB, which suits short messages. A
mebibyte would then leave in a dozen steps, and each step costs as much as the sending of its bytes."""
ENCRYPTED_BYTES: Final = 256 * 1024


class SocketBytes:
    """One connection. tls: its TLS after the handshake; None: no TLS. One task may receive while another sends."""

    def __init__(self, stream: trio.SocketStream, tls: TlsLayer | None = None) -> None:
        self._stream = stream
        self._tls = tls
        self._raw: list[bytes] = []
        self._is_full = False
        if hasattr(trio.socket, "TCP_NOTSENT_LOWAT"):
            stream.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NOTSENT_LOWAT, KERNEL_BYTES)
        self.sent_bytes = self.received_bytes = 0

    async def receive_some(self) -> bytes:
        """Returns the next bytes, or b"" at the end. Raises trio.BrokenResourceError and trio.ClosedResourceError."""
        if self._tls is None:
            data = bytes(await self._stream.receive_some(READ_BYTES))
        else:
            try:
                # The answers of TLS itself go out in front of the next bytes.
                data = await receive_decrypted(self._stream.receive_some, self._tls, self._raw.append, READ_BYTES)
            except RemoteProtocolError as error:
                raise trio.BrokenResourceError(str(error)) from error
        self.received_bytes += len(data)
        return data

    async def send_some(self, pieces: Sequence[bytes | memoryview]) -> int:
        """Sends bytes from the front of `pieces`. Returns the number of sent bytes. Raises as `receive_some`."""
        if self._tls is None:
            sent = await self._send_plain(list(islice(pieces, PIECES_MAX)))
        else:
            gathered, sent = [], 0
            for piece in pieces:
                gathered.append(piece)
                sent += len(piece)
                if sent >= ENCRYPTED_BYTES:
                    break
            raw, self._raw = self._raw, []
            await self._stream.send_all(b"".join((*raw, self._tls.encrypt(b"".join(gathered)))))
        self.sent_bytes += sent
        return sent

    async def _send_plain(self, pieces: list[bytes | memoryview]) -> int:
        socket = self._stream.socket
        while True:
            # trio's own `sendmsg` lets all other tasks run after each call. Here they run only once each time when the
            # socket has room.
            if self._is_full:
                await trio.lowlevel.wait_writable(socket)
            else:
                await trio.lowlevel.checkpoint()
            try:
                sent = os.writev(socket.fileno(), pieces)
            except BlockingIOError:
                self._is_full = True
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error
            else:
                self._is_full = sent < sum(map(len, pieces))
                return sent

    async def send_end(self) -> None:
        if self._tls is not None:
            await self._stream.send_all(b"".join(self._raw) + self._tls.goodbye())
        await self._stream.send_eof()

    def close(self) -> None:
        self._stream.socket.close()
