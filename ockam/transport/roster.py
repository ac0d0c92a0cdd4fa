"""Roster: who is connected to a node, by Ockam or by HTTP, and what each sends and receives. It reads no clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from ockam.identity.identity import Identity
from ockam.quotas.usage import party_key
from ockam.transport.connection_machine import ConnectionStatistics
from ockam.transport.tcp_statistics import Traffic

PARTIES_MAX = 1_000
"""The most parties whose ended connections are counted apart. All other parties share one count."""
OTHERS = "others"
SECONDS_MIN = 1.0
"""A rate is taken over at least this many seconds, so that the first message of a connection is no flood."""


class ConnectedPeer(Protocol):
    """An open connection. identity: what its peer has proved."""

    @property
    def identity(self) -> Identity: ...

    def statistics(self) -> ConnectionStatistics: ...

    def close(self, reason: str) -> None: ...


class _Mark(NamedTuple):
    at_s: float
    received_bytes: int
    sent_bytes: int


class Presence:
    """One connection. peer: its `host:port`. counted: the part of its traffic that counts for a party already."""

    __slots__ = ("_connection", "_identity", "_last", "_party", "_since", "began_s", "counted", "peer")

    def __init__(self, connection: ConnectedPeer, peer: str, now_s: float) -> None:
        self._connection = connection
        self._since = self._last = _Mark(now_s, 0, 0)
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
        found = self._connection.statistics()
        self._since, self._last = self._last, _Mark(now_s, found.received_bytes, found.sent_bytes)

    def rates(self, found: ConnectionStatistics, now_s: float) -> tuple[float, float]:
        """Returns the received and the sent bytes a second, since the second last call of `look`."""
        seconds = max(now_s - self._since.at_s, SECONDS_MIN)
        received, sent = found.received_bytes - self._since.received_bytes, found.sent_bytes - self._since.sent_bytes
        return received / seconds, sent / seconds


class Roster:
    """The open connections except links, and the traffic of each party since the start. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._open: dict[ConnectedPeer, Presence] = {}
        self._past: dict[str, Traffic] = {}

    @property
    def open(self) -> Mapping[ConnectedPeer, Presence]:
        return self._open

    def begin(self, connection: ConnectedPeer, peer: str, now_s: float) -> None:
        self._open[connection] = Presence(connection, peer, now_s)

    def end(self, connection: ConnectedPeer) -> None:
        if connection in self._open:
            self.settle(connection, Traffic.of(connection.statistics()))
            self.forget(connection)

    def forget(self, connection: ConnectedPeer) -> None:
        self._open.pop(connection, None)

    def settle(self, connection: ConnectedPeer, moved: Traffic) -> None:
        """Counts the traffic of a connection for the party that has used it until now, before its identity changes."""
        presence = self._open[connection]
        # Peers can come under any number of names, so further parties are counted together.
        party = presence.party if presence.party in self._past or len(self._past) < PARTIES_MAX else OTHERS
        self._past.setdefault(party, Traffic()).add(moved.less(presence.counted))
        presence.counted = moved

    def look(self, now_s: float) -> None:
        """Records the bytes of all connections. To be called every few seconds."""
        for presence in self._open.values():
            presence.look(now_s)

    def traffic(self) -> dict[str, Traffic]:
        found = {party: each.less(Traffic()) for party, each in self._past.items()}
        for connection, presence in self._open.items():
            moved = Traffic.of(connection.statistics()).less(presence.counted)
            found.setdefault(presence.party, Traffic()).add(moved)
        return found

    def close(self, is_meant: Callable[[ConnectedPeer, Presence], bool], reason: str) -> dict[ConnectedPeer, Presence]:
        meant = {connection: presence for connection, presence in self._open.items() if is_meant(connection, presence)}
        for connection in meant:
            connection.close(reason)
        return meant
