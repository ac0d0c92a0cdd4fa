"""Executes statements on a connection of Python's sqlite3, and reads their rows. Errors become StorageErrors."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

from stream_storage.contract import Session
from stream_storage.sqlite.errors import storage_error
from stream_storage.statement import Values


class SqliteRows:
    __slots__ = ("_cursor",)

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount

    def fetchone(self) -> Any:
        try:
            return self._cursor.fetchone()
        except sqlite3.Error as error:
            raise storage_error(error) from error

    def fetchall(self) -> list[Any]:
        try:
            return self._cursor.fetchall()
        except sqlite3.Error as error:
            raise storage_error(error) from error

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._cursor
        except sqlite3.Error as error:
            raise storage_error(error) from error


def execute(connection: sqlite3.Connection, statement: str, values: Values) -> SqliteRows:
    try:
        return SqliteRows(connection.execute(statement, values))
    except sqlite3.Error as error:
        raise storage_error(error) from error


def connection_of(session: Session) -> sqlite3.Connection:
    """Returns the SQLite connection of a session. Raises TypeError if the session is not one of SQLite."""
    connection = getattr(session, "connection", None)
    if not isinstance(connection, sqlite3.Connection):
        raise TypeError(f"a {type(session).__name__} is no session of SQLite")
    return connection
