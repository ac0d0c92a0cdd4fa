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
from ockam.transport.connection_usage import waits_of
from stream_node.doors.grpc.call_gate import CallGate
from stream_node.doors.http.places_machine import Admission
from stream_node.doors.listener import DoorGuest, DoorListener
from stream_node.doors.statistics import GrpcDoorStatistics
from stream_node.node.parts import NodeParts

logger = structlog.get_logger(__name__)


class UsagePace:
    """Counts the messages and bytes of a connection for its identity, as the node's other doors do."""

    def __init__(self, usage: Usage) -> None:
        self._usage = usage

    def spend(self, messages: int, size_bytes: int) -> None:
        if self._usage.is_rated:
            self._usage.spend(messages, size_bytes, trio.current_time())

    async def wait_turn(self) -> None:
        if self._usage.is_rated:
            await waits_of(self._usage).wait_turn()


class GrpcListener(DoorListener[ServerConnection, Routes]):
    """All gRPC connections of one node. Each address has routes of its own."""

    def __init__(self, parts: NodeParts, nursery: trio.Nursery) -> None:
        super().__init__(parts, nursery, "grpc", "h2")
        config = parts.config
        self._budget = DoorBudget(config.grpc_unfinished_bytes_max)
        self._counts = DoorCounts()
        self._closed, self._lines = self._counts.closed, self._counts.lines
        self._gate = CallGate(parts, nursery)
        self._prefers = ("zstd", "gzip") if config.grpc_compression else ()

    def close_identities(self, is_meant: Callable[[Identity], bool], reason: str) -> int:
        """Ends the calls of all chosen identities. Returns their number. reason: a short, fixed word."""
        return self._gate.end_calls(is_meant, reason)

    def stop_accepting(self) -> None:
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

    def _parse(self, address: str) -> tuple[str, Routes]:
        plain, services = read_services(address)
        return plain, self._gate.routes(services)

    @property
    def _limits(self) -> Http2Limits:
        """Read for each connection: the setting `send_timeout_s` can change while the node runs."""
        config = self.parts.config
        return Http2Limits(
            streams_max=config.grpc_streams_max,
            header_bytes_max=config.grpc_header_bytes_max,
            resets_max=config.grpc_resets_max,
            pings_max=config.grpc_pings_max,
            idle_s_max=config.grpc_idle_timeout_s,
            send_s_max=config.send_timeout_s,
            unfinished_bytes_max=config.grpc_unfinished_bytes_max,
        )

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
