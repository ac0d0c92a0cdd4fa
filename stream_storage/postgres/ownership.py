"""The right of one node to write, and the way to find out whether a lost commit is stored.

The table `log_writer` has one row with the node that writes, an epoch, and the number of the last transaction. In a
cluster, `cluster_writers` has such a row for each member. Each transaction begins with an update of the node's row:

    UPDATE log_writer SET commits = 17 WHERE owner = 'me' AND epoch = 4

If no row fits, another node has taken over, and the statement fails. If the connection breaks during a COMMIT, the node
connects again and takes the next epoch:

    UPDATE log_writer SET epoch = 5 WHERE owner = 'me' AND epoch < 5 RETURNING commits

This update waits for a transaction that still runs, since that one has locked the row; a transaction that has not begun
its work finds the wrong epoch. So afterwards the number shows whether the transaction is stored. The update is a write
with the same promise as every commit. A plain read would not do: a primary that has lost its standby shows readers a
transaction that no standby has.

The node tries each epoch once: an attempt that was given up can still wait at the server for the row, and changes
nothing if a later attempt came first. An older row on another server cannot lead to the same epoch there, so readers
can tell the two servers apart (`Freshness`). A member of a cluster fences another one by an
update of its row:

    UPDATE cluster_writers SET owner = '', epoch = epoch + 1 WHERE owner = 'the other one'

A lone node holds an advisory lock alone, and all members of a cluster share it, so a database has either a lone node or
a cluster. A second lock for each name keeps two members with the same name apart."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

import structlog

from stream_storage.errors import (
    ClusterThere,
    ConfirmedLost,
    DatabaseLost,
    DatabaseTaken,
    LoneNodeThere,
    MemberFenced,
    MemberNameTaken,
    NodeReplaced,
    StandbyMissing,
)
from stream_storage.postgres.server import Connection, Deadlines, command, lacks_standby, pause

LOCK = 0x53744E64
"""The number of the advisory lock that the connection of the writing node holds."""
LOCK_WAIT_S = 3.0
"""For how long a starting node waits for the lock, in seconds: the server may not know that the last node is gone."""

_HELD = (
    "pg_locks JOIN pg_stat_activity AS activity ON activity.pid = pg_locks.pid "
    "WHERE locktype = 'advisory' AND datname = current_database() AND granted"
)
"""The advisory locks that connections to this database hold, with these connections. Further conditions can follow."""


class Ownership:
    def __init__(self, deadlines: Deadlines, member: str | None = None) -> None:
        # A random text that stands for this process in the database.
        self.token = secrets.token_hex(16)
        self._member = None if member is None else member.encode().hex()
        self._table = "log_writer" if member is None else "cluster_writers"
        self._row = "id = 1" if member is None else f"member = '\\x{self._member}'::bytea"
        self.state_query = f"SELECT epoch, commits FROM {self._table} WHERE {self._row}".encode()
        # The epoch of the connection of the session that writes, or of the last one; 0 before the first.
        self.epoch = 0
        self._tried_epoch = 0
        self._taken = False
        self._deadlines = deadlines
        # The number of the transaction that began last, and of the last one that is known to be stored.
        self.number = self.confirmed = 0
        self.connected = False

    def take(self, connection: Connection) -> tuple[int, int]:
        """Takes the right to write for a new connection, valid from `believe` on. Returns its epoch, and the number
        of the last stored transaction. Raises DatabaseTaken if another node is connected, StandbyMissing if its commit
        waits for a standby, and NodeReplaced if another node has taken over since."""
        # A node that was the writer before needs no lock to find out whether it still is.
        if not self._taken:
            self._lock(connection)
            if self._member is not None:
                first = (
                    f"INSERT INTO cluster_writers VALUES ('\\x{self._member}'::bytea, '', 0, 0) ON CONFLICT DO NOTHING"
                )
                command(connection, self._deadlines, first.encode())
        self._tried_epoch = new = max(self._tried_epoch, self.epoch) + 1
        if self._taken:
            change = f"UPDATE {self._table} SET epoch = {new} WHERE owner = '{self.token}' AND epoch < {new}"
        else:
            # The lock keeps the earlier attempts away.
            change = f"UPDATE {self._table} SET owner = '{self.token}', epoch = epoch + 1 WHERE {self._row}"
        result = command(connection, self._deadlines, f"{change} RETURNING epoch, commits".encode())
        if result.ntuples != 1:
            raise self.replaced()
        if self._taken:
            self._lock(connection)
        return int(result.get_value(0, 0)), int(result.get_value(0, 1))

    def believe(self, epoch: int, stored: int) -> None:
        """Notes the result of `take`, once it has the same promise as every commit. Raises ConfirmedLost if the server
        lacks transactions that are known to be stored."""
        self._taken = True
        self.epoch = epoch
        if stored < self.confirmed:
            raise ConfirmedLost(self.confirmed - stored)
        self.number = max(self.number, stored)
        self.confirmed = max(self.confirmed, stored)
        self.connected = True

    def prepared(self) -> str:
        return (
            f"PREPARE begin_write (bigint, bigint) AS WITH mine AS (UPDATE {self._table} SET commits = $1 "
            f"WHERE owner = '{self.token}' AND epoch = $2 RETURNING 1) SELECT 1 / count(*) FROM mine"
        )

    def begin(self) -> bytes:
        """Returns the commands that begin the next transaction. If another node has taken over, the second
        command divides by zero, so that the server does nothing that comes after it."""
        self.number += 1
        return b"BEGIN; EXECUTE begin_write(%d, %d)" % (self.number, self.epoch)

    def replaced(self) -> NodeReplaced:
        return NodeReplaced() if self._member is None else MemberFenced()

    def _lock(self, connection: Connection) -> None:
        # A lone node locks exclusively, members share. A holder of the other kind is named, so that the user knows what
        # runs.
        shared = "" if self._member is None else "_shared"
        # 1. The lock that keeps lone nodes and clusters apart.
        try:
            self._wait_lock(connection, f"SELECT pg_try_advisory_lock{shared}({LOCK})")
        except DatabaseTaken as error:
            if self._member is not None:
                raise LoneNodeThere(error.holder) from error
            if self._find_holder(connection, f"(classid, objid, objsubid, mode) = (0, {LOCK}, 1, 'ShareLock')"):
                raise ClusterThere(error.holder) from error
            raise
        # 2. The lock of the name, for members.
        if self._member is None:
            return
        try:
            self._wait_lock(connection, f"SELECT pg_try_advisory_lock({LOCK}, hashtext('{self._member}'))")
        except DatabaseTaken as error:
            holder = self._find_holder(connection, _member_lock(f"'{self._member}'")) or error.holder
            raise MemberNameTaken(holder, bytes.fromhex(self._member).decode()) from error

    def _find_holder(self, connection: Connection, lock: str) -> str | None:
        text = (
            f"SELECT activity.pid, coalesce(host(client_addr), 'its own machine'), {lacks_standby()} FROM {_HELD} "
            f"AND activity.pid != pg_backend_pid() AND {lock}"
        )
        found = command(connection, self._deadlines, text.encode())
        if any(found.get_value(row, 2) == b"t" for row in range(found.ntuples)):
            # The connection may be that of a dead node, or of an earlier attempt of this one. The server keeps it until
            # the standby has its commit.
            raise StandbyMissing
        if found.ntuples == 0:
            return None
        pid, host = ((found.get_value(0, column) or b"?").decode() for column in (0, 1))
        return f"a connection from {host} (process {pid} of the server)"

    def _wait_lock(self, connection: Connection, ask: str) -> None:
        end_s = time.monotonic() + LOCK_WAIT_S
        text = ask.encode()
        while command(connection, self._deadlines, text).get_value(0, 0) != b"t":
            if time.monotonic() > end_s:
                if self._taken:
                    raise DatabaseLost("the connection before still holds the lock of the writing node")
                holder = self._find_holder(connection, f"{LOCK} IN (classid, objid)")
                raise DatabaseTaken(holder or "another connection")
            pause()


def fence_command(token: str) -> bytes:
    """Returns the command that fences the member with this token (see `stream_storage.contract.Session.fence`)."""
    # A token comes from the database, where every member has written its own.
    assert token.isalnum(), "a token has hexadecimal digits only"
    return f"UPDATE cluster_writers SET owner = '', epoch = epoch + 1 WHERE owner = '{token}'".encode()


def disconnect_command(token: str) -> bytes:
    """Returns the command that ends the connection by which the member with this token writes, unless its commit waits
    for a standby: that is not to be cancelled. A role may end the connections of the same role only."""
    assert token.isalnum(), "a token has hexadecimal digits only"
    its_lock = _member_lock("encode(member, 'hex')")
    text = (
        f"SELECT pg_terminate_backend(activity.pid) FROM cluster_writers, {_HELD} "
        f"AND cluster_writers.owner = '{token}' AND {its_lock} "
        "AND usename = current_user AND wait_event IS DISTINCT FROM 'SyncRep'"
    )
    return text.encode()


def _member_lock(name: str) -> str:
    return f"(classid, objid, objsubid) = ({LOCK}, hashtext({name})::oid, 2)"


STANDBY_BEHIND_S = 2.0
"""For how long a transaction that reads waits until the standby has all confirmed messages."""

logger = structlog.get_logger(__name__)

_BEGIN = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class Freshness:
    """Begins the transactions of one session that reads, and keeps it away from servers that lack confirmed writes: a
    standby, which copies with a delay, and a former primary that was started again alone. The latter says that it takes
    writes, but no node writes to it. The row of the writer shows whether a server is one of these.

    Invariant: a server that says that it takes writes is compared with the writer once for each epoch of the writer,
        and a standby at each transaction. The writer takes a new epoch with each connection, so a server that the
        writer has left is noticed at the next transaction, and the usual transaction takes no further trip."""

    def __init__(self, writer: Ownership) -> None:
        self._writer = writer
        self._epoch = 0
        self._told_epoch = 0

    def renew(self) -> None:
        """Makes the next transaction compare the server, since the connection is a new one."""
        self._epoch = 0

    def begin(self, run: Callable[[bytes], Any], *, is_on_standby: bool) -> None:
        """Begins a transaction that sees all confirmed writes. Raises DatabaseLost if another server must be found."""
        writer = self._writer
        if is_on_standby and writer.connected:
            # A server takes writes again, and every standby is behind that server. The pause is needed: if that server
            # refuses this session, the next connection leads to the standby again.
            pause()
            raise DatabaseLost("a server takes writes again")
        # These are read before the transaction begins: it need not see pushes that are confirmed later.
        epoch, confirmed = writer.epoch, writer.confirmed
        end_s = time.monotonic() + STANDBY_BEHIND_S
        while True:
            run(_BEGIN)
            if not is_on_standby and self._epoch == epoch:
                return
            result = run(writer.state_query)
            if result.ntuples == 1:
                stored_epoch, stored = (int(result.get_value(0, column)) for column in (0, 1))
                if stored_epoch >= epoch and stored >= confirmed:
                    self._epoch = epoch
                    return
            run(b"ROLLBACK")
            if not is_on_standby:
                # The session can come to a former primary often, so it is logged once for each epoch of the writer.
                if self._told_epoch != epoch:
                    self._told_epoch = epoch
                    logger.warning(
                        "database_old_primary_left", reason="it lacks confirmed messages; end it, or make it a standby"
                    )
                pause()
                raise DatabaseLost("the server takes writes, but the node writes to another one, which has more")
            if time.monotonic() > end_s:
                raise DatabaseLost("the standby does not have all confirmed messages")
            pause()
