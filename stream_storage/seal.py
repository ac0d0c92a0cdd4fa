"""Computes and checks seals: checksums of the rows that are not messages, such as streams and saved indexes.

    seal           = CRC-32 of the table's name and of every other column, in the order of the table
    of a position  = (CRC-32 of the table's name, key, index and time + D created_us + E generation) mod 2**61 - 1
    seal of stream = (CRC-32 of name, partition, creation and attributes + A first_index + B next_index + C size_bytes)
                     mod 2**61 - 1

The CRC-32 is computed over Python's `ascii` of a tuple of the table's name and the values. A, B and C are FIRST_FACTOR,
NEXT_FACTOR and SIZE_FACTOR, D and E are CREATED_FACTOR and GENERATION_FACTOR. The seal is linear in the numbers that
appends, deletions and saves change. So an UPDATE of these numbers adds to the old seal, without reading the row, and
the seal of a damaged row stays wrong. Seals do not protect against an attacker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Generic, TypeVar
from zlib import crc32

import msgspec
from sqlalchemy import BigInteger, Column, Table, bindparam, delete, insert, select

from stream_storage.contract import Session
from stream_storage.errors import DatabaseCorrupt, corrupt_text
from stream_storage.statement import compiled

SEAL: Final = "seal"
MODULUS: Final = 2**61 - 1
"""A prime, so a change of one number by less than this changes the seal. The sums fit into 64-bit integers."""
FIRST_FACTOR, NEXT_FACTOR, SIZE_FACTOR = 1_000_003, 1_000_033, 1_000_037
CREATED_FACTOR, GENERATION_FACTOR = 101, 103
"""Creation time and generation are microseconds, so their products with these factors stay far below the modulus."""
STREAM_COLUMNS: Final = ("name", "partition", "created_us", "attributes", "first_index", "next_index", "size_bytes")
"""The arguments of `stream_seal`, in its order."""

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
    """Returns the column for the seal, which must be the last column of a table."""
    return Column(SEAL, BigInteger, nullable=False, server_default="0")


def seal_of(table: str, values: Iterable[object]) -> int:
    """Returns the seal of a row that is neither a stream nor a position. values: of all columns but the seal."""
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
    """Returns the seal of a stream's row; None if an index or the size is no integer, which only damage can cause."""
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
    """Returns the seal of a saved position; None if the creation time or the generation is no integer."""
    if not isinstance(created_us, int) or not isinstance(generation, int):
        return None
    fixed = seal_of("saved_indexes", (client_id, stream_name, partition, index, saved_us))
    return (fixed + CREATED_FACTOR * created_us + GENERATION_FACTOR * generation) % MODULUS


def row_seal(table: str, values: Sequence[object]) -> int | None:
    """Returns the seal of a row that is no stream. In schema version 2, a position has only the first five values."""
    is_marked = table == "saved_indexes" and len(values) == 7
    return position_seal(*values) if is_marked else seal_of(table, values)


def check_sealed(table: str, row: Sequence[object], do: str) -> None:
    """Raises DatabaseCorrupt if the last value of a row that is no stream is not its seal. do: advice for the user."""
    if row[-1] != row_seal(table, row[:-1]):
        named = ", ".join(repr(value) for value in row[:3])
        raise DatabaseCorrupt(f"a row of {table} is not what was written ({named}, …): {do}")


def is_sealed(table: str, columns: Sequence[str], row: Sequence[object]) -> bool:
    """Returns whether the seal, the last value of `row`, is right. columns: the names of the other columns."""
    if table != "streams":
        return row[-1] == row_seal(table, row[:-1])
    values = dict(zip(columns, row, strict=False))
    return row[-1] == stream_seal(*(values.get(name) for name in STREAM_COLUMNS))


RowT = TypeVar("RowT", bound=msgspec.Struct)


class SealedRows(Generic[RowT]):
    """The rows of one table, as structs. Functions that write are called in a transaction.

    row: the struct, with a field for each column but the seal, in the order of the table.
    damaged: the text about a damaged row, with the id of its stream in the braces."""

    def __init__(self, table: Table, row: type[RowT], damaged: str) -> None:
        of_stream = table.c.stream_id == bindparam("stream_id")
        rows = select(*table.columns).order_by(*table.primary_key.columns)
        self._name, self._row, self._damaged = table.name, row, damaged
        self._columns = tuple(column.name for column in table.columns)
        self._all = compiled(rows)
        self._of_stream = compiled(rows.where(of_stream), "stream_id")
        self._delete = compiled(delete(table).where(of_stream), "stream_id")
        self._insert = compiled(insert(table), *self._columns)

    def all(self, session: Session) -> list[RowT]:
        """Returns the rows of all streams, in the order of their keys. Raises DatabaseCorrupt."""
        return [self._checked(row) for row in session.execute(self._all).fetchall()]

    def of(self, session: Session, stream_id: int) -> list[RowT]:
        """Returns the rows of one stream, in the order of their keys. Raises DatabaseCorrupt."""
        return [self._checked(row) for row in session.execute(self._of_stream, (stream_id,)).fetchall()]

    def write(self, session: Session, stream_id: int, rows: Iterable[RowT]) -> None:
        """Replaces all rows of a stream."""
        self.forget(session, stream_id)
        # Members of enumerations and booleans are stored, and sealed, as numbers.
        made = map(msgspec.structs.astuple, rows)
        values = [[int(value) if isinstance(value, int) else value for value in row] for row in made]
        session.execute_many(self._insert, [(*each, seal_of(self._name, each)) for each in values])

    def forget(self, session: Session, stream_id: int) -> None:
        session.execute(self._delete, (stream_id,))

    def _checked(self, values: tuple[Any, ...]) -> RowT:
        if not is_sealed(self._name, self._columns[:-1], values):
            raise DatabaseCorrupt(corrupt_text(self._damaged.format(values[0])))
        fields = dict(zip(self._row.__struct_fields__, values[:-1], strict=True))
        return msgspec.convert(fields, self._row, strict=False)
