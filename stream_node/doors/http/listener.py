"""HttpListener: accepts HTTP connections, makes their TLS handshakes, and ends them when the node stops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import structlog
import trio

from ockam.actors.turns import READ_BYTES_MAX, Share, Turns
from ockam.errors import RemoteProtocolError
from ockam.identity.identity import ANONYMOUS, Identity
from ockam.identity.tls_faults import TlsFault
from ockam.identity.tls_layer import TlsLayer, identity_of
from ockam.log_rate import LogRate
from ockam.quotas.usage import party_key
from ockam.transport.listener import accept_all, has_unread, open_listeners
from ockam.transport.sockets import send_nowait, socket_name
from stream_node.doors.http.app import Endpoint, HttpApp
from stream_node.doors.http.clients import HttpClients
from stream_node.doors.http.connection import HttpConnection, HttpStream
from stream_node.doors.http.identity import Peer
from stream_node.doors.http.places_machine import Admission, Places, share_of
from stream_node.doors.http.statistics import HttpStatistics
from stream_node.node.identity.tls_settings import make_listener
from stream_node.node.parts import NodeParts

logger = structlog.get_logger(__name__)


class _Guest:
    """A connection, from its beginning to its end. connection: None during its TLS handshake.
    address: the `host:port` of the peer. server_host: the IP address at which it has called the node."""

    def __init__(self, stream: trio.SocketStream, closed: Counter[str]) -> None:
        """Raises OSError if the peer has gone already."""
        self.address, self.server_host = socket_name(stream.socket.getpeername()), stream.socket.getsockname()[0]
        self.stream = stream
        self._closed = closed
        self.connection: HttpConnection | None = None

    def has_unread(self) -> bool:
        return has_unread(self.stream.socket.fileno())

    def close(self, reason: str) -> None:
        if self.connection is None:
            self._closed[reason] += 1
            self.stream.socket.close()
        else:
            self.connection.close(reason)


class HttpListener:
    """All HTTP connections of one node. addresses: the `host:port` texts at which it listens.
    Invariant: at most `http_connections_max` connections are open, and a few for the health of the node (`Places`)."""

    def __init__(self, parts: NodeParts, endpoints: Sequence[Endpoint], nursery: trio.Nursery) -> None:
        """nursery: runs the connections. It must stay open until `aclose` has returned."""
        config = parts.config
        self.parts = parts
        self._nursery = nursery
        self._tls = None if parts.tls is None else make_listener(config, parts.tls)
        self._turns = Turns(nursery, read_bytes_max=READ_BYTES_MAX)
        # Handlers use streams through clients inside the node, so that every right and limit is checked as elsewhere.
        service, index = config.service_addresses[0], config.index_addresses[0]
        most = config.http_clients_max
        self.clients = HttpClients(parts.tcp, nursery, service=service, index_service=index, clients_max=most)
        self._app = HttpApp(parts, self.clients, endpoints)
        self._listening = trio.CancelScope()
        self._open: dict[HttpConnection, None] = {}
        self._places: Places[_Guest] = Places()
        self._accepted = 0
        self._closed: Counter[str] = Counter()
        self._lines = LogRate()
        self._ended = trio.Event()
        self.addresses: list[str] = []

    async def listen(self) -> list[str]:
        """Starts to accept connections at the addresses of the setting `http`. Returns the `host:port` of each socket.
        Raises OSError if a socket cannot be opened; then no socket stays open."""
        listeners = await open_listeners(self.parts.config.http)
        self.addresses = [socket_name(listener.socket.getsockname()) for listener in listeners]
        self._nursery.start_soon(self._serve, listeners)
        return self.addresses

    async def _serve(self, listeners: Sequence[trio.SocketListener]) -> None:
        with self._listening:
            async with trio.open_nursery() as nursery:
                for listener in listeners:
                    nursery.start_soon(accept_all, listener, self._accept, lambda: None)

    def _accept(self, stream: trio.SocketStream) -> None:
        self._accepted += 1
        try:
            guest = _Guest(stream, self._closed)
        except OSError:
            self._closed["closed_before_header"] += 1
            stream.socket.close()
            return
        admission = self._enter(guest, ANONYMOUS)
        if admission is Admission.REFUSED:
            stream.socket.close()
        else:
            self._nursery.start_soon(self._run, guest, admission)

    def _enter(self, guest: _Guest, identity: Identity) -> Admission:
        """Gives a place to a connection, if need be that of the oldest one whose request has not come whole."""
        connections_max = self.parts.config.http_connections_max
        admission, gone = self._places.enter(guest, party_key(identity, guest.address), connections_max)
        if gone is not None:
            gone.close("gave_way")
        if admission is Admission.REFUSED:
            self._closed["too_many_connections"] += 1
        if gone is not None or admission is not Admission.USUAL:
            self._lines.log(
                logger.warning,
                "http_connections_give_way" if admission is Admission.USUAL else "http_connections_refused",
                peer=guest.address,
                most=connections_max,
                most_of_one=share_of(connections_max),
            )
        return admission

    async def _run(self, guest: _Guest, admission: Admission) -> None:
        """Serves one connection until its end. A failure ends the connection only."""
        try:
            connection = await self._open_connection(guest, admission)
            if connection is not None:
                guest.connection = connection
                self._open[connection] = None
                # The node may have begun to stop during the handshake.
                if self._listening.cancel_called:
                    connection.finish()
                try:
                    await connection.run()
                finally:
                    del self._open[connection]
                    self._ended.set()
        except Exception as error:
            self._lines.log(logger.error, "http_connection_failed", peer=guest.address, exc_info=error)
        finally:
            self._places.leave(guest)
            guest.stream.socket.close()

    async def _open_connection(self, guest: _Guest, admission: Admission) -> HttpConnection | None:
        """Makes the handshake. Returns the connection; None for one that must be closed."""
        tls: TlsLayer | None = None
        if self._tls is not None:
            tls = await self._handshake(guest)
            if tls is None:
                return None
        secured = HttpStream(guest.stream, tls, self.parts.config.send_timeout_s)
        peer = Peer(guest.address, identity_of(secured.certificate), tls is not None, guest.server_host)
        # A certificate counts for itself, wherever it connects from.
        if peer.identity != ANONYMOUS:
            self._places.leave(guest)
            admission = self._enter(guest, peer.identity)
            if admission is Admission.REFUSED:
                return None
        return HttpConnection(
            self._app,
            secured,
            peer,
            self.parts,
            self._closed,
            is_for_health=admission is Admission.HEALTH,
            note_received=partial(self._places.note_received, guest),
            note_waits=partial(self._places.note_waits, guest),
        )

    async def _handshake(self, guest: _Guest) -> TlsLayer | None:
        assert self._tls is not None, "called with TLS only"
        stream, address = guest.stream, guest.address
        try:
            return await self._tls.handshake(guest, stream, self._turns, Share(party_key(ANONYMOUS, address)))
        except RemoteProtocolError as error:
            self._closed[error.kind] += 1
            self._lines.log(logger.warning, "http_connection_closed", peer=address, kind=error.kind, reason=str(error))
            if isinstance(error, TlsFault):
                send_nowait(stream.socket, error.alert)
                self._note_tls_refused(address, ANONYMOUS, f"{error.kind}: {error}")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._closed["broken"] += 1
        return None

    def end_refused(self) -> None:
        if self._tls is None:
            return
        for connection in list(self._open):
            refusal = self._tls.refusal(connection.stream.certificate)
            if refusal is not None:
                kind, reason = refusal
                logger.warning("http_connection_closed", peer=connection.peer.address, kind=kind, reason=reason)
                connection.close(kind)
                self._note_tls_refused(connection.peer.address, connection.peer.identity, f"{kind}: {reason}")

    def close_identities(self, is_meant: Callable[[Identity], bool], reason: str) -> int:
        """Ends the connections and the clients of all chosen identities. Returns the number of connections.
        reason: a short, fixed word for counters."""
        meant = [each for each in self._open if is_meant(each.peer.identity)]
        for connection in meant:
            connection.close(reason)
        self.clients.close_identities(is_meant, reason)
        return len(meant)

    def stop_accepting(self) -> None:
        """Accepts no more connections, and ends each one after the answer to its present request."""
        self._listening.cancel()
        for connection in self._open:
            connection.finish()

    async def aclose(self, deadline_s: float) -> None:
        """Waits until all connections have ended; ends the others at `deadline_s`, a time on trio's clock."""
        with trio.move_on_at(deadline_s):
            while self._open:
                self._ended = trio.Event()
                await self._ended.wait()
        for connection in list(self._open):
            connection.close("shutdown")

    def statistics(self) -> HttpStatistics:
        requests = {str(status): count for status, count in sorted(self._app.answered.items())}
        body_bytes = self._app.bodies.size_bytes
        open_count, clients = len(self._open), len(self.clients)
        return HttpStatistics(open_count, self._accepted, dict(self._closed), requests, clients, body_bytes)

    def _note_tls_refused(self, peer: str, identity: Identity, reason: str) -> None:
        gate = self.parts.node.gate
        if gate is not None:
            gate.note_tls_refused(peer, identity, reason)
