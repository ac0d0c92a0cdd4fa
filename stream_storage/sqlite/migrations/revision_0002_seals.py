"""Adds a seal, a checksum of the row, to every row that is not a message. `stream_storage.seal` describes seals."""

from __future__ import annotations

import sqlite3
from zlib import crc32

import sqlalchemy
from alembic import op

revision = "0002"
down_revision = "0001"

SEAL = "seal"
SEALED = (
    "streams",
    "saved_indexes",
    "lease_fences",
    "lease_floor",
    "time_falls",
    "block_chains",
    "block_index",
    "block_evicted",
    "backfill_targets",
)
STREAM_COLUMNS = "name, partition, created_us, attributes, first_index, next_index, size_bytes"


def upgrade() -> None:
    """Adds the column to every table that exists and lacks it, and computes the seal of every row."""
    connection = op.get_bind().connection.driver_connection
    assert isinstance(connection, sqlite3.Connection)
    # SQL calls these two functions for each row, so that no row has to pass through Python and back.
    connection.create_function("seal_of_row", -1, lambda table, *values: _seal(table, values))
    connection.create_function("seal_of_stream", 7, _stream_seal)
    for table in SEALED:
        names = [row[1] for row in connection.execute(f"PRAGMA table_info('{table}')")]
        if not names or SEAL in names:
            continue
        op.add_column(table, sqlalchemy.Column(SEAL, sqlalchemy.BigInteger, nullable=False, server_default="0"))
        if table == "streams":
            seal = f"seal_of_stream({STREAM_COLUMNS})"
        else:
            seal = f"seal_of_row('{table}', {', '.join(f'{chr(34)}{name}{chr(34)}' for name in names)})"
        connection.execute(f'UPDATE "{table}" SET {SEAL} = {seal}')


def _seal(table: str, values: tuple[object, ...]) -> int:
    return crc32(ascii((table, *values)).encode())


def _stream_seal(
    name: object, partition: object, created_us: object, attributes: object, first: object, end: object, size: object
) -> int | None:
    if not isinstance(first, int) or not isinstance(end, int) or not isinstance(size, int):
        return None
    fixed = _seal("streams", (name, partition, created_us, attributes))
    return (fixed + 1_000_003 * first + 1_000_033 * end + 1_000_037 * size) % (2**61 - 1)
