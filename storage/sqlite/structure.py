"""The steps of opening a database file that read or write its tables."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import structlog

from storage.errors import DatabaseCorrupt, corrupt_text
from storage.seal import stream_seal
from storage.sqlite.errors import storage_error
from storage.sqlite.schema import APPLICATION_ID, create_statements
from storage.sqlite.session import SqliteSession
from storage.sqlite.statements import SEALED_STREAMS

logger = structlog.get_logger(__name__)

CHECKED_BYTES_MAX = 1024 * 1024 * 1024
"""The size of the largest database file whose structure is checked after an unclean stop (1 GiB). Checking a larger
file would delay the start of the node by minutes."""


def check_structure(connection: sqlite3.Connection, file: Path) -> None:
    size_bytes = file.stat().st_size
    if size_bytes > CHECKED_BYTES_MAX:
        logger.warning("structure_not_checked", size_bytes=size_bytes, do="run `stream-node verify` when it suits")
        return
    try:
        problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        raise storage_error(error) from error
    if problem != "ok":
        raise DatabaseCorrupt(corrupt_text(problem))


def create_schema(session: SqliteSession, version: int | None) -> None:
    """Create missing tables in one transaction. Writes nothing if nothing is missing.

    version: the schema version that is written, with APPLICATION_ID, into a new file; None for an existing file.
    """
    session.begin()
    try:
        for statement in create_statements():
            session.connection.execute(statement)
        if version is not None:
            session.connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            session.connection.execute(f"PRAGMA user_version={version}")
    except sqlite3.Error as error:
        raise storage_error(error) from error
    session.commit()


def check_streams(connection: sqlite3.Connection) -> None:
    try:
        for name, partition, *columns in connection.execute(SEALED_STREAMS):
            if columns.pop() != stream_seal(name, partition, *columns):
                reason = f"the row of the stream {name!r}/{partition} is not what was written"
                raise DatabaseCorrupt(corrupt_text(reason))
    except sqlite3.Error as error:
        raise storage_error(error) from error
