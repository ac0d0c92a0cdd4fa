"""GrpcListener: accepts gRPC connections, makes their TLS handshakes, and ends them when the node stops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import structlog
import trio

from block_node.grpc.http2.connection import DoorCounts, ServerConnection
from block_node.grpc.http2.handler import Routes
from block_node.grpc.http2.message_reader import DoorBudget
from block_node.grpc.http2.socket_bytes import SocketBytes
from block_node.grpc.limits import read_services
from ockam.actors.message import Origin
from ockam.actors.turns import READ_BYTES_MAX, Share, Turns
from ockam.errors import RemoteProtocolError
from ockam.identity.identity import ANONYMOUS, Identity
from ockam.identity.tls_faults import TlsFault
from ockam.identity.tls_layer import PeerCertificate, TlsLayer, identity_of
from ockam.quotas.usage import UNLIMITED, Usage, party_key
from ockam.quotas.usage_waits import waits_of
from ockam.transport.listener import accept_all, has_unread, open_listeners
from ockam.transport.sockets import send_nowait, socket_name
from stream_node.doors.grpc.call_gate import CallGate
from stream_node.doors.grpc.settings import grpc_limits, http2_limits
from stream_node.doors.grpc.statistics import GrpcDoorStatistics
from stream_node.doors.http.places_machine import Admission, Places
from stream_node.node.identity.tls_settings import make_listener
from stream_node.node.parts import NodeParts

ALPN = "h2"

logger = structlog.get_logger(__name__)


class GrpcGuest:
    """A connection, from its beginning to its end. connection: None during its TLS handshake. usage: of its peer.
    routes: of the address at which it was accepted."""

    def __init__(self, stream: trio.SocketStream, address: str, routes: Routes, counts: DoorCounts) -> None:
        self.routes = routes
        self._socket = stream.socket
        self._counts = counts
        self.address = address
        self.certificate: PeerCertificate | None = None
        self.connection: ServerConnection | None = None
        self.usage: Usage = UNLIMITED

    @property
    def identity(self) -> Identity:
        return identity_of(self.certificate)

    def has_unread(self) -> bool:
        return has_unread(self._socket.fileno())

    def close(self, reason: str) -> None:
        if self.connection is None:
            self._counts.closed[reason] += 1
            self._socket.close()
        else:
            self.connection.close(reason)


class UsagePace:
    """Counts the messages and bytes of a connection for its identity, as the node's other doors do."""

    def __init__(self, usage: Usage) -> None:
        self._usage = usage

    def spend(self, messages: int, size_bytes: int) -> None:
        if self._usage.is_rated:
            self._usage.machine.spend(messages, size_bytes, trio.current_time())

    async def wait_turn(self) -> None:
        if self._usage.is_rated:
            await waits_of(self._usage).wait_turn()


class GrpcListener:
    """All gRPC connections of one node. addresses: the `host:port` texts at which it listens.

    Invariant: at most `grpc_connections_max` connections are open, and one party has at most a quarter of them
    (`Places`). `_open` has those whose handshake is complete.
    """

    def __init__(self, parts: NodeParts, nursery: trio.Nursery) -> None:
        """nursery: runs the connections. It must stay open until `aclose` has returned."""
        config = parts.config
        self._parts = parts
        self._nursery = nursery
        self._tls = None if parts.tls is None else make_listener(config, parts.tls, ALPN)
        self._turns = Turns(nursery, read_bytes_max=READ_BYTES_MAX)
        self._limits = http2_limits(config)
        self._budget = DoorBudget(self._limits.unfinished_bytes_max)
        self._counts = DoorCounts()
        self._gate = CallGate(parts, grpc_limits(config), nursery)
        self._prefers = ("zstd", "gzip") if config.grpc_compression else ()
        self._listening = trio.CancelScope()
        self._places: Places[GrpcGuest] = Places()
        self._open: dict[GrpcGuest, ServerConnection] = {}
        self._accepted = 0
        self._ended = trio.Event()
        self.addresses: list[str] = []

    async def listen(self) -> list[str]:
        """Starts to accept connections at the addresses of the setting `grpc`. Returns the `host:port` of each socket,
        with the names of its services as in the setting. Raises OSError if a socket cannot be opened; then no socket
        stays open."""
        opened: list[tuple[trio.SocketListener, Routes]] = []
        try:
            for address in self._parts.config.grpc:
                plain, services = read_services(address)
                routes = self._gate.routes(services)
                for listener in await open_listeners([plain]):
                    opened.append((listener, routes))
                    self.addresses.append(socket_name(listener.socket.getsockname()) + address.removeprefix(plain))
        except BaseException:
            for listener, _ in opened:
                listener.socket.close()
            raise
        self._nursery.start_soon(self._serve, opened)
        return self.addresses

    def end_refused(self) -> None:
        """Ends the connections whose certificate was revoked or has expired."""
        for guest, connection in list(self._open.items()):
            refusal = None if self._tls is None else self._tls.refusal(guest.certificate)
            if refusal is not None:
                connection.close(refusal[0])
                self._note_tls_refused(guest, f"{refusal[0]}: {refusal[1]}")

    def close_identities(self, is_meant: Callable[[Identity], bool], reason: str) -> int:
        """Ends the calls of all chosen identities. Returns their number. reason: a short, fixed word."""
        return self._gate.end_calls(is_meant, reason)

    def stop_accepting(self) -> None:
        """Accepts no more connections, and has each peer open no more calls."""
        self._listening.cancel()
        self._gate.end_about()
        for connection in self._open.values():
            connection.drain()

    async def aclose(self, deadline_s: float) -> None:
        """Waits until all connections have ended; ends the others at `deadline_s`, a time on trio's clock."""
        with trio.move_on_at(deadline_s):
            while self._open:
                self._ended = trio.Event()
                await self._ended.wait()
        for connection in list(self._open.values()):
            connection.close("shutdown")

    def statistics(self) -> GrpcDoorStatistics:
        return GrpcDoorStatistics(
            open=len(self._open),
            accepted=self._accepted,
            closed=dict(self._counts.closed),
            open_calls=sum(each.open_calls for each in self._open.values()),
            calls=dict(self._counts.calls),
            unfinished_bytes=self._budget.held_bytes,
        )

    async def _serve(self, opened: Sequence[tuple[trio.SocketListener, Routes]]) -> None:
        with self._listening:
            async with trio.open_nursery() as nursery:
                for listener, routes in opened:
                    nursery.start_soon(accept_all, listener, partial(self._accept, routes), lambda: None)

    def _accept(self, routes: Routes, stream: trio.SocketStream) -> None:
        self._accepted += 1
        try:
            address = socket_name(stream.socket.getpeername())
        except OSError:
            self._counts.closed["closed_before_header"] += 1
            stream.socket.close()
            return
        guest = GrpcGuest(stream, address, routes, self._counts)
        if self._enter(guest):
            self._nursery.start_soon(self._run, guest, stream)
        else:
            stream.socket.close()

    def _enter(self, guest: GrpcGuest) -> bool:
        """Gives a place to a connection, if need be that of the oldest one in its TLS handshake."""
        most = self._parts.config.grpc_connections_max
        admission, gone = self._places.enter(guest, party_key(guest.identity, guest.address), most)
        if gone is not None:
            gone.close("gave_way")
        if admission is Admission.USUAL:
            return True
        self._places.leave(guest)
        self._counts.closed["too_many_connections"] += 1
        self._counts.lines.log(logger.warning, "grpc_connections_refused", peer=guest.address, most=most)
        return False

    async def _run(self, guest: GrpcGuest, stream: trio.SocketStream) -> None:
        """Serves one connection until its end. A failure ends the connection only."""
        try:
            connection = await self._open_connection(guest, stream)
            if connection is not None:
                guest.connection = self._open[guest] = connection
                # The node may have begun to stop during the handshake.
                if self._listening.cancel_called:
                    connection.drain()
                try:
                    await connection.run()
                finally:
                    del self._open[guest]
                    self._ended.set()
                    guest.usage.give_back("connections_max")
        except Exception as error:
            self._counts.lines.log(logger.error, "grpc_connection_failed", peer=guest.address, exc_info=error)
        finally:
            self._places.leave(guest)
            stream.socket.close()

    async def _open_connection(self, guest: GrpcGuest, stream: trio.SocketStream) -> ServerConnection | None:
        """Makes the handshake. Returns the connection; None for one that must be closed."""
        tls: TlsLayer | None = None
        if self._tls is not None:
            tls = await self._handshake(guest, stream)
            if tls is None:
                return None
            guest.certificate = tls.certificate
        # A certificate counts for itself, wherever it connects from.
        if guest.identity != ANONYMOUS:
            self._places.leave(guest)
            if not self._enter(guest):
                return None
        self._places.note_received(guest)
        party = party_key(guest.identity, guest.address)
        usage = self._parts.node.usages.get(party, trio.current_time())
        if usage.take("connections_max", guest.address) is not None:
            self._counts.closed["identity_connections_max"] += 1
            return None
        guest.usage = usage
        return ServerConnection(
            SocketBytes(stream, tls),
            guest.routes,
            self._limits,
            self._budget.of(party),
            self._counts,
            address=guest.address,
            peer=Origin("grpc", guest.address, guest.identity, usage=usage),
            prefers=self._prefers,
            batch=self._parts.node.batch,
            pace=UsagePace(usage),
        )

    async def _handshake(self, guest: GrpcGuest, stream: trio.SocketStream) -> TlsLayer | None:
        assert self._tls is not None, "called with TLS only"
        try:
            return await self._tls.handshake(guest, stream, self._turns, Share(party_key(ANONYMOUS, guest.address)))
        except RemoteProtocolError as error:
            self._counts.closed[error.kind] += 1
            self._counts.lines.log(
                logger.warning, "grpc_connection_closed", peer=guest.address, kind=error.kind, reason=str(error)
            )
            if isinstance(error, TlsFault):
                send_nowait(stream.socket, error.alert)
                self._note_tls_refused(guest, f"{error.kind}: {error}")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._counts.closed["broken"] += 1
        return None

    def _note_tls_refused(self, guest: GrpcGuest, reason: str) -> None:
        gate = self._parts.node.gate
        if gate is not None:
            gate.note_tls_refused(guest.address, guest.identity, reason)
