from __future__ import annotations

import msgspec

from ockam.quotas.memory import MemoryStatistics
from ockam.transport.connection_machine import ConnectionStatistics


class Traffic(msgspec.Struct):
    """The messages and bytes that connections have exchanged. received, sent: numbers of messages."""

    received: int = 0
    received_bytes: int = 0
    sent: int = 0
    sent_bytes: int = 0

    @classmethod
    def of(cls, connection: ConnectionStatistics) -> Traffic:
        return cls(connection.received, connection.received_bytes, connection.sent, connection.sent_bytes)

    def add(self, more: Traffic) -> None:
        self.received += more.received
        self.received_bytes += more.received_bytes
        self.sent += more.sent
        self.sent_bytes += more.sent_bytes

    def less(self, before: Traffic) -> Traffic:
        return Traffic(
            self.received - before.received,
            self.received_bytes - before.received_bytes,
            self.sent - before.sent,
            self.sent_bytes - before.sent_bytes,
        )


class TcpStatistics(msgspec.Struct, frozen=True):
    """The statistics of a node's TCP connections.

    accepted, closed: since the start; the closed and refused ones by reason. past: the traffic of those that ended.
    silent: the open ones that have sent no message yet. handshakes: the TLS handshakes under way.
    identities: the number of open connections by the source of their identity, for example `token`."""

    accepted: int
    closed: dict[str, int]
    silent: int
    memory: MemoryStatistics
    handshakes: int
    connections: tuple[ConnectionStatistics, ...]
    past: Traffic
    identities: dict[str, int]
