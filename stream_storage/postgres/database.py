"""Opens the database of a node on a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import structlog
from sqlalchemy import Table

from ockam.files.durable_files import make_folder
from stream_storage.contract import Session, Upkeep
from stream_storage.directory_lock import DirectoryLock
from stream_storage.errors import DatabaseTooNew, DatabaseTooOld, RightsMissing, StorageReadOnly, system_error
from stream_storage.postgres.durability import Durability, KeptDurability, check_safe, read_durability
from stream_storage.postgres.ownership import LOCK, Freshness, Ownership
from stream_storage.postgres.schema import FENCE_ALL, SCHEMA_VERSION, UPGRADES, create_statements, own_tables
from stream_storage.postgres.server import Connection, Deadlines, PostgresPrimary, check_version, command
from stream_storage.postgres.session import PostgresSession

logger = structlog.get_logger(__name__)

WAIT_S = 30.0
"""For how long an operation waits for a server that takes writes, in seconds."""
CALL_S = 10.0
"""The time that one call to the server may take, in seconds."""


RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE")
"""The rights that the role of a node needs on every table."""
_RELATIONS = b"SELECT relname::text FROM pg_class WHERE pg_table_is_visible(oid)"


class PostgresDatabase:
    """A database on a PostgreSQL server: a `contract.Engine`. durability: the settings at the opening."""

    is_local = False
    path = None

    def __init__(
        self,
        server: PostgresPrimary,
        durability: Durability,
        lock: DirectoryLock | None,
        member: str | None = None,
        *,
        unsafe: bool = False,
    ) -> None:
        self.durability = durability
        self._lock = lock
        self._server = server
        self._kept = KeptDurability(server, durability, unsafe=unsafe)
        self._ownership = Ownership(server.deadlines, member)
        self._writer: PostgresSession | None = None

    @classmethod
    def open(
        cls,
        url: str,
        *,
        directory: Path | None = None,
        unsafe: bool = False,
        wait_s: float = WAIT_S,
        call_s: float = CALL_S,
        standby_reads: bool = False,
        member: str | None = None,
        further_tables: Sequence[Table] = (),
        migrate: bool = True,
    ) -> PostgresDatabase:
        """Connects to the server, checks its settings, and creates the tables that are missing. Raises StorageError.

        directory: the data directory of the node, which is locked until `close`; None: there is none.
        unsafe: whether to accept a server that confirms without a sync.
        standby_reads: whether reads go on from a standby while no server takes writes.
        member: the name of the node in its cluster, whose members all write; None: the node writes alone.
        further_tables: tables to create that are not in `stream_storage.schema.metadata`.
        migrate: whether to bring tables of an earlier version up to date; if not, raises DatabaseTooOld."""
        lock = None if directory is None else _lock_directory(directory)
        server = None
        try:
            server = PostgresPrimary(url, wait_s=wait_s, call_s=call_s, standby_reads=standby_reads)
            found: list[Durability] = []

            def prepare(connection: Connection) -> None:
                check_version(connection)
                found[:] = [read_durability(connection, server.deadlines)]
                if not unsafe:
                    check_safe(found[0])
                _create_tables(connection, server.deadlines, further_tables, migrate=migrate)

            server.wait_connected(prepare).close()
        except BaseException:
            if server is not None:
                server.close()
            if lock is not None:
                lock.release(clean=True)
            raise
        return cls(server, found[0].kept(unsafe=unsafe), lock, member, unsafe=unsafe)

    @property
    def name(self) -> str:
        """The hosts and the database, without the password."""
        return self._server.name

    @property
    def owner(self) -> str:
        return self._ownership.token

    def session(self) -> PostgresSession:
        assert self._writer is None or self._writer.closed, "one session that writes is open already"
        self._writer = PostgresSession(self._server, self._ownership, durability=self._kept)
        return self._writer

    def read_session(self) -> PostgresSession:
        return PostgresSession(self._server, None, freshness=Freshness(self._ownership))

    def upkeep(self, session: Session) -> Upkeep:
        assert isinstance(session, PostgresSession), "the session is one of this database"
        return Upkeep(session.sync_seconds)

    def distrust(self) -> None:
        """Does nothing: the server checks its files itself when it starts."""

    def close(self) -> None:
        self._server.close()
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release(clean=True)


def _lock_directory(directory: Path) -> DirectoryLock:
    try:
        make_folder(directory, mode=0o700)
    except OSError as error:
        raise system_error(error) from error
    return DirectoryLock(directory)


def _create_tables(connection: Connection, deadlines: Deadlines, further: Sequence[Table], *, migrate: bool) -> None:
    """Creates the tables and indexes that are missing, and upgrades older ones. Members of a cluster write meanwhile,
    so nothing that exists is locked, unless the version rises: then members of an older version are fenced."""
    # Each `command` has a time limit: the first one can wait for another node, a new table for a lock that an
    # administrator holds, the last one for a standby.
    command(connection, deadlines, b"BEGIN; SELECT pg_advisory_xact_lock(%d)" % (LOCK + 1))
    found = command(connection, deadlines, _RELATIONS)
    there = {found.get_value(row, 0).decode() for row in range(found.ntuples)}
    for name, statement in create_statements(further).items():
        if name not in there:
            try:
                command(connection, deadlines, statement.encode())
            except StorageReadOnly as error:
                raise RightsMissing([f"CREATE on the schema, for {name}"]) from error
    # Without this check, every operation that lacks a right would fail, again and again.
    lacking = ", ".join(f"CASE WHEN NOT has_table_privilege(oid, '{right}') THEN '{right}' END" for right in RIGHTS)
    found = command(connection, deadlines, f"SELECT relname, concat_ws(', ', {lacking}) {own_tables(further)}".encode())
    rows = [[(found.get_value(row, column) or b"").decode() for column in (0, 1)] for row in range(found.ntuples)]
    if missing := sorted(f"{rights} on {name}" for name, rights in rows if rights):
        raise RightsMissing(missing)
    # An older version is brought up to date and a newer one refused, in the same transaction as the new tables.
    version = command(connection, deadlines, b"SELECT version FROM schema_version")
    if not version.ntuples:
        command(connection, deadlines, b"INSERT INTO schema_version VALUES (%d)" % SCHEMA_VERSION)
    elif (number := int(version.get_value(0, 0))) > SCHEMA_VERSION:
        raise DatabaseTooNew(number, SCHEMA_VERSION)
    elif number < SCHEMA_VERSION:
        if not migrate:
            raise DatabaseTooOld(number, SCHEMA_VERSION, "fences the nodes of the earlier version")
        steps = [UPGRADES[each] for each in range(number + 1, SCHEMA_VERSION + 1)]
        steps.append(f"UPDATE schema_version SET version = {SCHEMA_VERSION}")
        command(connection, deadlines, "; ".join([*steps, FENCE_ALL]).encode())
        logger.info("database_upgraded", from_version=number, to_version=SCHEMA_VERSION)
    command(connection, deadlines, b"COMMIT")
