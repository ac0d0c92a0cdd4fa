"""Opens a single database file that stands outside a data directory, such as one that Litestream has restored.

Such a file has no manifest and no lock. So this module checks that the file is complete and is a node's database. It
changes nothing, and does not read the messages.
"""

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
    """Returns a context manager that gives a session which reads the database in `file`.

    SQLite opens the file as `immutable`, so it creates no other file in the folder. Raises BackupError if the file is
    missing, is no node's database or is not complete, and DatabaseTooNew if it needs a newer program.
    """
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
    """Raises BackupError if the file cannot be opened, or if a journal beside the file has a part of the database."""
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
