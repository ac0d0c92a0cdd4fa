"""Finds the rows of a database file whose seals are wrong. `stream_storage.seal` describes seals."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from stream_storage.seal import SEAL, STREAM_COLUMNS, row_seal, stream_seal


def has_seal(connection: sqlite3.Connection, table: str) -> bool | None:
    """Returns whether a table has a column for the seal; None if the table does not exist."""
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info('{table}')")]
    return SEAL in columns if columns else None


def find_broken(connection: sqlite3.Connection, table: str) -> Iterable[str]:
    """Yields an error text, with the primary key, for each row whose seal is wrong. Raises sqlite3.Error."""
    columns = connection.execute(f"PRAGMA table_info('{table}')").fetchall()
    names = [row[1] for row in columns]
    keys = [row[1] for row in sorted(columns, key=lambda row: row[5]) if row[5]]
    others = [name for name in names if name != SEAL]
    is_stream = table == "streams"
    if is_stream:
        # The first seven values are the arguments of the seal, in order. This is fast: a start checks all streams.
        others = [*STREAM_COLUMNS.split(", "), *keys]
    quoted = ", ".join(f'"{name}"' for name in [*others, SEAL])
    for row in connection.execute(f'SELECT {quoted} FROM "{table}" NOT INDEXED'):
        if row[-1] != (stream_seal(*row[:7]) if is_stream else row_seal(table, row[:-1])):
            named = ", ".join(f"{key} {row[others.index(key)]!r}" for key in keys)
            yield f"the row of {table} with {named} is not what was written (its seal differs)"
