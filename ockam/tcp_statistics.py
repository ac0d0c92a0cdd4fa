"""TcpStatistics: what the TCP connections of a node count."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ockam.connection_machine import ConnectionStatistics
from ockam.memory import MemoryStatistics


class Traffic(msgspec.Struct):
    """The messages and bytes that connections have exchanged. received, sent: numbers of messages."""

    received: int = 0
    received_bytes: int = 0
    sent: int = 0
    sent_bytes: int = 0

    def add(self, connection: ConnectionStatistics) -> None:
        self.received += connection.received
        self.received_bytes += connection.received_bytes
        self.sent += connection.sent
        self.sent_bytes += connection.sent_bytes


PARTIES_MAX = 1_000
"""The largest number of parties whose ended connections are counted apart. All other parties share one count."""
OTHERS = "others"


class TrafficOfParties:
    """The traffic of the connections that have ended, by the party that used them (`ockam.usage.party_key`)."""

    def __init__(self) -> None:
        self._past: dict[str, Traffic] = {}

    def add(self, party: str, connection: ConnectionStatistics) -> None:
        name = party if party in self._past or len(self._past) < PARTIES_MAX else OTHERS
        self._past.setdefault(name, Traffic()).add(connection)

    def sums(self, connections: Iterable[tuple[str, ConnectionStatistics]]) -> dict[str, Traffic]:
        """Returns the traffic of each party since the start. connections: those that are open, each with its party."""
        found = {party: msgspec.structs.replace(each) for party, each in self._past.items()}
        for party, connection in connections:
            found.setdefault(party, Traffic()).add(connection)
        return found


class TcpStatistics(msgspec.Struct, frozen=True):
    """The statistics of a node's TCP connections.

    accepted: the number of accepted connections since the start.
    closed: the number of closed and refused connections since the start, by reason.
    silent: the number of open connections that have sent no message yet.
    handshakes: the number of TLS handshakes under way.
    past: the traffic of all connections that have ended.
    identities: the number of open connections by the source of their identity, for example `token`.
    """

    accepted: int
    closed: dict[str, int]
    silent: int
    memory: MemoryStatistics
    handshakes: int
    connections: tuple[ConnectionStatistics, ...]
    past: Traffic
    identities: dict[str, int]
