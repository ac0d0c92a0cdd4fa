"""Connections that have not sent a message yet, and which of them give way. It accepts and closes none itself.

Real clients connect and speak later, some much later, and break where they are cut off; so silence is no fault. But
whoever speaks must get in: when there are too many connections, those that have been silent longest go first.
"""

from __future__ import annotations

from itertools import islice
from typing import Protocol

PASSED_OVER_MAX = 32
"""How many candidates are looked at for one place. Those that have just spoken, and were not read yet, are passed over;
with so many of them in a row, the newcomer is refused."""


class Silent(Protocol):
    """A connection that has sent no message yet."""

    def has_unread(self) -> bool: ...

    def close(self, reason: str) -> None: ...


class SilentConnections:
    """The connections without a message, oldest first.

    Invariant: a connection is in here from its beginning to its first message or its end, whichever comes first.
    """

    def __init__(self) -> None:
        self._silent: dict[Silent, None] = {}

    def __len__(self) -> int:
        return len(self._silent)

    def add(self, connection: Silent) -> None:
        self._silent[connection] = None

    def discard(self, connection: Silent) -> None:
        """It has spoken, or ended. Safe to repeat."""
        self._silent.pop(connection, None)

    def give_way(self) -> Silent | None:
        """Close the oldest connection that has nothing to be read, and return it; None where there is none."""
        for connection in list(islice(self._silent, PASSED_OVER_MAX)):
            if not connection.has_unread():
                self.discard(connection)
                connection.close("gave_way")
                return connection
        return None
