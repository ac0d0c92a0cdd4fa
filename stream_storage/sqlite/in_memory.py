"""Databases in memory, with the tables and the code of a database file. Other processes cannot use them."""

from __future__ import annotations

import sqlite3
from functools import cache

from stream_storage.sqlite.schema import create_statements
from stream_storage.sqlite.session import SqliteSession

EMPTIED_MAX = 8
"""The most databases that are kept for the next sessions."""
KEPT_PAGES_MAX = 1_000
"""A database that has grown to more pages (of 4 KiB) than this is not kept."""

_create_statements = cache(create_statements)
_emptied: list[sqlite3.Connection] = []


def open_in_memory() -> MemorySession:
    """Returns the only session of a database without messages. It writes and reads."""
    try:
        connection = _emptied.pop()
    except IndexError:
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        for statement in _create_statements():
            connection.execute(statement)
    return MemorySession(connection, writes=True)


class MemorySession(SqliteSession):
    """The only session of a database in memory. When it closes, it empties the database and leaves it to the next
    session. So the next session creates no tables and prepares no statement again."""

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        is_kept = False
        try:
            self.rollback()
            (pages,) = self.connection.execute("PRAGMA page_count").fetchone()
            if len(_emptied) < EMPTIED_MAX and pages <= KEPT_PAGES_MAX:
                tables = self.connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
                self.connection.execute("BEGIN")
                for (name,) in tables:
                    self.connection.execute(f'DELETE FROM "{name}"')
                self.connection.execute("COMMIT")
                _emptied.append(self.connection)
                is_kept = True
        finally:
            if not is_kept:
                self.connection.close()
