"""Connects a node to its PostgreSQL server, and runs commands there.
`stream_storage.postgres.durability` decides what a confirm means there."""

from __future__ import annotations

import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeAlias

import psycopg
import structlog
from psycopg import OperationalError
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus
from psycopg.types.array import ListBinaryDumper
from psycopg.types.numeric import Int8BinaryDumper, NumericBinaryLoader
from psycopg.types.string import BytesBinaryDumper

from stream_storage.errors import DatabaseLost, ServerRefused, StandbyMissing, StorageError
from stream_storage.postgres.errors import one_line, server_error, storage_error

CHECKS = 8
"""The number of times that the thread checks all calls within the time that one call may take."""


class Deadlines:
    """The calls of all sessions of a database, and the thread that ends those which take longer than `seconds`, by
    shutting down their sockets.

    A server that is frozen or gone can leave a call waiting for ever: its kernel still answers, and a COMMIT that waits
    for a standby knows no time limit. Cancelling the statement would not do: a cancelled COMMIT says that it has
    committed, though no standby has the transaction."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._ends_s: dict[int, float] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="storage-deadlines", daemon=True)
        self._thread.start()

    def begin(self, descriptor: int) -> None:
        with self._lock:
            self._ends_s[descriptor] = time.monotonic() + self.seconds

    def end(self, descriptor: int) -> None:
        """Notes the end of the call on this socket. After this, the connection may be closed."""
        with self._lock:
            self._ends_s.pop(descriptor, None)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self.seconds / CHECKS):
            now_s = time.monotonic()
            with self._lock:
                for descriptor, end_s in self._ends_s.items():
                    if now_s > end_s:
                        _shut_down(descriptor)


def _shut_down(descriptor: int) -> None:
    # An OSError says that it is closed already, here or at the other end.
    with suppress(OSError):
        connection = socket.socket(fileno=descriptor)
        try:
            connection.shutdown(socket.SHUT_RDWR)
        finally:
            # The descriptor stays open: its number must not be given to another connection while the call uses it. A
            # copy of it would be refused when the process has no more descriptors, and end this thread for good.
            connection.detach()


Connection: TypeAlias = psycopg.Connection[Any]

VERSION_MIN = 14
"""The oldest version of PostgreSQL that is supported."""
RETRY_S = 0.2

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

_SETTINGS = (
    # A node that is frozen within a transaction must not keep its locks.
    b"SET idle_in_transaction_session_timeout = '5s'; SET client_min_messages = warning; SET lock_timeout = 0; "
    b"SET statement_timeout = 0; SET default_transaction_isolation = 'read committed'; "
    # A backslash in a value that is part of a command stands for itself.
    b"SET standard_conforming_strings = on"
)

_NOTICES_END = (
    b"SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3",
    b"SET tcp_user_timeout = '10s'",
    b"SET client_connection_check_interval = '2s'",
)
"""Makes the server end the connection of a node whose machine or network is gone without a word. By default, such a
connection holds the lock of the writing node for two hours. The last setting ends a statement that waits for a lock
when the node has closed its connection. Without it, each attempt to write would leave a connection behind while a
commit waits for a standby."""
COMMIT_WAITS_S = 2.0
"""A commit that waits for longer is reported as one that lacks its standby."""

_REFUSED = re.compile(
    'role ".*" (does not exist|is not permitted to log in)|database ".*" (does not exist|is not currently accepting)|'
    "authentication failed|no password supplied|no pg_hba.conf entry|permission denied for database"
)
"""Texts of servers that do not let a node in: the driver has no SQLSTATE of a failed connection. A server that speaks
another language than English is waited for like one that is away."""

logger = structlog.get_logger(__name__)


def lacks_standby(waits_s: float = COMMIT_WAITS_S) -> str:
    """Returns the SQL condition for the rows of `pg_stat_activity` whose commit waits so long for a standby."""
    return f"wait_event = 'SyncRep' AND query_start < clock_timestamp() - interval '{waits_s} seconds'"


class _WholeLoader(NumericBinaryLoader):
    """Reads the sum of integers, which PostgreSQL gives as a decimal number."""

    def load(self, data: Any) -> Any:
        return int(super().load(data))


class PostgresPrimary:
    """One PostgreSQL primary, with or without standbys that can take its place."""

    def __init__(self, url: str, *, wait_s: float, call_s: float, standby_reads: bool = False) -> None:
        """Raises StorageError if the URL, postgresql://USER:PASSWORD@HOST:PORT,HOST:PORT/DATABASE, is not valid."""
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
        # The name is without the password.
        self.name = _name(str(given.get("host") or "this machine"), ports, str(given.get("dbname") or ""))
        self.wait_s = wait_s
        self.standby_reads = standby_reads
        self.deadlines = Deadlines(call_s)
        self._conninfo = make_conninfo(**{**_DEFAULTS, **given})
        # A commit of this node itself waits no longer than a call may take.
        waits = lacks_standby(min(COMMIT_WAITS_S, call_s / 2))
        self._commit_waits = (
            f"SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND {waits}".encode()
        )

    def connect(self, *, to_write: bool = True) -> Connection:
        """Connects to the server that takes writes. If there is none, `to_write` is False and standbys may serve reads,
        connects to a standby. Tries each host once. Raises StorageError."""
        try:
            return self._connect(self._conninfo)
        except DatabaseLost:
            if to_write or not self.standby_reads:
                raise
        return self._connect(make_conninfo(self._conninfo, target_session_attrs="any"))

    def _connect(self, conninfo: str) -> Connection:
        try:
            connection = psycopg.connect(conninfo, autocommit=True, cursor_factory=psycopg.RawCursor)
        except psycopg.Error as error:
            if _REFUSED.search(str(error)):
                raise ServerRefused(one_line(str(error))) from error
            raise storage_error(error, broken=True) from error
        connection.adapters.register_dumper(int, Int8BinaryDumper)
        connection.adapters.register_dumper(bytes, BytesBinaryDumper)
        # As text, the driver would send all lists of one statement as arrays of the type that fits the first list.
        connection.adapters.register_dumper(list, ListBinaryDumper)
        connection.adapters.register_loader("numeric", _WholeLoader)
        try:
            self._execute(connection, _SETTINGS)
            # Not every system has these settings, and the refusal of one must not undo the others.
            for settings in _NOTICES_END:
                self._execute(connection, settings)
        except psycopg.Error as error:
            connection.close()
            raise DatabaseLost(one_line(str(error))) from error
        return connection

    def wait_connected(self, adopt: Callable[[Connection], None] | None = None) -> Connection:
        """Connects and calls `adopt`. Tries again for at most `wait_s` if no server takes writes, or if the connection
        is lost in `adopt`. Raises StorageError, at once if a server does not let the node in."""
        end_s = time.monotonic() + self.wait_s
        told = False
        while True:
            try:
                return self.connect_and(adopt)
            except ServerRefused:
                raise
            except DatabaseLost as error:
                if time.monotonic() > end_s:
                    raise
                if not told:
                    logger.warning("database_waited_for", database=self.name, most_s=self.wait_s, reason=str(error))
                    told = True
                pause()

    def connect_and(self, adopt: Callable[[Connection], None] | None, *, to_write: bool = True) -> Connection:
        """Connects as `connect` does, and calls `adopt`. Raises StorageError; StandbyMissing if `adopt` has lost the
        connection because a commit waits for a standby."""
        connection = self.connect(to_write=to_write)
        try:
            if adopt is not None:
                adopt(connection)
        except DatabaseLost as error:
            connection.close()
            if to_write and self._waits_for_standby():
                raise StandbyMissing from error
            raise
        except BaseException:
            connection.close()
            raise
        return connection

    def _waits_for_standby(self) -> bool:
        """Returns whether a commit has waited for a standby for long, as far as this role may see."""
        try:
            connection = self.connect()
        except StorageError:
            return False
        try:
            return bool(self._execute(connection, self._commit_waits).get_value(0, 0) == b"t")
        except psycopg.Error:
            return False
        finally:
            connection.close()

    def _execute(self, connection: Connection, text: bytes) -> Any:
        descriptor = connection.pgconn.socket
        self.deadlines.begin(descriptor)
        try:
            return connection.pgconn.exec_(text)
        finally:
            self.deadlines.end(descriptor)

    def close(self) -> None:
        self.deadlines.close()


def _name(hosts: str, ports: str, database: str) -> str:
    of_host = ports.split(",")
    named = [
        f"{host}:{port}" if (port := of_host[place % len(of_host)]) else host
        for place, host in enumerate(hosts.split(","))
    ]
    return f"{','.join(named)}/{database}"


def pause() -> None:
    """Waits between two attempts to reach a server. For the storage threads only."""
    time.sleep(RETRY_S)


def check_version(connection: Connection) -> None:
    version = connection.info.server_version // 10_000
    if version < VERSION_MIN:
        raise StorageError(f"PostgreSQL {version} is too old; the node needs version {VERSION_MIN} or later")


_GOOD = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)


def command(connection: Connection, deadlines: Deadlines, text: bytes, payload: bytes | None = None) -> Any:
    """Runs one command, or several that are separated by semicolons; `payload` has the rows of a COPY FROM STDIN among
    them. The server does nothing after a command that fails. Returns the `psycopg.pq` result of the last command.
    Raises StorageError."""
    wire = connection.pgconn
    if wire.status != ConnStatus.OK:
        raise DatabaseLost("the connection is closed")
    descriptor = wire.socket
    deadlines.begin(descriptor)
    try:
        # The driver releases the interpreter's lock once for the whole trip.
        result = wire.exec_(text)
        if payload is not None and result.status == ExecStatus.COPY_IN:
            # The rows and the commit have the time of a call for themselves.
            deadlines.begin(descriptor)
            result = _send_rows(wire, payload)
    except OperationalError as error:
        raise DatabaseLost(one_line(str(error))) from error
    finally:
        deadlines.end(descriptor)
    if result.status not in _GOOD:
        state = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()
        reason = one_line(result.error_message.decode(errors="replace"))
        raise server_error(state, reason, broken=wire.status != ConnStatus.OK)
    return result


def check_open(connection: Connection) -> None:
    if connection.closed:
        raise DatabaseLost("the connection is closed")
    wire = connection.pgconn
    readable = select.poll()
    readable.register(wire.socket, select.POLLIN)
    try:
        # A server that ends a connection may send the reason before the end.
        while readable.poll(0):
            wire.consume_input()
    except OperationalError as error:
        raise DatabaseLost(one_line(str(error))) from error


def as_literal(value: int | bytes | None) -> bytes:
    if value is None:
        return b"NULL"
    return b"%d" % value if isinstance(value, int) else b"'\\x%s'" % value.hex().encode()


def integers_literal(values: Iterable[int]) -> bytes:
    return b"'{%s}'" % ",".join(map(str, values)).encode()


def _send_rows(wire: Any, payload: bytes) -> Any:
    ready = select.poll()
    ready.register(wire.socket, select.POLLIN | select.POLLOUT)
    while wire.put_copy_data(payload) == 0:
        _flush(wire, ready)
    while wire.put_copy_end() == 0:
        _flush(wire, ready)
    _flush(wire, ready)
    # The results come in the order of the commands. The first failure is the one to report.
    ready.modify(wire.socket, select.POLLIN)
    last = None
    while True:
        while wire.is_busy():
            ready.poll()
            wire.consume_input()
        result = wire.get_result()
        if result is None:
            assert last is not None, "every command has a result"
            return last
        if last is None or last.status in _GOOD:
            last = result


def _flush(wire: Any, ready: select.poll) -> None:
    """Sends everything that waits to be sent. The server may answer before it has read everything."""
    while wire.flush():
        if any(event & select.POLLIN for _, event in ready.poll()):
            wire.consume_input()
