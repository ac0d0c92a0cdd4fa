"""HttpListener: the HTTP door. HttpConnection: moves the bytes of one HTTP/1.1 connection between h11, its socket and
an ASGI application, and bounds the peer. Upgrades, such as to a WebSocket, are ignored."""

from __future__ import annotations

import re
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache, partial
from urllib.parse import unquote

import h11
import structlog
import trio
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Scope

from ockam.errors import RemoteProtocolError
from ockam.identity.identity import Identity
from ockam.identity.tls_layer import TlsLayer
from ockam.identity.tls_stream import receive_decrypted
from ockam.quotas.limits import share_of
from ockam.quotas.memory import Holdings
from ockam.transport.connection_machine import ConnectionStatistics
from ockam.transport.roster import Traffic
from ockam.transport.sockets import receive_ready, send_nowait
from stream_node.doors.http.app import Endpoint, HttpApp
from stream_node.doors.http.guard import PLACE_STATE, ConnectionContext, Peer
from stream_node.doors.http.memory import DISCARD_BYTES_MAX, DISCARD_S_MAX
from stream_node.doors.http.places_machine import Admission
from stream_node.doors.http.problems import problem_of_status
from stream_node.doors.listener import DoorGuest, DoorListener
from stream_node.node.inside_clients import InsideClients
from stream_node.node.parts import HttpStatistics, NodeParts

READ_BYTES_MAX = 64 * 1024
EVENTS_AT_ONCE_MAX = 2
"""After so many events of one read (a short body and its end are two), other tasks run before each next one."""
ABSOLUTE_FORM = re.compile(rb"https?://([^/?#]+)([^#]*)", re.IGNORECASE)
"""Matches a request target as clients send it to proxies. Its groups: host and port; path and query."""

logger = structlog.get_logger(__name__)


class HttpStream:
    """The bytes of one connection. send_s: how long the peer may take no part of an answer. traffic: as without TLS."""

    def __init__(self, stream: trio.SocketStream, tls: TlsLayer | None, send_s: float) -> None:
        self._stream = stream
        self._tls = tls
        self._send_s = send_s
        self._receive_raw = partial(receive_ready, stream.socket)
        self.traffic = Traffic()

    async def send_all(self, data: bytes) -> None:
        """Sends the bytes. Raises trio.BrokenResourceError if the peer does not take them in time."""
        self.traffic.sent_bytes += len(data)
        if self._tls is not None:
            data = self._tls.encrypt(data)
        # Mostly the socket takes all of it at once.
        data = send_nowait(self._stream.socket, data)
        if not data:
            return
        with trio.move_on_after(self._send_s) as scope:
            await self._stream.send_all(data)
        if scope.cancelled_caught:
            self.reset()
            raise trio.BrokenResourceError("the peer does not take its answer")

    async def receive_some(self) -> bytes:
        """Returns the next bytes, or b"" if the peer has closed its sending side."""
        if self._tls is None:
            data = await self._receive_raw(READ_BYTES_MAX)
        else:
            try:
                data = await receive_decrypted(self._receive_raw, self._tls, self._put_raw, READ_BYTES_MAX)
            except RemoteProtocolError as error:
                raise trio.BrokenResourceError(str(error)) from error
        self.traffic.received_bytes += len(data)
        return data

    async def send_eof(self) -> None:
        if self._tls is None:
            await self._stream.send_eof()
        else:
            self._put_raw(self._tls.goodbye())

    def close(self) -> None:
        self._stream.socket.close()

    def reset(self) -> None:
        """Closes the connection by a TCP reset, so that the peer does not take it for the end of the answer."""
        with suppress(OSError):
            self._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def _put_raw(self, data: bytes) -> None:
        if data:
            send_nowait(self._stream.socket, data)


class HttpConnection:
    """Serves the requests of one connection, in order. identity: the last one that a request has proved.
    Invariant: bytes are read only when a task waits for them, so a peer cannot fill memory with unread bytes."""

    def __init__(
        self,
        app: ASGIApp,
        stream: HttpStream,
        peer: Peer,
        parts: NodeParts,
        closed: Counter[str],
        *,
        is_for_health: bool,
        note_received: Callable[[], None],
        note_waits: Callable[[], None],
    ) -> None:
        """is_for_health: the connection may only ask for the health of a full node, once.
        note_received, note_waits: called when a whole request was received, and when its answer was sent."""
        self._app = app
        self.stream = stream
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=parts.config.http_header_bytes_max)
        self._idle_s = parts.config.http_idle_timeout_s
        self._holdings = Holdings(parts.tcp.memory, lambda: None, self._close_slow)
        self._roster = parts.tcp.roster
        self._closed = closed
        # The traffic up to the end of the last answer. All later traffic belongs to the request after it.
        self._answered = Traffic()
        self._note_waits = note_waits
        self._context = ConnectionContext(peer, self._holdings, is_for_health, note_received, self._note_caller)
        self.peer = peer
        self.identity = peer.identity
        self._scope = trio.CancelScope()
        # The scope of the wait for a request. `drain` cancels it, also before the wait has begun.
        self._waiting = trio.CancelScope()
        self._is_last = is_for_health
        # Whether the peer gets nothing more: it has gone, or its bytes are not HTTP.
        self._is_over = False
        self._is_head = False
        # The head of the answer, which is sent with the first part of its body.
        self._head = b""
        self._events = 0

    async def run(self) -> None:
        """Serves until either side ends the connection. After the end, no request is still being answered."""
        self._roster.begin(self, self.peer.address, trio.current_time())
        try:
            with self._scope, suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                while (request := await self._next_request()) is not None:
                    await self._app(self._scope_of(request), self._receive, self._send)
                    self._answered = Traffic.of(self.statistics())
                    self._note_waits()
                    if self._is_last or not self._h11.our_state is self._h11.their_state is h11.DONE:
                        break
                    self._h11.start_next_cycle()
                    self._is_head = False
                    self._waiting = trio.CancelScope()
                await self._say_end()
        finally:
            self._close_stream()
            self._holdings.end()
            self._roster.end(self)

    async def _next_request(self) -> h11.Request | None:
        self._waiting.deadline = trio.current_time() + self._idle_s
        with self._waiting:
            if isinstance(event := await self._next_event(), h11.Request):
                self.stream.traffic.received += 1
                return event
        return None

    async def _next_event(self) -> h11.Event:
        """Returns the next event of the peer; ConnectionClosed also for a failed connection, and for bytes that are not
        HTTP, which are answered here."""
        while True:
            # The peer has said that it sends no other request, so what it sends after this one means nothing.
            if self._h11.their_state is h11.MUST_CLOSE:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    while await self.stream.receive_some():
                        pass
                return h11.ConnectionClosed()
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                await self._refuse(error.error_status_hint)
                return h11.ConnectionClosed()
            if event is h11.PAUSED:
                waiting, has_ended = self._h11.trailing_data
                if has_ended:
                    return h11.ConnectionClosed()
                # The next request is here, and must wait for the answer to the present one.
                if waiting:
                    await trio.sleep_forever()
                # h11 has paused because the peer asks for an upgrade. The end of the connection is still waited for.
            if isinstance(event, h11.Event):
                return event
            try:
                # The peer waits until somebody wants its body, and somebody does now.
                if self._h11.they_are_waiting_for_100_continue:
                    await self._put(h11.InformationalResponse(status_code=100, headers=[]))
                self._h11.receive_data(await self.stream.receive_some())
                self._events = 0
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return h11.ConnectionClosed()

    async def _refuse(self, status: int) -> None:
        if self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            with suppress(ClientDisconnect):
                await problem_of_status(status).response()({"type": "http"}, self._receive, self._send)

    def _scope_of(self, request: h11.Request) -> Scope:
        self._is_head = request.method == b"HEAD"
        target, headers = request.target, list(request.headers)
        if whole := ABSOLUTE_FORM.fullmatch(target):
            # RFC 9112 3.2.2: the host of such a target counts, and not the one of the header.
            target = whole[2] if whole[2].startswith(b"/") else b"/" + whole[2]
            headers = [(b"host", whole[1]), *((name, value) for name, value in headers if name != b"host")]
        path, _, query = target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": request.http_version.decode(),
            "method": request.method.decode("ascii").upper(),
            "scheme": "https" if self.peer.is_encrypted else "http",
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "headers": headers,
            "server": (self.peer.server_host, 0),
            "state": {PLACE_STATE: self._context},
        }

    async def _receive(self) -> Message:
        if self._events >= EVENTS_AT_ONCE_MAX:
            await trio.lowlevel.checkpoint()
        event = await self._next_event()
        self._events += 1
        if isinstance(event, h11.Data):
            return {"type": "http.request", "body": bytes(event.data), "more_body": True}
        self._is_over = isinstance(event, h11.ConnectionClosed)
        return {"type": "http.disconnect" if self._is_over else "http.request"}

    async def _send(self, message: Message) -> None:
        """The function `send` of ASGI. Raises ClientDisconnect if the peer cannot get the answer."""
        # In the state ERROR, a part of other bytes may have been sent.
        if self._is_over or self._h11.our_state is h11.ERROR:
            raise ClientDisconnect
        try:
            if message["type"] == "http.response.start":
                # After a body that was not read to its end, no other request can be found.
                is_last = self._is_last or self._h11.their_state in (h11.SEND_BODY, h11.ERROR)
                self.stream.traffic.sent += 1
                headers = (*message["headers"], (b"date", _date(int(time.time()))))
                self._head = self._h11.send(_response(message["status"], headers, is_last)) or b""
                return
            data, has_more = b"" if self._is_head else message.get("body", b""), message.get("more_body", False)
            await self._put(h11.Data(data=data), *([] if has_more else [h11.EndOfMessage()]))
            # A peer that takes each part at once must not keep others from their turns.
            if has_more:
                await trio.lowlevel.checkpoint()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._is_over = True
            raise ClientDisconnect from error

    async def _put(self, *events: h11.InformationalResponse | h11.Data | h11.EndOfMessage) -> None:
        try:
            head, self._head = self._head, b""
            await self.stream.send_all(b"".join((head, *filter(None, map(self._h11.send, events)))))
        except BaseException:
            # Also after a cancellation, a part of the bytes may have been sent, and no other bytes may follow.
            self._h11.send_failed()
            raise

    async def _say_end(self) -> None:
        # An answer that broke off must not look complete, so its connection is closed without these steps.
        state = self._h11.our_state
        if state in (h11.IDLE, h11.DONE, h11.MUST_CLOSE):
            await self.stream.send_eof()
        # A socket that is closed while it has unread bytes takes the answer away from the peer.
        left_bytes = DISCARD_BYTES_MAX if state in (h11.DONE, h11.MUST_CLOSE) else 0
        with trio.move_on_after(DISCARD_S_MAX):
            while left_bytes > 0 and (data := await self.stream.receive_some()):
                left_bytes -= len(data)

    def drain(self) -> None:
        """Ends the connection after the answer to its present request, at once if there is none."""
        self._is_last = True
        self._waiting.cancel()

    def close(self, reason: str) -> None:
        """Ends the connection at once, and drops all answers."""
        self._closed[reason] += 1
        self._close_stream()
        self._scope.cancel()

    def _close_stream(self) -> None:
        # For a peer of HTTP/1.0, the end of the connection ends the answer. So an incomplete answer ends by a reset.
        if self._h11.our_state in (h11.SEND_BODY, h11.ERROR) and self._h11.their_http_version != b"1.1":
            self.stream.reset()
        else:
            self.stream.close()

    def statistics(self) -> ConnectionStatistics:
        """Returns the traffic so far. Requests count as received messages, and answers as sent ones."""
        each = self.stream.traffic
        moved = each.received, each.received_bytes, each.sent, each.sent_bytes
        return ConnectionStatistics(self.peer.address, "http", *moved, self._holdings.unread_bytes)

    def _note_caller(self, identity: Identity) -> None:
        if identity != self.identity:
            self._roster.settle(self, self._answered)
            self.identity = identity

    def _close_slow(self) -> None:
        logger.warning("http_slow_consumer", peer=self.peer.address, held_bytes=self._holdings.size_bytes)
        self.close("slow_consumer")


@lru_cache(maxsize=1)
def _date(now_s: int) -> bytes:
    return formatdate(now_s, usegmt=True).encode()


@lru_cache(maxsize=100)
def _response(status: int, headers: tuple[tuple[bytes, bytes], ...], is_last: bool) -> h11.Response:
    """Returns the head of an answer. Many answers of one second have the same headers, and h11 checks each header."""
    return h11.Response(status_code=status, headers=[*headers, *([(b"connection", b"close")] if is_last else [])])


class HttpListener(DoorListener[HttpConnection]):
    """All HTTP connections of one node. A few above the limit may ask for the health of the node (`Places`)."""

    def __init__(self, parts: NodeParts, endpoints: Sequence[Endpoint], nursery: trio.Nursery) -> None:
        super().__init__(parts, nursery, "http")
        config = parts.config
        # Handlers use streams through clients inside the node, so that every right and limit is checked as elsewhere.
        self.clients = InsideClients(
            parts.tcp,
            nursery,
            config,
            clients_max=config.http_clients_max,
            too_many="too many identities use streams over HTTP (http_clients_max); try again later",
        )
        self._app = HttpApp(parts, self.clients, endpoints, nursery)

    def close_identities(self, is_meant: Callable[[Identity], bool], reason: str) -> int:
        """Ends the connections and clients of the chosen identities. Returns the number of connections."""
        meant = [each for each in self._open.values() if is_meant(each.peer.identity)]
        for connection in meant:
            connection.close(reason)
        self.clients.close_identities(is_meant)
        return len(meant)

    def statistics(self) -> HttpStatistics:
        requests = {str(status): count for status, count in sorted(self._app.answered.items())}
        body_bytes = self._app.bodies.total()
        open_count, clients = len(self._open), len(self.clients)
        return HttpStatistics(open_count, self._accepted, dict(self._closed), requests, clients, body_bytes)

    def _make(
        self, guest: DoorGuest[HttpConnection], tls: TlsLayer | None, admission: Admission
    ) -> HttpConnection | None:
        return HttpConnection(
            self._app,
            HttpStream(guest.stream, tls, self.parts.config.send_timeout_s),
            Peer(guest.address, guest.identity, tls is not None, guest.server_host),
            self.parts,
            self._closed,
            is_for_health=admission is Admission.HEALTH,
            note_received=partial(self._places.note_received, guest),
            note_waits=partial(self._places.note_waits, guest),
        )

    def _admits(self, guest: DoorGuest[HttpConnection], admission: Admission, *, gave_way: bool) -> bool:
        if gave_way or admission is not Admission.USUAL:
            self._lines.log(
                logger.warning,
                "http_connections_give_way" if admission is Admission.USUAL else "http_connections_refused",
                peer=guest.address,
                most=self._connections_max,
                most_of_one=share_of(self._connections_max),
            )
        return admission is not Admission.REFUSED
