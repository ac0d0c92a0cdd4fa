"""SqliteSession: one connection to the database file, and the log on it. `storage.database` sets the connection up."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from storage.errors import storage_error
from storage.log import SqliteLog


class Checkpoint(NamedTuple):
    """The result of a checkpoint, as SQLite gives it.

    blocked: a reader kept it from finishing. wal_pages: pages in the write-ahead log; copied_pages: those of them that
    are in the file.
    """

    blocked: bool
    wal_pages: int
    copied_pages: int


class SqliteSession:
    """A `storage.contract.Session` on SQLite.

    writes: whether transactions take the write lock when they begin. A transaction that takes it later can fail
    halfway.
    """

    def __init__(self, connection: sqlite3.Connection, *, writes: bool) -> None:
        self.connection = connection
        self.log = SqliteLog(connection)
        self.writes = writes
        self.closed = False
        self._begin = "BEGIN IMMEDIATE" if writes else "BEGIN"

    @property
    def in_transaction(self) -> bool:
        return self.connection.in_transaction

    def begin(self) -> None:
        self._execute(self._begin)

    def commit(self) -> None:
        self._execute("COMMIT")

    def rollback(self) -> None:
        if self.connection.in_transaction:
            self._execute("ROLLBACK")

    def savepoint(self) -> None:
        self._execute("SAVEPOINT part")

    def release(self) -> None:
        self._execute("RELEASE part")

    def rollback_to(self) -> None:
        self._execute("ROLLBACK TO part")
        self._execute("RELEASE part")

    def checkpoint(self, mode: str) -> Checkpoint:
        """Copy the log into the file. mode: PASSIVE waits for nobody; RESTART and TRUNCATE wait for readers."""
        try:
            blocked, wal_pages, copied_pages = self.connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        except sqlite3.Error as error:
            raise storage_error(error) from error
        return Checkpoint(bool(blocked), wal_pages, copied_pages)

    def free_disk_bytes(self) -> int:
        """The free bytes on the disk of the database; 0 where the database is in memory. Raises OSError."""
        path = self.connection.execute("PRAGMA database_list").fetchone()[2]
        return shutil.disk_usage(os.path.dirname(path)).free if path else 0

    def extend_wal(self, size_bytes: int) -> None:
        """Give the write-ahead log this size, so that later commits write over it: syncing a file that grows takes
        twice as long. The log keeps the size until the last connection closes.

        SQLite writes a transaction that is too large for the page cache to the log before its end. This method begins
        such a transaction and undoes it, so no reader ever sees its data. Raises StorageError; then the transaction is
        undone too, but the part of the log that it wrote may still take room.
        """
        try:
            cache_size = self.connection.execute("PRAGMA cache_size").fetchone()[0]
            try:
                self.connection.execute("PRAGMA cache_size=16")
                self.begin()
                self.connection.execute("CREATE TABLE wal_extension (data BLOB)")
                self.connection.execute("INSERT INTO wal_extension VALUES (zeroblob(?))", (size_bytes,))
            finally:
                try:
                    self.rollback()
                finally:
                    self.connection.execute(f"PRAGMA cache_size={cache_size}")
        except sqlite3.Error as error:
            raise storage_error(error) from error

    @contextmanager
    def busy_timeout(self, timeout_ms: int) -> Iterator[None]:
        """Inside this context, wait for other connections no longer than `timeout_ms`."""
        usual_ms = self.connection.execute("PRAGMA busy_timeout").fetchone()[0]
        self.connection.execute(f"PRAGMA busy_timeout={timeout_ms}")
        try:
            yield
        finally:
            self.connection.execute(f"PRAGMA busy_timeout={usual_ms}")

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
