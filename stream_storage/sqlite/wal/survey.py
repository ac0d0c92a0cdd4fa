"""Finds the streams that have messages after the damage in a write-ahead log. SQLite reads the log for this module.

SQLite opens the same database file twice, under two other names: once with the log up to the damage, and once with
the whole log. The difference shows the messages after the damage. The database file is opened only for reading.
Nothing is repaired.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from stream_storage.errors import Behind
from stream_storage.sqlite.leftovers import SURVEY_PREFIX
from stream_storage.sqlite.wal.rewrite import rebuild, rewrite
from stream_storage.sqlite.wal.scan_machine import Scan, WalReader


def list_behind(database: Path, wal: WalReader, found: Scan) -> list[Behind] | None:
    """Returns the messages of each stream-partition in the log after `found.good`, the last commit before the damage.
    Returns None if SQLite cannot read these messages.
    """
    try:
        before = stream_ends(database, rewrite(wal, found.good, {}) if found.good else ())
        after = stream_ends(database, rebuild(wal, found))
    except (sqlite3.Error, OSError):
        return None
    behind = []
    for (name, partition), (first, end) in sorted(after.items()):
        start = max(first, before.get((name, partition), (0, 0))[1])
        if start < end:
            behind.append(Behind(name, partition, start, end))
    return behind


def stream_ends(database: Path, log: Iterable[bytes]) -> dict[tuple[str, int], tuple[int, int]]:
    """Returns the first and next index of every stream-partition, as SQLite reads them from the database with a
    given log.

    log: the pieces of the log. Raises sqlite3.Error, OSError.
    """
    with opened_with_log(database, log) as connection:
        if not connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'streams'").fetchone()[0]:
            return {}
        rows = connection.execute("SELECT name, partition, first_index, next_index FROM streams").fetchall()
    for name, *numbers in rows:
        # Such a log lacks pages, so SQLite may show rows that nobody ever wrote.
        if not isinstance(name, str) or not all(isinstance(number, int) for number in numbers):
            raise sqlite3.DatabaseError(f"the table of streams has the row {name!r}, {numbers}")
    return {(name, partition): (first, end) for name, partition, first, end in rows}


@contextmanager
def opened_with_log(database: Path, log: Iterable[bytes]) -> Iterator[sqlite3.Connection]:
    """Opens a database with another write-ahead log, for reading only, and yields the connection.

    In a temporary folder, this function makes a hard link to the database file and writes the given log. Raises
    sqlite3.Error, OSError.

    log: the pieces of the log.
    """
    folder = Path(tempfile.mkdtemp(prefix=SURVEY_PREFIX, dir=database.parent))
    try:
        link = folder / database.name
        os.link(database, link)
        with link.with_name(link.name + "-wal").open("wb") as file:
            for piece in log:
                file.write(piece)
        with closing(sqlite3.connect(f"file:{quote(str(link.absolute()))}?mode=ro", uri=True)) as connection:
            connection.isolation_level = None
            yield connection
    finally:
        shutil.rmtree(folder, ignore_errors=True)
