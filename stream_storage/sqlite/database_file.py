"""Opens a database file outside a data directory, such as one that Litestream has restored, without a manifest or a
lock. It checks that the file is complete and is the database of a node. It changes nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from stream_storage.errors import DatabaseTooNew
from stream_storage.sqlite.backup import BackupError
from stream_storage.sqlite.migrate import version_of
from stream_storage.sqlite.schema import APPLICATION_ID, SCHEMA_VERSION
from stream_storage.sqlite.session import SqliteSession

JOURNAL_SUFFIXES: Final = ("-wal", "-journal")
_DO: Final = "name the file that `litestream restore` wrote"


@contextmanager
def opened_file(file: Path) -> Iterator[SqliteSession]:
    """Yields a session that reads the database in `file`, opened as `immutable`, so that SQLite creates no other file.
    Raises BackupError if the file is missing, incomplete or no node's database, and DatabaseTooNew."""
    _check_complete(file)
    location = f"file:{quote(str(file.absolute()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(location, uri=True, isolation_level=None)) as connection:
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            if application != APPLICATION_ID:
                raise BackupError(f"{file} is no database of a node; {_DO}")
            version = version_of(connection)
            if version > SCHEMA_VERSION:
                raise DatabaseTooNew(version, SCHEMA_VERSION)
            yield SqliteSession(connection, writes=False)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise BackupError(f"{file} cannot be read as a database: {error}; {_DO}") from error


def _check_complete(file: Path) -> None:
    """Raises BackupError if the file cannot be read, or if a journal beside it has a part of the database."""
    try:
        with file.open("rb"):
            pass
        for journal in (file.with_name(file.name + suffix) for suffix in JOURNAL_SUFFIXES):
            if journal.exists() and journal.stat().st_size:
                raise BackupError(
                    f"{file} is not complete: {journal.name} beside it has a part of it; {_DO}, or copy the database "
                    "of a node with `stream-node backup`"
                )
    except OSError as error:
        raise BackupError(f"{file} cannot be read: {error.strerror or error}; {_DO}") from error
