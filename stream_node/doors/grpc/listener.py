"""GrpcListener: the gRPC door. It makes the connections of its peers, and counts them."""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

from block_node.grpc.http2.connection import DoorCounts, ServerConnection
from block_node.grpc.http2.handler import Routes
from block_node.grpc.http2.limits import Http2Limits
from block_node.grpc.http2.message_reader import DoorBudget
from block_node.grpc.http2.socket_bytes import SocketBytes
from block_node.grpc.limits import read_services
from ockam.actors.message import Origin
from ockam.identity.identity import Identity
from ockam.identity.tls_layer import TlsLayer
from ockam.quotas.usage import Usage, party_key
from ockam.quotas.usage_waits import waits_of
from ockam.transport.listener import open_listeners
from ockam.transport.sockets import socket_name
from stream_node.doors.grpc.call_gate import CallGate
from stream_node.doors.grpc.settings import grpc_limits, http2_limits
from stream_node.doors.grpc.statistics import GrpcDoorStatistics
from stream_node.doors.http.places_machine import Admission
from stream_node.doors.listener import DoorGuest, DoorListener
from stream_node.node.parts import NodeParts

logger = structlog.get_logger(__name__)


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


class GrpcListener(DoorListener[ServerConnection, Routes]):
    """All gRPC connections of one node. Each address has routes of its own."""

    def __init__(self, parts: NodeParts, nursery: trio.Nursery) -> None:
        """nursery: as for `DoorListener`."""
        super().__init__(parts, nursery, "h2")
        config = parts.config
        self._budget = DoorBudget(config.grpc_unfinished_bytes_max)
        self._counts = DoorCounts()
        self._closed, self._lines = self._counts.closed, self._counts.lines
        self._gate = CallGate(parts, grpc_limits(config), nursery)
        self._prefers = ("zstd", "gzip") if config.grpc_compression else ()

    async def listen(self) -> list[str]:
        """Starts to accept connections at the addresses of the setting `grpc`. Returns the `host:port` of each socket,
        with the names of its services as in the setting. Raises OSError if a socket cannot be opened; then no socket
        stays open."""
        opened: list[tuple[trio.SocketListener, Routes]] = []
        try:
            for address in self.parts.config.grpc:
                plain, services = read_services(address)
                routes = self._gate.routes(services)
                for listener in await open_listeners([plain]):
                    opened.append((listener, routes))
                    self.addresses.append(socket_name(listener.socket.getsockname()) + address.removeprefix(plain))
        except BaseException:
            for listener, _ in opened:
                listener.socket.close()
            raise
        self._serve(opened)
        return self.addresses

    def close_identities(self, is_meant: Callable[[Identity], bool], reason: str) -> int:
        """Ends the calls of all chosen identities. Returns their number. reason: a short, fixed word."""
        return self._gate.end_calls(is_meant, reason)

    def stop_accepting(self) -> None:
        """Accepts no more connections, and tells each peer to open no more calls."""
        self._gate.end_about()
        super().stop_accepting()

    def statistics(self) -> GrpcDoorStatistics:
        return GrpcDoorStatistics(
            open=len(self._open),
            accepted=self._accepted,
            closed=dict(self._closed),
            open_calls=sum(each.open_calls for each in self._open.values()),
            calls=dict(self._counts.calls),
            unfinished_bytes=self._budget.held_bytes,
        )

    @property
    def _connections_max(self) -> int:
        return self.parts.config.grpc_connections_max

    @property
    def _limits(self) -> Http2Limits:
        """The limits of a connection that begins now. The setting `send_timeout_s` can change while the node runs."""
        return http2_limits(self.parts.config)

    def _make(
        self, guest: DoorGuest[ServerConnection, Routes], tls: TlsLayer | None, admission: Admission
    ) -> ServerConnection | None:
        self._places.note_received(guest)
        party = party_key(guest.identity, guest.address)
        usage = self.parts.node.usages.get(party, trio.current_time())
        if usage.take("connections_max", guest.address) is not None:
            self._closed["identity_connections_max"] += 1
            return None
        guest.usage = usage
        return ServerConnection(
            SocketBytes(guest.stream, tls),
            guest.at,
            self._limits,
            self._budget.of(party),
            self._counts,
            address=guest.address,
            peer=Origin("grpc", guest.address, guest.identity, usage=usage),
            prefers=self._prefers,
            batch=self.parts.node.batch,
            pace=UsagePace(usage),
        )

    def _admits(self, guest: DoorGuest[ServerConnection, Routes], admission: Admission, *, gave_way: bool) -> bool:
        if admission is Admission.USUAL:
            return True
        most = self._connections_max
        self._lines.log(logger.warning, "grpc_connections_refused", peer=guest.address, most=most)
        return False

    def _tell_closed(self, peer: str, kind: str, reason: str) -> None:
        self._lines.log(logger.warning, "grpc_connection_closed", peer=peer, kind=kind, reason=reason)

    def _tell_failed(self, peer: str, error: Exception) -> None:
        self._lines.log(logger.error, "grpc_connection_failed", peer=peer, exc_info=error)
