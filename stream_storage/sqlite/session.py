"""One connection to the database file, which `stream_storage.sqlite.database` opens, and the log of messages on it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from stream_storage.errors import OperationFailed, StorageError
from stream_storage.histogram import SECONDS, Histogram
from stream_storage.sqlite.disk_diagnosis import diagnose, find_no_room
from stream_storage.sqlite.errors import caused_error, mapped, storage_error
from stream_storage.sqlite.log import SqliteLog
from stream_storage.sqlite.rows import SqliteRows, execute
from stream_storage.statement import Values

TRIAL_ROOM_BYTES = 256 * 1024
"""The least room that a trial asks for. The room that is left may be enough for one push and not for another."""


class WalCheckpoint(NamedTuple):
    """The result of a checkpoint, as SQLite reports it."""

    blocked: bool  # whether another connection kept the checkpoint from finishing
    wal_pages: int  # the number of pages in the write-ahead log
    copied_pages: int  # how many of these pages are in the database file


class SqliteSession:
    """A session on one SQLite connection: a `stream_storage.contract.Session`."""

    def __init__(self, connection: sqlite3.Connection, *, writes: bool) -> None:
        self.connection = connection
        self.log = SqliteLog(connection)
        self.writes = writes
        self.closed = False
        self.sync_seconds = Histogram(SECONDS)
        # A transaction that takes the write lock after its beginning can fail halfway.
        self._begin = "BEGIN IMMEDIATE" if writes else "BEGIN"

    @property
    def in_transaction(self) -> bool:
        return self.connection.in_transaction

    def execute(self, statement: str, values: Values = ()) -> SqliteRows:
        return execute(self.connection, statement, values)

    @mapped()
    def execute_many(self, statement: str, values: Iterable[Values]) -> None:
        self.connection.executemany(statement, values)

    @mapped()
    def find_many(self, statement: str, values: Sequence[Values]) -> list[Any]:
        return [self.connection.execute(statement, each).fetchone() for each in values]

    def begin(self, *, deferred: bool = False) -> None:
        self._execute(self._begin)

    def commit(self) -> None:
        began_s = time.perf_counter()
        self._execute("COMMIT")
        self.sync_seconds.add(time.perf_counter() - began_s)

    def rollback(self) -> None:
        if self.connection.in_transaction:
            self._execute("ROLLBACK")

    @mapped()
    def reclaim(self, pages: int, keep: int) -> int:
        # One statement for each page: SQLite frees a page each time a row is asked for, and Python's driver asks only
        # once, since the statement returns no columns.
        for _ in range(min(pages, self._free_pages() - keep)):
            self.connection.execute("PRAGMA incremental_vacuum(1)")
        return self._free_pages()

    def _free_pages(self) -> int:
        return int(self.connection.execute("PRAGMA freelist_count").fetchone()[0])

    def fence(self, owner: str) -> bool:
        raise OperationFailed("a database file has one writer, and no other one to fence")

    def disconnect(self, owner: str) -> None:
        raise OperationFailed("a database file has one writer, and no other one to disconnect")

    def recover(self, error: StorageError) -> bool:
        return False

    def settle(self, error: StorageError) -> bool | StorageError:
        # After a failed sync, the write-ahead log may have the whole transaction.
        return error if error.fatal else False

    def savepoint(self) -> None:
        self._execute("SAVEPOINT part")

    def release(self) -> None:
        self._execute("RELEASE part")

    def rollback_to(self) -> None:
        self._execute("ROLLBACK TO part")
        self._execute("RELEASE part")

    @mapped()
    def checkpoint(self, mode: str) -> WalCheckpoint:
        """Copies the write-ahead log into the database file. PASSIVE waits for no other connection, RESTART and
        TRUNCATE wait for readers, and TRUNCATE also empties the log."""
        blocked, wal_pages, copied_pages = self.connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        return WalCheckpoint(bool(blocked), wal_pages, copied_pages)

    def free_disk_bytes(self) -> int:
        """Returns the free bytes on the disk, or 0 if the database is in memory. Raises OSError."""
        path = self._path()
        return shutil.disk_usage(os.path.dirname(path)).free if path else 0

    def _path(self) -> str:
        path: str = self.connection.execute("PRAGMA database_list").fetchone()[2]
        return path

    def extend_wal(self, size_bytes: int) -> None:
        """Extends the write-ahead log to `size_bytes`, until the last connection closes. Later commits overwrite the
        extended part: syncing a growing file would take twice as long. Raises StorageError; the extended part can then
        still take room."""
        self.begin()
        try:
            self.try_write(size_bytes)
        finally:
            self.rollback()

    @mapped()
    def try_write(self, size_bytes: int) -> bool:
        # The log may still have room for one commit when the disk has none for the commits after it.
        path = self._path()
        no_room = find_no_room(Path(path), max(size_bytes, TRIAL_ROOM_BYTES)) if path else None
        if no_room is not None:
            raise no_room
        # SQLite writes a transaction to the log before its commit if the transaction is too large for the page cache.
        # With a small cache it does so here, and no reader ever sees what the savepoint takes back.
        cache_size = self.connection.execute("PRAGMA cache_size").fetchone()[0]
        self.connection.execute("PRAGMA cache_size=16")
        try:
            self.connection.execute("SAVEPOINT trial")
            self.connection.execute("CREATE TABLE trial (data BLOB)")
            self.connection.execute("INSERT INTO trial VALUES (zeroblob(?))", (size_bytes,))
            self.connection.execute("ROLLBACK TO trial")
            self.connection.execute("RELEASE trial")
        finally:
            self.connection.execute(f"PRAGMA cache_size={cache_size}")
        return True

    @contextmanager
    def busy_timeout(self, timeout_ms: int) -> Iterator[None]:
        """Limits the time that this session waits for other connections while the block runs."""
        usual_ms = self.connection.execute("PRAGMA busy_timeout").fetchone()[0]
        self.connection.execute(f"PRAGMA busy_timeout={timeout_ms}")
        try:
            yield
        finally:
            self.connection.execute(f"PRAGMA busy_timeout={usual_ms}")

    def error_of(self, raised: BaseException) -> StorageError:
        error = caused_error(raised)
        # The test for the cause reads the whole file. Only an error of the session that writes is worth that: it can
        # stop the node.
        return diagnose(error, self) if self.writes else error

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        try:
            self.rollback()
        finally:
            self.connection.close()

    def _execute(self, statement: str) -> None:
        try:
            self.connection.execute(statement)
        except sqlite3.Error as error:
            raise storage_error(error) from error
