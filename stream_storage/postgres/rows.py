"""The rows of one statement, all of which have come from the server already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg


class PostgresRows:
    __slots__ = ("_cursor", "_texts")

    def __init__(self, cursor: psycopg.Cursor[Any], texts: tuple[int, ...]) -> None:
        self._cursor = cursor
        self._texts = texts

    @property
    def rowcount(self) -> int:
        return int(self._cursor.rowcount)

    def fetchone(self) -> Any:
        row = self._cursor.fetchone()
        return row if row is None or not self._texts else self._decoded(row)

    def fetchall(self) -> list[Any]:
        rows = self._cursor.fetchall()
        return list(map(self._decoded, rows)) if self._texts else rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fetchall())

    def _decoded(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        columns = list(row)
        for place in self._texts:
            if columns[place] is not None:
                columns[place] = columns[place].decode()
        return tuple(columns)
