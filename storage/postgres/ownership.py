"""Ownership: the right of one node to write, and the way to find out whether a lost commit is stored.

The table `log_writer` has one row with the node that writes, an epoch, and the number of the last transaction. Each
transaction of the node begins with an update of that row:

    UPDATE log_writer SET commits = 17 WHERE owner = 'me' AND epoch = 4

If no row fits, another node has taken over, and the transaction must not go on. If the connection breaks during a
COMMIT, the node connects again and takes the next epoch:

    UPDATE log_writer SET epoch = epoch + 1 WHERE owner = 'me' RETURNING commits

This update waits for a transaction that still runs, since that one has locked the row, and a transaction that has not
begun its work finds the wrong epoch. So after the update, the number tells whether the transaction is stored. The
update is a write with the same promise as every commit. A plain read would not do: a primary that has lost its standby
shows a transaction to readers that no standby has.
"""

from __future__ import annotations

import secrets
import time

from storage.errors import ConnectionLost, DatabaseTaken, NodeReplaced, StorageError
from storage.postgres.commands import command
from storage.postgres.deadlines import Deadlines
from storage.postgres.server import Connection, pause

LOCK = 0x53744E64
"""The number of the advisory lock that the connection of the writing node holds."""
LOCK_WAIT_S = 3.0
"""For how long a starting node waits for the lock: the server may not have noticed yet that the node before is gone."""


class Ownership:
    """The right of this node to write.

    number: the number of the transaction that began last. confirmed: the number of the last one that is known to be
    stored.
    connected: whether the session that writes has a connection.
    """

    def __init__(self, deadlines: Deadlines) -> None:
        self._token = secrets.token_hex(16)
        self._epoch = 0
        self._taken = False
        self._deadlines = deadlines
        self.number = self.confirmed = 0
        self.connected = False

    def take(self, connection: Connection) -> int:
        """Takes the right to write for a new connection. Returns the number of the transaction that was stored last.

        Raises DatabaseTaken if another node is connected. Raises NodeReplaced if another node has taken over since.
        """
        # A node that was the writer before needs no lock to find out whether it still is.
        if not self._taken:
            self._lock(connection)
        where = f"owner = '{self._token}'" if self._taken else "id = 1"
        change = f"UPDATE log_writer SET owner = '{self._token}', epoch = epoch + 1"
        result = command(connection, self._deadlines, f"{change} WHERE {where} RETURNING epoch, commits".encode())
        if result.ntuples != 1:
            raise NodeReplaced
        if self._taken:
            self._lock(connection)
        self._taken = True
        self._epoch, stored = (int(result.get_value(0, column) or b"0") for column in (0, 1))
        self.number = max(self.number, stored)
        self.confirmed = max(self.confirmed, stored)
        self.connected = True
        return stored

    def begin(self, connection: Connection) -> None:
        """Begins a transaction. Raises NodeReplaced if another node has taken over."""
        self.number += 1
        text = (
            f"BEGIN; UPDATE log_writer SET commits = {self.number} "
            f"WHERE owner = '{self._token}' AND epoch = {self._epoch}"
        )
        if command(connection, self._deadlines, text.encode()).command_tuples != 1:
            command(connection, self._deadlines, b"ROLLBACK")
            raise NodeReplaced

    def _lock(self, connection: Connection) -> None:
        end_s = time.monotonic() + LOCK_WAIT_S
        text = f"SELECT pg_try_advisory_lock({LOCK})".encode()
        while command(connection, self._deadlines, text).get_value(0, 0) != b"t":
            if time.monotonic() > end_s:
                if self._taken:
                    raise ConnectionLost("the connection before still holds the lock of the writing node")
                raise self._taken_error(connection)
            pause()

    def _taken_error(self, connection: Connection) -> StorageError:
        text = (
            "SELECT activity.pid, coalesce(host(activity.client_addr), 'its own machine') FROM pg_locks "
            "JOIN pg_stat_activity AS activity ON activity.pid = pg_locks.pid "
            f"WHERE locktype = 'advisory' AND classid = 0 AND objid = {LOCK} AND objsubid = 1 AND granted"
        )
        found = command(connection, self._deadlines, text.encode())
        if found.ntuples == 0:
            return DatabaseTaken("another connection")
        pid, host = ((found.get_value(0, column) or b"?").decode() for column in (0, 1))
        return DatabaseTaken(f"a connection from {host} (process {pid} of the server)")
