"""Roster: who is connected to a node, by Ockam or by HTTP, and what each sends and receives. It reads no clock."""

from __future__ import annotations

from collections.abc import Callable
from operator import add, sub
from typing import Protocol

import msgspec

from ockam.identity.identity import Identity
from ockam.quotas.memory import MemoryStatistics
from ockam.quotas.usage import party_key
from ockam.transport.connection_machine import ConnectionStatistics

PARTIES_MAX = 1_000
"""The most parties whose ended connections are counted apart. All other parties share one count."""
OTHERS = "others"
SECONDS_MIN = 1.0
"""A rate is taken over at least this many seconds, so that the first message of a connection is no flood."""


class Traffic(msgspec.Struct):
    """The messages and bytes that connections have exchanged. received, sent: numbers of messages."""

    received: int = 0
    received_bytes: int = 0
    sent: int = 0
    sent_bytes: int = 0

    @classmethod
    def of(cls, connection: ConnectionStatistics) -> Traffic:
        return cls(connection.received, connection.received_bytes, connection.sent, connection.sent_bytes)

    def plus(self, more: Traffic) -> Traffic:
        return Traffic(*map(add, msgspec.structs.astuple(self), msgspec.structs.astuple(more)))

    def less(self, before: Traffic) -> Traffic:
        return Traffic(*map(sub, msgspec.structs.astuple(self), msgspec.structs.astuple(before)))


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


class ConnectedPeer(Protocol):
    """An open connection. identity: what its peer has proved."""

    @property
    def identity(self) -> Identity: ...

    def statistics(self) -> ConnectionStatistics: ...

    def close(self, reason: str) -> None: ...


class Presence:
    """One connection. peer: its `host:port`. counted: the part of its traffic that counts for a party already."""

    __slots__ = ("_connection", "_identity", "_last", "_party", "_since", "began_s", "counted", "peer")

    def __init__(self, connection: ConnectedPeer, peer: str, now_s: float) -> None:
        self._connection = connection
        # The times of the last two calls of `look`, each with the traffic until then.
        self._since = self._last = now_s, Traffic()
        self._identity: Identity | None = None
        self._party = ""
        self.peer = peer
        self.began_s = now_s
        self.counted = Traffic()

    @property
    def party(self) -> str:
        identity = self._connection.identity
        if identity is not self._identity:
            self._identity, self._party = identity, party_key(identity, self.peer)
        return self._party

    def look(self, now_s: float) -> None:
        self._since, self._last = self._last, (now_s, Traffic.of(self._connection.statistics()))

    def rates(self, found: ConnectionStatistics, now_s: float) -> tuple[float, float]:
        """Returns the received and the sent bytes a second, since the second last call of `look`."""
        since_s, before = self._since
        seconds, moved = max(now_s - since_s, SECONDS_MIN), Traffic.of(found).less(before)
        return moved.received_bytes / seconds, moved.sent_bytes / seconds


class Roster:
    """The open connections except links, and the traffic of each party since the start. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.open: dict[ConnectedPeer, Presence] = {}
        self._past: dict[str, Traffic] = {}

    def begin(self, connection: ConnectedPeer, peer: str, now_s: float) -> None:
        self.open[connection] = Presence(connection, peer, now_s)

    def end(self, connection: ConnectedPeer) -> None:
        if connection in self.open:
            self.settle(connection, Traffic.of(connection.statistics()))
            self.forget(connection)

    def forget(self, connection: ConnectedPeer) -> None:
        self.open.pop(connection, None)

    def settle(self, connection: ConnectedPeer, moved: Traffic) -> None:
        """Counts the traffic of a connection for the party that has used it until now, before its identity changes."""
        presence = self.open[connection]
        # Peers can come under any number of names, so further parties are counted together.
        party = presence.party if presence.party in self._past or len(self._past) < PARTIES_MAX else OTHERS
        self._past[party] = self._past.get(party, Traffic()).plus(moved.less(presence.counted))
        presence.counted = moved

    def look(self, now_s: float) -> None:
        """Records the bytes of all connections. To be called every few seconds."""
        for presence in self.open.values():
            presence.look(now_s)

    def traffic(self) -> dict[str, Traffic]:
        found = dict(self._past)
        for connection, presence in self.open.items():
            moved = Traffic.of(connection.statistics()).less(presence.counted)
            found[presence.party] = found.get(presence.party, Traffic()).plus(moved)
        return found

    def close(self, is_meant: Callable[[ConnectedPeer, Presence], bool], reason: str) -> dict[ConnectedPeer, Presence]:
        meant = {connection: presence for connection, presence in self.open.items() if is_meant(connection, presence)}
        for connection in meant:
            connection.close(reason)
        return meant
