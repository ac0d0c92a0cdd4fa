"""Seals: the checksums of rows other than messages, which decide what a consumer gets. They resist no attacker.

    seal           = CRC-32 of the table's name and of every other column, in the order of the table
    seal of stream = (CRC-32 of name, partition, creation and attributes + A first_index + B next_index + C size_bytes)
                     mod 2**61 - 1

The CRC-32 is of the table's name and the values as Python's `ascii` writes a tuple of them: no two rows are written
alike, the characters do not depend on a version of Unicode, and nothing is faster. The seal of a stream is
linear in the three numbers that change with each append: SQL moves it along with them, and no row has to be read. A row
that was damaged before stays so: the difference moves along too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final
from zlib import crc32

from sqlalchemy import BigInteger, Column

from storage.errors import DatabaseCorrupt

SEAL: Final = "seal"
MODULUS: Final = 2**61 - 1
"""A prime: no change of one number by less than it leaves the seal as it was, and SQLite's integers hold the sums."""
FIRST_FACTOR, NEXT_FACTOR, SIZE_FACTOR = 1_000_003, 1_000_033, 1_000_037
STREAM_COLUMNS: Final = "name, partition, created_us, attributes, first_index, next_index, size_bytes"
"""What `stream_seal` takes, in its order."""


def seal_column() -> Column[int]:
    """The last column of a table whose rows are sealed."""
    return Column(SEAL, BigInteger, nullable=False, server_default="0")


def seal_of(table: str, values: Iterable[object]) -> int:
    """The seal of a row. values: of all columns but the seal."""
    return crc32(ascii((table, *values)).encode())


def stream_seal(
    name: object,
    partition: object,
    created_us: object,
    attributes: object,
    first_index: object,
    next_index: object,
    size_bytes: object,
) -> int | None:
    """The seal of a stream's row; None where a number is none, which no row that was written has."""
    if not isinstance(first_index, int) or not isinstance(next_index, int) or not isinstance(size_bytes, int):
        return None
    fixed = seal_of("streams", (name, partition, created_us, attributes))
    return (fixed + FIRST_FACTOR * first_index + NEXT_FACTOR * next_index + SIZE_FACTOR * size_bytes) % MODULUS


def find_broken(connection: sqlite3.Connection, table: str) -> Iterable[str]:
    """Each row of a sealed table that is not what was written, by the columns that name it. Raises sqlite3.Error."""
    columns = connection.execute(f"PRAGMA table_info('{table}')").fetchall()
    names = [row[1] for row in columns]
    keys = [row[1] for row in sorted(columns, key=lambda row: row[5]) if row[5]]
    others = [name for name in names if name != SEAL]
    quoted = ", ".join(f'"{name}"' for name in [*others, SEAL])
    for row in connection.execute(f'SELECT {quoted} FROM "{table}" NOT INDEXED'):
        if not is_sealed(table, others, row):
            named = ", ".join(f"{key} {row[others.index(key)]!r}" for key in keys)
            yield f"the row of {table} with {named} is not what was written (its seal differs)"


def check_sealed(table: str, row: Sequence[object], do: str) -> None:
    """Raises DatabaseCorrupt where a row, whose seal comes last, is not what was written. do: how to put it right."""
    if row[-1] != seal_of(table, row[:-1]):
        named = ", ".join(repr(value) for value in row[:3])
        raise DatabaseCorrupt(f"a row of {table} is not what was written ({named}, …): {do}")


def is_sealed(table: str, columns: Sequence[str], row: Sequence[object]) -> bool:
    """Whether a row is what was written. columns: its columns but the seal, which comes last in `row`."""
    if table != "streams":
        return row[-1] == seal_of(table, row[:-1])
    values = dict(zip(columns, row, strict=False))
    return row[-1] == stream_seal(*(values.get(name) for name in STREAM_COLUMNS.split(", ")))
