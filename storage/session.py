"""One connection to the database file and the log through it. It does not set the connection up."""

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
    """blocked: by readers, before it was done; wal_pages: in the log; copied_pages: of those, in the file."""

    blocked: bool
    wal_pages: int
    copied_pages: int


class SqliteSession:
    """A `storage.contract.Session`. writes: its transactions take the lock for writing when they begin."""

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
        """Copy the log into the file. mode: PASSIVE waits for nobody; RESTART and TRUNCATE for readers."""
        try:
            blocked, wal_pages, copied_pages = self.connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        except sqlite3.Error as error:
            raise storage_error(error) from error
        return Checkpoint(bool(blocked), wal_pages, copied_pages)

    def free_disk_bytes(self) -> int:
        """Free on the disk of the file; 0 where the database is no file. Raises OSError."""
        path = self.connection.execute("PRAGMA database_list").fetchone()[2]
        return shutil.disk_usage(os.path.dirname(path)).free if path else 0

    def extend_wal(self, size_bytes: int) -> None:
        """Give the write-ahead log this size, so that commits write over it: a sync of a file that grows takes twice as
        long. It stays so until the last connection closes; a reader never sees what is written here.

        How: a transaction that is too large for the page cache is written to the log before its end, and then undone.
        Raises StorageError; nothing is left of the transaction then either, but what it wrote may still take room.
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
        """Wait for other connections no longer than this, for once."""
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
