"""Gives free pages of a database file back to the disk. The file becomes shorter at the next checkpoint."""

from __future__ import annotations

import sqlite3

from stream_storage.sqlite.errors import storage_error


def reclaim(connection: sqlite3.Connection, pages: int, keep: int) -> int:
    """Gives pages back (`stream_storage.contract.Session.reclaim`). Returns the number of free pages left."""
    try:
        # One statement for each page: SQLite frees a page each time a row is asked for, and Python's driver asks only
        # once, since the statement returns no columns.
        for _ in range(min(pages, _free_pages(connection) - keep)):
            connection.execute("PRAGMA incremental_vacuum(1)")
        return _free_pages(connection)
    except sqlite3.Error as error:
        raise storage_error(error) from error


def _free_pages(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA freelist_count").fetchone()[0])
