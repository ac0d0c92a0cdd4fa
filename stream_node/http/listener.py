"""HttpListener: accepts HTTP connections in the node's own event loop, and ends them when the node stops.

Hypercorn is used only for the protocol. The node itself opens the sockets, makes the TLS handshakes, writes the log
lines and ends the connections.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import structlog
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config as HypercornConfig
from hypercorn.logging import Logger as HypercornLogger
from hypercorn.trio.worker_context import WorkerContext

from ockam.address import split_host_port
from ockam.errors import RemoteProtocolError
from ockam.identity import ANONYMOUS, Identity
from ockam.listener import accept_all, has_unread
from ockam.log_rate import LogRate
from ockam.sockets import send_nowait, socket_name
from ockam.tls_faults import TlsFault
from ockam.tls_layer import TlsLayer
from ockam.turns import READ_BYTES_MAX, Share, Turns
from ockam.usage import party_key
from stream_node.http.app import Endpoint, HttpApp
from stream_node.http.clients import HttpClients
from stream_node.http.connection import HttpConnection, HttpStream, make_peer
from stream_node.http.statistics import HttpStatistics
from stream_node.parts import NodeParts
from stream_node.tls_settings import make_listener

PARTY_SHARE = 4
"""One host or one certificate can have at most the fraction 1/PARTY_SHARE of all HTTP connections."""
BODY_PARTS_WAITING_MAX = 2
"""The largest number of parts of one body, of up to 64 KiB each, that wait in memory for their endpoint."""

logger = structlog.get_logger(__name__)


class _Logs(HypercornLogger):
    """Passes the few log lines of hypercorn to the node's log. A failed request has its line in `app`."""

    def __init__(self, config: HypercornConfig) -> None:
        self.access_logger = None
        self.error_logger = logging.getLogger("stream_node.http")

    async def exception(self, message: str, *args: Any, **kwargs: Any) -> None:
        logger.error("http_failed", reason=message, exc_info=True)


class _Opening:
    """A connection during its TLS handshake. The listener closes the oldest silent one if there are too many."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._socket = stream.socket

    def has_unread(self) -> bool:
        return has_unread(self._socket.fileno())

    def close(self, reason: str) -> None:
        self._socket.close()


class HttpListener:
    """All HTTP connections of one node.

    parts: the parts of the node; its settings can change.
    addresses: the `host:port` texts at which it listens.
    clients: the clients inside the node.

    Invariant: at most `http_connections_max` connections are open.
    """

    def __init__(self, parts: NodeParts, endpoints: Sequence[Endpoint], nursery: trio.Nursery) -> None:
        """nursery: runs the connections. It must stay open until `aclose` has returned."""
        config = parts.config
        self.parts = parts
        self._nursery = nursery
        self._tls = None if parts.tls is None else make_listener(config, parts.tls)
        self._turns = Turns(nursery, read_bytes_max=READ_BYTES_MAX)
        self.clients = HttpClients(
            parts.tcp,
            nursery,
            service=config.service_addresses[0],
            index_service=config.index_addresses[0],
            clients_max=config.http_clients_max,
        )
        self._app = HttpApp(parts, self.clients, endpoints)
        self._config = _hypercorn_config(parts)
        self._context = WorkerContext(None)
        self._listening = trio.CancelScope()
        self._open: dict[HttpConnection, str] = {}
        self._parties: Counter[str] = Counter()
        self._opening: Counter[str] = Counter()
        self._accepted = 0
        self._closed: Counter[str] = Counter()
        self._lines = LogRate()
        self._ended = trio.Event()
        self.addresses: list[str] = []

    async def listen(self) -> list[str]:
        """Starts to accept connections at the addresses of the setting `http`. Returns the `host:port` of each socket.

        Raises OSError if a socket cannot be opened; then no socket stays open.
        """
        listeners: list[trio.SocketListener] = []
        try:
            for address in self.parts.config.http:
                host, port = split_host_port(address)
                listeners += await trio.open_tcp_listeners(port, host=host)
        except BaseException:
            for listener in listeners:
                listener.socket.close()
            raise
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
            peer, server = socket_name(stream.socket.getpeername()), stream.socket.getsockname()[0]
        except OSError:
            self._closed["closed_before_header"] += 1
            stream.socket.close()
            return
        party = party_key(ANONYMOUS, peer)
        connections_max = self.parts.config.http_connections_max
        if len(self._open) + self._opening.total() >= connections_max or not self._has_room(party):
            self._closed["too_many_connections"] += 1
            self._lines.log(logger.warning, "http_connections_refused", peer=peer, most=connections_max)
            stream.socket.close()
            return
        self._opening[party] += 1
        self._nursery.start_soon(self._run, stream, peer, server)

    def _has_room(self, party: str) -> bool:
        """Whether one more connection may open or stay open. Those in their TLS handshake count as open ones."""
        connections_max = self.parts.config.http_connections_max
        count = self._parties[party] + self._opening[party]
        return count < max(1, connections_max // PARTY_SHARE)

    async def _run(self, stream: trio.SocketStream, address: str, server_host: str) -> None:
        """Serves one connection until its end. A failure ends the connection only."""
        try:
            connection, party = await self._open_connection(stream, address, server_host)
            if connection is not None:
                self._open[connection] = party
                self._parties[party] += 1
                try:
                    await connection.run()
                finally:
                    self._forget(connection)
        except Exception as error:
            self._lines.log(logger.error, "http_connection_failed", peer=address, exc_info=error)
        finally:
            stream.socket.close()

    async def _open_connection(
        self, stream: trio.SocketStream, address: str, server_host: str
    ) -> tuple[HttpConnection | None, str]:
        """Makes the handshake. Returns the connection and the text under which its peer counts; None for a connection
        that must be closed."""
        tls: TlsLayer | None = None
        party = party_key(ANONYMOUS, address)
        try:
            if self._tls is not None:
                tls = await self._handshake(stream, address)
                if tls is None:
                    return None, party
        finally:
            self._opening[party] -= 1
            if not self._opening[party]:
                del self._opening[party]
        peer = make_peer(address, server_host, tls)
        party = party_key(peer.identity, address)
        if not self._has_room(party):
            self._closed["too_many_connections"] += 1
            return None, party
        wrapped = HttpStream(stream, tls, self.parts.config.send_timeout_s)
        certificate = None if tls is None else tls.certificate
        app = ASGIWrapper(cast(Any, self._app))
        return HttpConnection(app, self._config, self._context, wrapped, peer, certificate), party

    async def _handshake(self, stream: trio.SocketStream, address: str) -> TlsLayer | None:
        """Returns the TLS of a new connection; None if the handshake failed."""
        assert self._tls is not None, "called with TLS only"
        share = Share(party_key(ANONYMOUS, address))
        try:
            return await self._tls.handshake(_Opening(stream), stream, self._turns, share)
        except RemoteProtocolError as error:
            self._closed[error.kind] += 1
            self._lines.log(logger.warning, "http_connection_closed", peer=address, kind=error.kind, reason=str(error))
            if isinstance(error, TlsFault):
                send_nowait(stream.socket, error.alert)
                self._note_tls_refused(address, ANONYMOUS, f"{error.kind}: {error}")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._closed["broken"] += 1
        return None

    def _forget(self, connection: HttpConnection) -> None:
        party = self._open.pop(connection)
        self._parties[party] -= 1
        if not self._parties[party]:
            del self._parties[party]
        self._ended.set()

    # The end of connections.

    def end_refused(self) -> None:
        """Ends the connections whose certificate has been revoked, or has expired."""
        if self._tls is None:
            return
        for connection in list(self._open):
            refusal = self._tls.refusal(connection.certificate)
            if refusal is not None:
                kind, reason = refusal
                self._closed[kind] += 1
                logger.warning("http_connection_closed", peer=connection.peer.address, kind=kind, reason=reason)
                connection.close()
                self._note_tls_refused(connection.peer.address, connection.peer.identity, f"{kind}: {reason}")

    def close_identities(self, is_meant: Callable[[Identity], bool], reason: str) -> int:
        """Ends the connections and the clients of all identities that the function chooses. Returns the number of
        connections. reason: a short, fixed word for counters."""
        meant = [each for each in self._open if is_meant(each.peer.identity)]
        for connection in meant:
            self._closed[reason] += 1
            connection.close()
        self.clients.close_identities(is_meant, reason)
        return len(meant)

    async def stop_accepting(self) -> None:
        """Accepts no more connections, and ends each one after the answer to its present request."""
        self._listening.cancel()
        await self._context.terminated.set()

    async def aclose(self, deadline_s: float) -> None:
        """Waits until all connections have ended; ends the others at `deadline_s`, a time on trio's clock."""
        with trio.move_on_at(deadline_s):
            while self._open:
                self._ended = trio.Event()
                await self._ended.wait()
        for connection in list(self._open):
            self._closed["shutdown"] += 1
            connection.close()

    def statistics(self) -> HttpStatistics:
        requests = {str(status): count for status, count in sorted(self._app.answered.items())}
        body_bytes = self._app.bodies.size_bytes
        return HttpStatistics(
            len(self._open), self._accepted, dict(self._closed), requests, len(self.clients), body_bytes
        )

    def _note_tls_refused(self, peer: str, identity: Identity, reason: str) -> None:
        gate = self.parts.node.gate
        if gate is not None:
            gate.note_tls_refused(peer, identity, reason)


def _hypercorn_config(parts: NodeParts) -> HypercornConfig:
    config = HypercornConfig()
    config.logger_class = _Logs
    config.h11_max_incomplete_size = parts.config.http_header_bytes_max
    config.keep_alive_timeout = parts.config.http_idle_timeout_s
    config.include_server_header = False
    config.keep_alive_max_requests = 2**62
    # Parts of a body, of up to 64 KiB each, that wait in memory until the endpoint wants them.
    config.max_app_queue_size = BODY_PARTS_WAITING_MAX
    return config
