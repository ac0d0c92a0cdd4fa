"""Computes and checks seals: checksums of the rows that are not messages, such as streams and saved indexes.

With a damaged row of this kind, a consumer would get the wrong messages. Seals detect damage. They do not protect
against an attacker.

    seal           = CRC-32 of the table's name and of every other column, in the order of the table
    of a position  = (CRC-32 of the table's name, key, index and time + D created_us + E generation) mod 2**61 - 1
    seal of stream = (CRC-32 of name, partition, creation and attributes + A first_index + B next_index + C size_bytes)
                     mod 2**61 - 1

The CRC-32 is computed over a text: Python's `ascii` of a tuple of the table's name and the values. Two different rows
have different texts, the text does not depend on a version of Unicode, and no other encoding is faster.

A, B and C are FIRST_FACTOR, NEXT_FACTOR and SIZE_FACTOR. So the seal of a stream is linear in first_index, next_index
and size_bytes, the numbers that appends and deletions change. Because of this, the UPDATE statement that changes these
numbers also changes the seal, without reading the row. If the row was damaged before, the seal is still wrong after the
UPDATE, so the damage is still found.

D and E are CREATED_FACTOR and GENERATION_FACTOR. The seal of a saved position is linear in created_us and generation,
so that a save of the specification, which has no answer, keeps both numbers without reading the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from zlib import crc32

from sqlalchemy import BigInteger, Column

from stream_storage.errors import DatabaseCorrupt

SEAL: Final = "seal"
MODULUS: Final = 2**61 - 1
"""The modulus of the stream seal. It is a prime, so a change of one number by less than the modulus always changes
the seal. The sums fit into the 64-bit integers of SQLite."""
FIRST_FACTOR, NEXT_FACTOR, SIZE_FACTOR = 1_000_003, 1_000_033, 1_000_037
CREATED_FACTOR, GENERATION_FACTOR = 101, 103
"""Both numbers are times in microseconds, so that their products stay far below the modulus."""
STREAM_COLUMNS: Final = "name, partition, created_us, attributes, first_index, next_index, size_bytes"
"""The columns of the table of streams that are the arguments of `stream_seal`, in the same order."""

SEALED: Final = (
    "streams",
    "saved_indexes",
    "lease_fences",
    "lease_floor",
    "time_falls",
    "block_chains",
    "block_index",
    "block_evicted",
    "block_damaged",
    "backfill_targets",
    "stream_histories",
    "stream_mirrors",
    "stream_followers",
    "stream_promotions",
    "worker_places",
    "stream_publishers",
)
"""The tables whose rows have a seal, since schema version 2. Tables of other packages are named here, because a file is
verified as a whole, even if these packages are not imported."""


def seal_column() -> Column[int]:
    """Returns the column for the seal (the checksum of a row). It must be the last column of a table."""
    return Column(SEAL, BigInteger, nullable=False, server_default="0")


def seal_of(table: str, values: Iterable[object]) -> int:
    """Returns the seal (a CRC-32) of a row that is neither the row of a stream nor a saved position.

    table: the name of the table.
    values: the values of all columns except the seal.
    """
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
    """Returns the seal (the checksum) of a stream's row. Returns None if an index or the size is not an integer, which
    only damage can cause."""
    if not isinstance(first_index, int) or not isinstance(next_index, int) or not isinstance(size_bytes, int):
        return None
    fixed = seal_of("streams", (name, partition, created_us, attributes))
    return (fixed + FIRST_FACTOR * first_index + NEXT_FACTOR * next_index + SIZE_FACTOR * size_bytes) % MODULUS


def position_seal(
    client_id: object,
    stream_name: object,
    partition: object,
    index: object,
    saved_us: object,
    created_us: object,
    generation: object,
) -> int | None:
    """Returns the seal (the checksum) of the row of a saved position. Returns None if the creation time or the
    generation is not an integer, which only damage can cause."""
    if not isinstance(created_us, int) or not isinstance(generation, int):
        return None
    fixed = seal_of("saved_indexes", (client_id, stream_name, partition, index, saved_us))
    return (fixed + CREATED_FACTOR * created_us + GENERATION_FACTOR * generation) % MODULUS


def row_seal(table: str, values: Sequence[object]) -> int | None:
    """Returns the seal of a row that is not the row of a stream. None: see `position_seal`.

    values: the values of all columns except the seal. In schema version 2, a position has only the first five.
    """
    is_marked = table == "saved_indexes" and len(values) == 7
    return position_seal(*values) if is_marked else seal_of(table, values)


def check_sealed(table: str, row: Sequence[object], do: str) -> None:
    """Raises DatabaseCorrupt if the seal of a row is wrong. Must not be used for the table of streams.

    row: the values of the row, with the seal last.
    do: the advice for the user in the text of the error.
    """
    if row[-1] != row_seal(table, row[:-1]):
        named = ", ".join(repr(value) for value in row[:3])
        raise DatabaseCorrupt(f"a row of {table} is not what was written ({named}, …): {do}")


def is_sealed(table: str, columns: Sequence[str], row: Sequence[object]) -> bool:
    """Whether the seal of a row is right, so that the row is undamaged.

    columns: the names of all columns except the seal.
    row: the values of the row, with the seal last.
    """
    if table != "streams":
        return row[-1] == row_seal(table, row[:-1])
    values = dict(zip(columns, row, strict=False))
    return row[-1] == stream_seal(*(values.get(name) for name in STREAM_COLUMNS.split(", ")))
