"""Server: how a node reaches its PostgreSQL server, and what a confirm means there."""

from __future__ import annotations

import time
from typing import Any, NamedTuple, TypeAlias

import psycopg
import structlog
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.array import ListBinaryDumper
from psycopg.types.numeric import Int8BinaryDumper, NumericBinaryLoader
from psycopg.types.string import BytesBinaryDumper

from storage.errors import ConnectionLost, StorageError, UnsafeDatabase
from storage.postgres.deadlines import Deadlines
from storage.postgres.errors import one_line, storage_error

Connection: TypeAlias = psycopg.Connection[Any]

VERSION_MIN = 14
"""The oldest version of PostgreSQL that is supported."""
RETRY_S = 0.2
"""The pause between two attempts to reach a server."""

_DEFAULTS = {
    "application_name": "stream-node",
    "connect_timeout": "2",
    # With several hosts, only the primary takes writes.
    "target_session_attrs": "read-write",
    # After a failover two servers may believe to be the primary. The one that cannot reach its standby commits nothing,
    # so the next attempt must not always begin with it.
    "load_balance_hosts": "random",
    "tcp_user_timeout": "5000",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
}
"""The parameters of a connection that the URL does not set."""

_SETTINGS = (
    # A node that is frozen within a transaction must not keep its locks.
    b"SET idle_in_transaction_session_timeout = '5s'; SET client_min_messages = warning; SET lock_timeout = 0; "
    b"SET statement_timeout = 0; SET default_transaction_isolation = 'read committed'; "
    # Values stand in the texts of commands with backslashes that mean themselves.
    b"SET standard_conforming_strings = on"
)


logger = structlog.get_logger(__name__)


class _WholeLoader(NumericBinaryLoader):
    """Reads the sum of integers, which PostgreSQL gives as a decimal number."""

    def load(self, data: Any) -> Any:
        return int(super().load(data))


class Durability(NamedTuple):
    """The settings of a server on which the meaning of a confirm depends, as the server shows them."""

    fsync: str
    full_page_writes: str
    synchronous_commit: str
    synchronous_standby_names: str

    @property
    def waits_for_standby(self) -> bool:
        return bool(self.synchronous_standby_names) and self.synchronous_commit not in ("off", "local")

    @property
    def meaning(self) -> str:
        """What a confirm means, as a sentence."""
        on_primary = "a confirmed message is synced on the primary"
        if not self.waits_for_standby:
            return f"{on_primary}, and on no other machine: set synchronous_standby_names to survive its loss"
        where = {
            "remote_write": "written",
            "remote_apply": "synced and visible",
        }.get(self.synchronous_commit, "synced")
        return f"{on_primary}, and {where} on {self.synchronous_standby_names}"

    @property
    def unsafe(self) -> list[str]:
        """The settings with which a confirmed message can be lost when the primary crashes."""
        return [
            f"{name} = {value}"
            for name, value in zip(self._fields, self, strict=True)
            if value == "off" and name != "synchronous_standby_names"
        ]


class Server:
    """One PostgreSQL primary, with or without standbys that can take its place.

    url: postgresql://USER:PASSWORD@HOST:PORT,HOST:PORT/DATABASE
    name: the hosts and the database, without the password.
    wait_s: for how long an operation waits for a server that takes writes.
    standby_reads: whether operations that read use a standby while no server takes writes.
    """

    def __init__(self, url: str, *, wait_s: float, call_s: float, standby_reads: bool = False) -> None:
        """call_s: the time that one call may take. Raises StorageError if the URL is not valid."""
        try:
            given = conninfo_to_dict(url)
        except psycopg.Error as error:
            # The text of the error can have the password.
            raise StorageError(
                f"the URL of the database is not valid ({type(error).__name__}); "
                "it has the form postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
            ) from None
        ports = str(given.get("port") or "")
        if not all(port.isdigit() for port in ports.split(",") if port):
            raise StorageError(f"the URL of the database is not valid: the port {ports} is not a number")
        self.name = _name(str(given.get("host") or "this machine"), ports, str(given.get("dbname") or ""))
        self.wait_s = wait_s
        self.standby_reads = standby_reads
        self.deadlines = Deadlines(call_s)
        self._conninfo = make_conninfo(**{**_DEFAULTS, **given})

    def connect(self, *, to_write: bool = True) -> Connection:
        """Makes a connection to the server that takes writes. Tries each host once. Raises StorageError.

        to_write: if False, and no server takes writes, a connection to a standby serves, unless the settings forbid it.
        """
        try:
            return self._connect(self._conninfo)
        except ConnectionLost:
            if to_write or not self.standby_reads:
                raise
        return self._connect(make_conninfo(self._conninfo, target_session_attrs="any"))

    def _connect(self, conninfo: str) -> Connection:
        try:
            connection = psycopg.connect(conninfo, autocommit=True, cursor_factory=psycopg.RawCursor)
        except psycopg.Error as error:
            refused = error.sqlstate is not None and error.sqlstate.startswith("28")
            raise storage_error(error, broken=not refused) from error
        connection.adapters.register_dumper(int, Int8BinaryDumper)
        connection.adapters.register_dumper(bytes, BytesBinaryDumper)
        # As text, the driver would send all lists of one statement as arrays of the type that fits the first list.
        connection.adapters.register_dumper(list, ListBinaryDumper)
        connection.adapters.register_loader("numeric", _WholeLoader)
        try:
            connection.pgconn.exec_(_SETTINGS)
        except psycopg.Error as error:
            connection.close()
            raise ConnectionLost(one_line(str(error))) from error
        return connection

    def wait_connected(self) -> Connection:
        """Makes a connection, and waits at most `wait_s` for a server that takes writes. Raises StorageError."""
        end_s = time.monotonic() + self.wait_s
        told = False
        while True:
            try:
                return self.connect()
            except ConnectionLost as error:
                if time.monotonic() > end_s:
                    raise
                if not told:
                    logger.warning("database_waited_for", database=self.name, most_s=self.wait_s, reason=str(error))
                    told = True
                pause()

    def examine(self) -> tuple[int, Durability]:
        """Returns the version of PostgreSQL, and the settings on which the meaning of a confirm depends. Raises
        StorageError."""
        connection = self.wait_connected()
        try:
            return connection.info.server_version // 10_000, read_durability(connection)
        except psycopg.Error as error:
            raise storage_error(error, broken=connection.broken) from error
        finally:
            connection.close()

    def close(self) -> None:
        self.deadlines.close()


def _name(hosts: str, ports: str, database: str) -> str:
    """The name of a database in logs: each host with its port, and the database."""
    of_host = ports.split(",")
    named = [
        f"{host}:{port}" if (port := of_host[place % len(of_host)]) else host
        for place, host in enumerate(hosts.split(","))
    ]
    return f"{','.join(named)}/{database}"


def pause() -> None:
    """Waits between two attempts to reach a server. Called in the storage threads only."""
    time.sleep(RETRY_S)


def read_durability(connection: Connection) -> Durability:
    """Reads the settings of the server on which the meaning of a confirm depends. Raises psycopg.Error."""
    return Durability(*(connection.execute(f"SHOW {name}").fetchone()[0] for name in Durability._fields))


def check_version(connection: Connection) -> None:
    """Raises StorageError if the server is too old."""
    version = connection.info.server_version // 10_000
    if version < VERSION_MIN:
        raise StorageError(f"PostgreSQL {version} is too old; the node needs version {VERSION_MIN} or later")


def check_safe(durability: Durability) -> None:
    """Raises UnsafeDatabase if a confirmed message could be lost when the primary crashes."""
    if durability.unsafe:
        raise UnsafeDatabase(durability.unsafe)
