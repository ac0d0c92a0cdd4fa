"""One connection to the primary server, made again when it is lost, and the log of messages on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg
import structlog

from stream_storage import errors
from stream_storage.errors import DatabaseLost
from stream_storage.histogram import SECONDS, Histogram
from stream_storage.postgres import dialect
from stream_storage.postgres.dialect import PostgresRows
from stream_storage.postgres.durability import KeptDurability
from stream_storage.postgres.errors import storage_error
from stream_storage.postgres.log import PREPARED, PostgresLog
from stream_storage.postgres.ownership import Freshness, Ownership, disconnect_command, fence_command
from stream_storage.postgres.server import PostgresPrimary, check_open, command, pause
from stream_storage.statement import Statement, Values

QUIET_S = 1.0
"""After this silence, a transaction begins with a trip of its own, so that a dead connection leaves no commit in
doubt."""
QUEUED_S = 0.1
"""If operations begin within this time after others have waited in vain, they were in the queue meanwhile."""
EXAMINE_S = 10.0
"""The time between two examinations of the server's durability by a session that writes, in seconds."""
CANCELLED_WAIT = "01000"
"""The SQLSTATE of the warning with which a COMMIT succeeds though no standby has confirmed it."""

logger = structlog.get_logger(__name__)


class PostgresSession:
    """A session on one connection: a `stream_storage.contract.Session`.

    In a deferred transaction, appends are sent with the next statement or with the commit: a transaction that has only
    a small append is one trip to the server, and one with a COPY is two.

    sync_seconds: the times of commits, which return when the server, and a standby it waits for, have synced.

    Invariant: `_unsent` has the commands that wait for the next trip to the server, in order. If one of them is a COPY,
        it is the last, and `_unsent_rows` has its rows."""

    def __init__(
        self,
        server: PostgresPrimary,
        ownership: Ownership | None,
        *,
        durability: KeptDurability | None = None,
        freshness: Freshness | None = None,
    ) -> None:
        """Connects. Raises StorageError. ownership, durability: the right to write and the promise of a confirm; None
        for a session that only reads, which has `freshness` instead."""
        self.sync_seconds = Histogram(SECONDS)
        self.closed = False
        self.writes = ownership is not None
        self.in_transaction = False
        self.log = PostgresLog(self)
        self._server = server
        self._ownership = ownership
        self._durability = durability
        self._freshness = freshness
        self._unsent: list[bytes] = []
        self._unsent_rows: bytes | None = None
        self._defers = False
        self._answered_s = self._examined_s = 0.0
        self._cancelled_wait: str | None = None
        self._lost_since_s: float | None = None
        self._unreached: DatabaseLost | None = None
        self._gave_up_s = 0.0
        self._end: errors.StorageError | None = None
        self._doubt: int | None = None
        self._stored_commits = 0
        self._connection = server.wait_connected(self._adopt)

    def execute(self, statement: Statement, values: Values = ()) -> PostgresRows:
        compiled = dialect.compile_statement(statement)
        return PostgresRows(self.run(compiled.text, dialect.in_order(statement, compiled, values)), compiled.texts)

    @property
    def defers(self) -> bool:
        return self._defers and self.in_transaction

    def execute_many(self, statement: Statement, values: Iterable[Values]) -> None:
        made = dialect.compile_statement(statement)
        rows = [dialect.in_order(statement, made, each) for each in values]
        if len(rows) == 1:
            self.run(made.text, rows[0])
        elif (as_set := dialect.set_insert(statement)) is not None:
            for part in dialect.split_rows(rows, as_set.key):
                self.run(as_set.text, dialect.columns_of(part))
        elif rows:
            self._send_unsent()
            self._call(partial(self._connection.cursor().executemany, made.text, rows))

    def find_many(self, statement: Statement, values: Sequence[Values]) -> list[Any]:
        if len(values) <= 1:
            return [self.execute(statement, each).fetchone() for each in values]
        lookup = dialect.set_lookup(statement)
        columns = dialect.columns_of([dialect.in_order(statement, lookup, each) for each in values])
        rows = PostgresRows(self.run(lookup.text, columns), lookup.texts).fetchall()
        found = {row[0]: row[1:] for row in rows}
        return [found.get(place) for place in range(1, len(values) + 1)]

    def run(self, text: str, values: Sequence[Any]) -> psycopg.Cursor[Any]:
        """Executes a statement of PostgreSQL with the parameters $1, $2 and so on. Raises StorageError."""
        self._send_unsent()
        cursor = self._connection.cursor(binary=True)
        self._call(partial(cursor.execute, text, values))
        return cursor

    def copy(self, text: str, payload: bytes) -> None:
        self._send_unsent()
        self._command(text.encode(), payload)

    def later(self, text: bytes, payload: bytes | None = None) -> None:
        """Sends a command, or a COPY with its rows, with the next statement of a deferred transaction, or with its
        commit. Raises StorageError."""
        assert self.defers, "the transaction is deferred"
        if self._unsent_rows is not None:
            self._send_unsent()
        self._unsent.append(text)
        self._unsent_rows = payload

    def begin(self, *, deferred: bool = False) -> None:
        assert not self.in_transaction, "transactions do not nest"
        if self._end is not None:
            raise self._end
        if self._ownership is None:
            self._begin_reading()
        else:
            try:
                check_open(self._connection)
                self._examine()
            except DatabaseLost as error:
                self._lose(error)
                raise self._unreached or error from None
            self._unsent.append(self._ownership.begin())
            # A deferred transaction sends its beginning with its first statement or commit, but not after a silence.
            if not deferred or time.monotonic() - self._answered_s > QUIET_S:
                self._begin_now(lambda: self._command(*self._take_unsent()))
        self.in_transaction = True
        self._defers = deferred

    def commit(self) -> None:
        self._cancelled_wait = None
        began_s = time.perf_counter()
        with_others = bool(self._unsent)
        try:
            result = self._command(*self._take_unsent(b"COMMIT"))
        except errors.StorageError as error:
            if isinstance(error, DatabaseLost) and self._lost_since_s is not None:
                # The operations have waited since the commit began.
                self._lost_since_s = min(self._lost_since_s, time.monotonic() - (time.perf_counter() - began_s))
            if with_others and not isinstance(error, DatabaseLost):
                # The server did nothing behind the statement that failed, so the transaction is still open.
                self._command(b"ROLLBACK")
                if not error.fatal:
                    raise errors.PartFailed(error) from error
            raise
        finally:
            self.in_transaction = False
        try:
            self._check_waited()
        except DatabaseLost as lost:
            self._lose(lost)
            raise
        # The server answers a COMMIT with ROLLBACK if the transaction had failed.
        if result.command_status != b"COMMIT":
            raise errors.OperationFailed("the database undid a transaction at its commit; report this mistake")
        self._lost_since_s = None
        if self._ownership is not None:
            self._ownership.confirmed = self._ownership.number
        self.sync_seconds.add(time.perf_counter() - began_s)

    def rollback(self) -> None:
        if self.in_transaction:
            self.in_transaction = False
            self._take_unsent()
            lost_since_s = None if self._ownership is None else self._lost_since_s
            with suppress(DatabaseLost):
                # The server undoes the transaction of a connection that is gone. The next `begin` notices the loss.
                self._command(b"ROLLBACK")
            self._lost_since_s = lost_since_s

    def savepoint(self) -> None:
        self._command(b"SAVEPOINT part")

    def release(self) -> None:
        self._command(b"RELEASE SAVEPOINT part")

    def rollback_to(self) -> None:
        self._command(b"ROLLBACK TO SAVEPOINT part; RELEASE SAVEPOINT part")

    def try_write(self, size_bytes: int) -> bool:
        # Each transaction that writes begins with a write: the number of the transaction (`Ownership.begin`). It needs
        # no room on the disk.
        return False

    def reclaim(self, pages: int, keep: int) -> int:
        # Autovacuum makes room for new rows.
        return 0

    def fence(self, owner: str) -> bool:
        self._send_unsent()
        return bool(self._command(fence_command(owner)).command_tuples == 1)

    def disconnect(self, owner: str) -> None:
        self._send_unsent()
        self._command(disconnect_command(owner))

    def recover(self, error: errors.StorageError) -> bool:
        if not isinstance(error, DatabaseLost):
            return False
        # Other operations have just waited in vain, and these were in the queue meanwhile.
        gave_up_s, self._gave_up_s = self._gave_up_s, 0.0
        if time.monotonic() - gave_up_s < QUEUED_S:
            self._lost_since_s = None
            return False
        # A server that breaks every connection is not tried for ever.
        waited_s = 0.0 if self._lost_since_s is None else time.monotonic() - self._lost_since_s
        if self._connect_again() and waited_s <= self._server.wait_s:
            return True
        if self._end is not None:
            # The next `begin` raises the reason for which this node may not write any more.
            return True
        # These operations fail. The next ones try once, until there is a server.
        self._lost_since_s = None
        return False

    def settle(self, error: errors.StorageError) -> bool | errors.StorageError:
        if not isinstance(error, DatabaseLost):
            # The server has answered that it did not commit.
            return False
        assert self._ownership is not None, "only a session that writes commits"
        self._doubt = number = self._ownership.number
        if self._connect_again():
            return self._stored_commits == number
        if isinstance(self._end, errors.ConfirmedLost):
            # A server that lacks an earlier transaction lacks this one.
            return False
        # The next operations try once, until there is a server, and find it out then.
        self._lost_since_s = None
        return self._end or self._unreached or error

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        try:
            self.rollback()
        finally:
            self._connection.close()

    def error_of(self, raised: BaseException) -> errors.StorageError:
        error = storage_error(raised, broken=self._connection.broken)
        if error is not raised:
            error.__cause__ = raised
        return error

    def _examine(self) -> None:
        """Raises DatabaseLost if commits no longer keep the promise of a confirm. The session then connects again."""
        if self._durability is None or time.monotonic() - self._examined_s < EXAMINE_S:
            return
        try:
            self._durability.adopt(self._connection)
        except errors.UnsafeDatabase as error:
            raise DatabaseLost(str(error)) from error
        self._examined_s = time.monotonic()

    def _begin_reading(self) -> None:
        freshness = self._freshness
        assert freshness is not None, "a session that does not write has to see what is confirmed"
        try:
            self._begin_now(lambda: freshness.begin(self._command, is_on_standby=self._is_on_standby))
        except DatabaseLost as error:
            self._lose(error)
            raise

    def _begin_now(self, begin: Callable[[], object]) -> None:
        """Sends the first commands of a transaction. If the server refuses one, undoes what it has begun."""
        try:
            begin()
        except errors.StorageError as error:
            if not isinstance(error, DatabaseLost):
                self._command(b"ROLLBACK")
            raise

    @property
    def _is_on_standby(self) -> bool:
        return bool(self._connection.pgconn.parameter_status(b"in_hot_standby") == b"on")

    def _take_unsent(self, *last: bytes) -> tuple[bytes, bytes | None]:
        """Returns and forgets the text of all unsent commands, with `last`, and the rows of the COPY."""
        text, payload = b"; ".join([*self._unsent, *last]), self._unsent_rows
        self._unsent.clear()
        self._unsent_rows = None
        return text, payload

    def _send_unsent(self) -> None:
        if self._unsent:
            try:
                self._command(*self._take_unsent())
            except errors.StorageError as error:
                if error.fatal or isinstance(error, DatabaseLost):
                    raise
                raise errors.PartFailed(error) from error

    def _command(self, text: bytes, payload: bytes | None = None) -> Any:
        try:
            result = command(self._connection, self._server.deadlines, text, payload)
            self._answered_s = time.monotonic()
            return result
        except DatabaseLost as error:
            self._lose(error)
            raise
        except errors.NodeReplaced as error:
            assert self._ownership is not None, "only a session that writes can be replaced"
            raise self._ownership.replaced() from error

    def _call(self, call: Callable[[], object]) -> None:
        if self._connection.closed:
            raise DatabaseLost("the connection is closed")
        descriptor = self._connection.fileno()
        self._server.deadlines.begin(descriptor)
        try:
            call()
        except psycopg.Error as raised:
            error = storage_error(raised, broken=self._connection.broken or self._connection.closed)
            if isinstance(error, DatabaseLost):
                self._lose(error)
            raise error from raised
        finally:
            self._server.deadlines.end(descriptor)

    def _lose(self, error: DatabaseLost) -> None:
        self.in_transaction = False
        self._take_unsent()
        if self._ownership is not None:
            self._ownership.connected = False
        self._connection.close()
        if self._lost_since_s is None:
            self._lost_since_s = time.monotonic()
            logger.warning("database_connection_lost", database=self._server.name, reason=str(error))

    def _connect_again(self) -> bool:
        """Connects again, if the connection is lost. Waits for a server until `PostgresPrimary.wait_s` after the loss;
        tries only once if an earlier wait was in vain. Returns whether it connected."""
        wait_s = self._server.wait_s if self._unreached is None else 0.0
        lost_since_s = time.monotonic() if self._lost_since_s is None else self._lost_since_s
        while self._connection.closed and self._end is None:
            try:
                self._server.connect_and(self._adopt, to_write=self._ownership is not None)
                logger.info("database_connected_again", database=self._server.name, standby=self._is_on_standby)
                self._settle_doubt()
            except errors.StorageError as error:
                if not error.retriable and not isinstance(error, errors.UnsafeDatabase):
                    # Another node has taken over, or the role was refused. The next `begin` says so.
                    self._end = error
                    self._end.fatal = True
                    break
                # A server that is not safe must not be used, but it may be mended, or another one may take its place. A
                # server without room may get some.
                pause()
                if time.monotonic() - lost_since_s > wait_s:
                    logger.error("database_not_reached", database=self._server.name, reason=str(error))
                    self._unreached = error if isinstance(error, DatabaseLost) else DatabaseLost(str(error))
                    self._gave_up_s = time.monotonic()
                    return False
        return self._end is None

    def _adopt(self, connection: psycopg.Connection[Any]) -> None:
        connection.add_notice_handler(self._note)
        self._cancelled_wait = None
        # The promise is set before the right to write is taken, so that taking it is synced like every commit.
        if self._durability is not None:
            self._durability.adopt(connection)
            self._examined_s = time.monotonic()
        if self._freshness is not None:
            self._freshness.renew()
        if self._ownership is not None:
            epoch, stored = self._ownership.take(connection)
            prepared = "; ".join((self._ownership.prepared(), *PREPARED))
            command(connection, self._server.deadlines, prepared.encode())
            # The answer of a server does not count if no standby has confirmed it.
            self._check_waited()
            self._ownership.believe(epoch, stored)
            self._stored_commits = stored
        self._connection = connection
        self._unreached = None

    def _settle_doubt(self) -> None:
        """Finds out on the new connection whether the commit whose answer was lost is stored."""
        if self._doubt is not None:
            stored = self._stored_commits == self._doubt
            self._doubt = None
            logger.warning("lost_commit_settled", database=self._server.name, stored=stored)

    def _check_waited(self) -> None:
        if self._cancelled_wait is not None:
            raise DatabaseLost(f"the wait for a standby was cancelled: {self._cancelled_wait}")

    def _note(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.sqlstate == CANCELLED_WAIT:
            self._cancelled_wait = notice.message_primary or "no reason given"
