"""ConnectionRates: how many bytes a second each open connection receives and sends. It reads no clock."""

from __future__ import annotations

from typing import NamedTuple

from ockam.connection import Connection

SECONDS_MIN = 1.0
"""Over at least this many seconds a rate is taken, so that the first message of a connection is no flood."""


class _Mark(NamedTuple):
    """The bytes of a connection at one time."""

    at_s: float
    received_bytes: int
    sent_bytes: int


class ConnectionRates:
    """The bytes of each connection at its begin and at the last two looks. Times are in seconds, of a clock that is
    never set back."""

    def __init__(self) -> None:
        self._marks: dict[Connection, tuple[float, _Mark, _Mark]] = {}

    def begin(self, connection: Connection, now_s: float) -> None:
        mark = _Mark(now_s, 0, 0)
        self._marks[connection] = (now_s, mark, mark)

    def end(self, connection: Connection) -> None:
        self._marks.pop(connection, None)

    def look(self, now_s: float) -> None:
        """Notes the bytes of all connections. Call this method every few seconds."""
        for connection, (began_s, _, last) in self._marks.items():
            found = connection.statistics()
            now = _Mark(now_s, found.received_bytes, found.sent_bytes)
            self._marks[connection] = (began_s, last, now)

    def find(self, connection: Connection, now_s: float) -> tuple[float, float, float]:
        """Returns the age of a connection in seconds, and the bytes a second that it has received and sent since the
        last look but one, or since its begin."""
        began_s, since, _ = self._marks[connection]
        found, seconds = connection.statistics(), max(now_s - since.at_s, SECONDS_MIN)
        received, sent = found.received_bytes - since.received_bytes, found.sent_bytes - since.sent_bytes
        return now_s - began_s, received / seconds, sent / seconds
