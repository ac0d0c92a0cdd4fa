"""TLS on streams of trio: TlsListener for the peers that connect to this node, and `connect_tls` for the other side.

A peer that never finishes its handshake costs a socket. Above a limit, the oldest stalled handshake is closed."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import trio

from ockam.actors.turns import Share, Turns
from ockam.identity.tls import HANDSHAKE_TIMEOUT_S, HANDSHAKES_MAX, ServerTls
from ockam.identity.tls_layer import ENDED_IN_HANDSHAKE, REFUSED, PeerCertificate, TlsFault, TlsLayer
from ockam.transport.listener import SilentConnection, close_oldest

READ_BYTES = 16 * 1024


class TlsListener:
    """TLS for the connections that one node accepts. Invariant: at most `handshakes_max` handshakes are under way."""

    def __init__(
        self,
        server: ServerTls,
        *,
        handshake_s: float = HANDSHAKE_TIMEOUT_S,
        handshakes_max: int = HANDSHAKES_MAX,
        now_s: Callable[[], float] = time.time,
        alpn: str | None = None,
    ) -> None:
        """alpn: the protocol that the node names to a client that asks for it. Raises TlsFilesError."""
        if alpn is not None:
            server.add_protocol(alpn)
        self._server = server
        self._handshake_s = handshake_s
        self._handshakes_max = handshakes_max
        self._now_s = now_s
        self._alpn = alpn
        self._under_way: dict[SilentConnection, None] = {}

    @property
    def handshakes(self) -> int:
        return len(self._under_way)

    async def handshake(
        self, connection: SilentConnection, stream: trio.abc.Stream, turns: Turns, share: Share
    ) -> TlsLayer | None:
        """Completes the handshake with a peer. Returns None if the peer closes first. Raises TlsFault."""
        if len(self._under_way) >= self._handshakes_max and close_oldest(self._under_way) is None:
            raise TlsFault("tls_timeout", "too many TLS handshakes are under way")
        # While the handshake runs, the connection may be closed to make room for another one.
        layer = self._server.layer(self._alpn)
        self._under_way[connection] = None
        try:
            with trio.move_on_after(self._handshake_s):
                if not await self._exchange(stream, layer, turns, share):
                    return None
        finally:
            self._under_way.pop(connection, None)
        if not layer.is_open:
            raise TlsFault("tls_timeout", f"the TLS handshake was not complete after {self._handshake_s:g} s")
        refusal = self.refusal(layer.certificate)
        if refusal is not None:
            # OpenSSL has accepted the certificate, so there is no alert; the reason is sent as text.
            kind, reason = refusal
            raise TlsFault(kind, reason, layer.encrypt(REFUSED + reason.encode() + b"\n") + layer.goodbye())
        return layer

    async def _exchange(self, stream: trio.abc.Stream, layer: TlsLayer, turns: Turns, share: Share) -> bool:
        while not layer.is_open:
            chunk = bytes(await stream.receive_some(READ_BYTES))
            if not chunk:
                return False
            # Each step costs a millisecond or two of cryptography. A flood of handshakes must not delay the others.
            await turns.wait(share)
            began_s = trio.current_time()
            reply = layer.handshake(chunk)
            turns.note(share, began_s)
            if reply:
                await stream.send_all(reply)
        return True

    def refusal(self, certificate: PeerCertificate | None) -> tuple[str, str] | None:
        return self._server.refusal(certificate, self._now_s())


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
