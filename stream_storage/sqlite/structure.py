"""The steps of opening a database file that read or write its tables."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import structlog

from stream_storage.errors import DatabaseCorrupt, corrupt_text
from stream_storage.seal import SEALED
from stream_storage.sqlite.errors import mapped, storage_error
from stream_storage.sqlite.schema import APPLICATION_ID, create_statements
from stream_storage.sqlite.session import SqliteSession
from stream_storage.sqlite.verify import find_broken, has_seal

logger = structlog.get_logger(__name__)

CHECKED_BYTES_MAX = 1024 * 1024 * 1024
"""The largest file whose structure is checked after an unclean stop. A larger one would take minutes."""

TABLES_CHECKED_S_MAX = 10.0
"""The longest check of tables at a start. Those of 100,000 streams and as many positions take two seconds."""
NEEDED = ("streams", "lease_fences", "lease_floor", "worker_places")
"""A damaged row of these tables ends the start: the node would give an index or a fence twice. A damaged row of another
table fails the requests for it until it is set anew; a damaged row of a publisher is left out."""
PROGRESS_STEPS = 100_000
"""The number of steps of SQLite between two readings of the clock, some milliseconds."""


def check_structure(connection: sqlite3.Connection, file: Path) -> None:
    size_bytes = file.stat().st_size
    if size_bytes > CHECKED_BYTES_MAX:
        logger.warning("structure_not_checked", size_bytes=size_bytes, do="run `stream-node verify` when it suits")
        return
    with mapped():
        problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        raise DatabaseCorrupt(corrupt_text(problem))


def create_schema(session: SqliteSession, version: int | None) -> None:
    """Creates missing tables in one transaction. Raises StorageReadOnly if this user may only read the database.
    version: the schema version of a new file, which also gets APPLICATION_ID; None for an existing file."""
    _check_writable(session)
    session.begin()
    with mapped():
        for statement in create_statements():
            session.connection.execute(statement)
        if version is not None:
            session.connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            session.connection.execute(f"PRAGMA user_version={version}")
    session.commit()


@mapped()
def _check_writable(session: SqliteSession) -> None:
    """Raises StorageReadOnly if a trial write fails. It is undone, so nothing comes into the write-ahead log."""
    session.begin()
    try:
        (version,) = session.connection.execute("PRAGMA user_version").fetchone()
        session.connection.execute(f"PRAGMA user_version={version}")
    finally:
        session.rollback()


def check_tables(connection: sqlite3.Connection, seconds_max: float = TABLES_CHECKED_S_MAX) -> None:
    """Checks the list of tables, and all tables whose rows have seals, with their indexes. Ends with a warning after
    `seconds_max`. Raises DatabaseCorrupt."""
    deadline_s = time.monotonic() + seconds_max
    # SQLite calls this function while a statement runs, and ends the statement if the result is true.
    connection.set_progress_handler(lambda: time.monotonic() > deadline_s, PROGRESS_STEPS)
    try:
        # The list of tables comes first: a table that it lacks would be made anew, and empty.
        for table in ("sqlite_master", *SEALED):
            if table in SEALED and not has_seal(connection, table):
                continue
            # A seal shows a changed row, but not a missing one, or one that a damaged index hides: the node would begin
            # the stream anew. So SQLite checks the order of the rows, and compares each index with its table.
            (problem,) = connection.execute(f"PRAGMA integrity_check('{table}')").fetchone()
            if problem != "ok":
                raise DatabaseCorrupt(corrupt_text(f"table {table}: {problem.splitlines()[-1]}"))
            for problem in find_broken(connection, table) if table in SEALED else ():
                if table in NEEDED:
                    raise DatabaseCorrupt(corrupt_text(problem))
                logger.error("row_damaged", reason=problem, do="run `stream-node verify`; requests for this row fail")
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_INTERRUPT:
            raise storage_error(error) from error
        logger.warning("tables_not_checked", seconds=seconds_max, do="run `stream-node verify` when it suits")
    finally:
        connection.set_progress_handler(None, 0)
