"""HttpConnection: one connection of HTTP/1.1. Hypercorn reads and writes HTTP; this module bounds the peer.
HTTP/2 is off, because hypercorn ends a connection of HTTP/2 after 1,000 requests. WebSockets are off, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import structlog
import trio
from hypercorn.config import Config as HypercornConfig
from hypercorn.events import Event, Updated
from hypercorn.protocol.events import Body, EndBody
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.events import Response as HttpResponse
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState

from ockam.errors import RemoteProtocolError
from ockam.identity.identity import Identity
from ockam.identity.tls_layer import PeerCertificate, TlsLayer, identity_of
from ockam.identity.tls_stream import receive_decrypted
from ockam.quotas.memory import Holdings, PeerMemory
from ockam.transport.connection_machine import ConnectionStatistics
from ockam.transport.roster import Roster
from ockam.transport.sockets import send_nowait
from ockam.transport.tcp_statistics import Traffic
from stream_node.doors.http.identity import PEER_STATE, PLACE_STATE, ConnectionContext, Peer
from stream_node.doors.http.problems import problem_of_status

logger = structlog.get_logger(__name__)


class HttpStream:
    """The bytes of one connection, encrypted if it uses TLS, with the methods of a stream that hypercorn needs.
    send_s: the longest time in which the peer may take no part of an answer. traffic: counts the bytes, without TLS.
    tls: after its handshake; None: the connection is not encrypted."""

    def __init__(self, stream: trio.SocketStream, tls: TlsLayer | None, send_s: float) -> None:
        self.socket = stream.socket
        self._stream = stream
        self._tls = tls
        self._send_s = send_s
        self.traffic = Traffic()

    async def send_all(self, data: bytes) -> None:
        """Sends the bytes. Raises trio.BrokenResourceError if the peer does not take them in time."""
        self.traffic.sent_bytes += len(data)
        if self._tls is not None:
            data = self._tls.encrypt(data)
        with trio.move_on_after(self._send_s) as scope:
            await self._stream.send_all(data)
        if scope.cancelled_caught:
            self.socket.close()
            raise trio.BrokenResourceError("the peer does not take its answer")

    async def receive_some(self, bytes_max: int) -> bytes:
        data = await self._receive_some(bytes_max)
        self.traffic.received_bytes += len(data)
        return data

    async def _receive_some(self, bytes_max: int) -> bytes:
        if self._tls is None:
            return bytes(await self._stream.receive_some(bytes_max))
        try:
            return await receive_decrypted(self._stream, self._tls, self._put_raw, bytes_max)
        except RemoteProtocolError as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def send_eof(self) -> None:
        if self._tls is None:
            await self._stream.send_eof()
        else:
            self._put_raw(self._tls.goodbye())

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _put_raw(self, data: bytes) -> None:
        if data:
            send_nowait(self.socket, data)


class _Http11(H11Protocol):
    traffic: Traffic

    async def _check_protocol(self, event: Any) -> None:
        """Ignores every request to change to HTTP/2."""

    async def _create_stream(self, request: Any) -> None:
        """Ignores every request to change to a WebSocket, as HTTP allows.
        Hypercorn's WebSockets have no time limits, and many invalid headers break them."""
        headers = [(name, value) for name, value in request.headers.raw_items() if name.lower() != b"upgrade"]
        plain = type(request)(
            method=request.method, target=request.target, headers=headers, http_version=request.http_version
        )
        self.traffic.received += 1
        await super()._create_stream(plain)

    async def stream_send(self, event: StreamEvent) -> None:
        self.traffic.sent += isinstance(event, HttpResponse)
        await super().stream_send(event)

    async def _send_error_response(self, status_code: int) -> None:
        """Answers a request that is not valid HTTP, or whose headers are too large."""
        response = problem_of_status(status_code, "").response()
        headers = [*response.raw_headers, (b"connection", b"close")]
        await self.stream_send(HttpResponse(STREAM_ID, headers, status_code))
        await self.stream_send(Body(STREAM_ID, bytes(response.body)))
        await self.stream_send(EndBody(STREAM_ID))


class HttpConnection(TCPServer):
    """Serves the requests of one connection, one after the other.
    certificate: as the peer has proved it. identity: as the last request has proved it. roster: lists the connection
    while it runs. closed: counts the closed connections by reason. is_for_health: see `ConnectionContext`.
    note_received, note_waits: called when a whole request was received, and when its answer was sent."""

    def __init__(
        self,
        app: AppWrapper,
        config: HypercornConfig,
        context: WorkerContext,
        stream: HttpStream,
        peer: Peer,
        certificate: PeerCertificate | None,
        *,
        memory: PeerMemory,
        roster: Roster,
        closed: Counter[str],
        is_for_health: bool,
        note_received: Callable[[], None],
        note_waits: Callable[[], None],
    ) -> None:
        self._holdings = Holdings(memory, lambda: None, self._close_slow)
        self._roster = roster
        self._closed = closed
        self._traffic = stream.traffic
        # The traffic up to the end of the last answer. All later traffic belongs to the request after it.
        self._answered = Traffic()
        self._note_waits = note_waits
        place = ConnectionContext(self._holdings, is_for_health, note_received, self._note_caller)
        state = ConnectionState({PEER_STATE: peer, PLACE_STATE: place})
        super().__init__(app, config, context, state, stream)  # type: ignore[arg-type]
        self.peer = peer
        self.identity = peer.identity
        self.certificate = certificate
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Serves until either side ends the connection. After the end, no request is still being answered."""
        host, _, port = self.peer.address.rpartition(":")
        self._roster.begin(self, self.peer.address, trio.current_time())
        try:
            with self._scope:
                async with TaskGroup() as task_group:
                    self._task_group = task_group
                    self.protocol = _Http11(  # type: ignore[assignment]
                        self.app,
                        self.config,
                        self.context,
                        task_group,
                        ConnectionState(self.state),
                        ssl=self.peer.is_encrypted,
                        client=(host.strip("[]"), int(port)),
                        server=(self.peer.server_host, 0),
                        send=self.protocol_send,
                    )
                    self.protocol.traffic = self._traffic  # type: ignore[attr-defined]
                    await self.idle_task.restart(task_group, self._idle_timeout)
                    await self._read_data()
                    await self.idle_task.stop()
        except OSError:
            # The socket failed, so the peer cannot get an answer.
            return
        finally:
            await self._close()
            self._holdings.end()
            self._roster.end(self)

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, Updated) and event.idle:
            self._answered = Traffic.of(self.statistics())
            self._note_waits()
        await super().protocol_send(event)

    async def _close(self) -> None:
        # A body that nobody reads would keep the reading task waiting for ever.
        self._scope.cancel()
        with trio.CancelScope(shield=True):
            await super()._close()

    def close(self, reason: str) -> None:
        """Ends the connection at once, and drops all answers."""
        self._closed[reason] += 1
        self.stream.socket.close()
        self._scope.cancel()

    def statistics(self) -> ConnectionStatistics:
        """Requests count as received messages, and answers as sent ones."""
        each = self._traffic
        moved = each.received, each.received_bytes, each.sent, each.sent_bytes
        return ConnectionStatistics(self.peer.address, "http", *moved, self._holdings.unread_bytes)

    def _note_caller(self, identity: Identity) -> None:
        if identity != self.identity:
            self._roster.settle(self, self._answered)
            self.identity = identity

    def _close_slow(self) -> None:
        logger.warning("http_slow_consumer", peer=self.peer.address, held_bytes=self._holdings.size_bytes)
        self.close("slow_consumer")


def make_peer(address: str, server_host: str, tls: TlsLayer | None) -> Peer:
    """address: the `host:port` of the peer. server_host: the IP address that it has called."""
    return Peer(address, identity_of(None if tls is None else tls.certificate), tls is not None, server_host)
