"""Migrates a database with an older schema version to the current version. The caller must have begun a transaction.

This module names the tables of other packages, since a migration must change every table in the file, even the tables
of packages that are not imported.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from storage.schema import SCHEMA_VERSION
from storage.seal import SEAL, STREAM_COLUMNS, seal_of, stream_seal

SEALED: Final = (
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
"""The tables whose rows have a seal (a checksum of the row, see `storage.seal`) since schema version 2."""


def migrate(connection: sqlite3.Connection) -> None:
    """Migrate the database from its schema version to SCHEMA_VERSION. Raises sqlite3.Error."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == 1:
        _seal_all(connection)
    if 0 < version < SCHEMA_VERSION:
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def has_seal(connection: sqlite3.Connection, table: str) -> bool | None:
    """Whether a table has a column for the seal, the checksum of a row. Returns None if the table does not exist."""
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info('{table}')")]
    return SEAL in columns if columns else None


def _seal_all(connection: sqlite3.Connection) -> None:
    """Add the seal column to every table of SEALED, and compute the seal (a checksum) of every row."""
    # SQL calls these two functions for each row, so that no row has to pass through Python and back.
    connection.create_function("seal_of_row", -1, lambda table, *values: seal_of(table, values))
    connection.create_function("seal_of_stream", 7, stream_seal)
    for table in SEALED:
        if has_seal(connection, table) is not False:
            continue
        names = [row[1] for row in connection.execute(f"PRAGMA table_info('{table}')")]
        connection.execute(f'ALTER TABLE "{table}" ADD COLUMN {SEAL} BIGINT NOT NULL DEFAULT 0')
        if table == "streams":
            seal = f"seal_of_stream({STREAM_COLUMNS})"
        else:
            seal = f"seal_of_row('{table}', {', '.join(f'{chr(34)}{name}{chr(34)}' for name in names)})"
        connection.execute(f'UPDATE "{table}" SET {SEAL} = {seal}')
