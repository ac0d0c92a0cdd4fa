"""Finds the streams that have messages after the damage in a write-ahead log. It repairs nothing.

SQLite opens the database file twice, to read, with the log up to the damage and with the whole log: the difference
shows the messages."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from stream_storage.errors import MessagesBehind
from stream_storage.sqlite.leftovers import SURVEY_PREFIX
from stream_storage.sqlite.wal.rewrite import rebuild, rewrite
from stream_storage.sqlite.wal.scan_machine import Scan, WalReader


def list_behind(database: Path, wal: WalReader, found: Scan) -> list[MessagesBehind] | None:
    """Returns the messages of each stream-partition in the log after `found.good`; None if SQLite cannot read them."""
    try:
        before = stream_ends(database, rewrite(wal, found.good, {}) if found.good else ())
        after = stream_ends(database, rebuild(wal, found))
    except (sqlite3.Error, OSError):
        return None
    behind = []
    for (name, partition), (first, end) in sorted(after.items()):
        start = max(first, before.get((name, partition), (0, 0))[1])
        if start < end:
            behind.append(MessagesBehind(name, partition, start, end))
    return behind


def stream_ends(database: Path, log: Iterable[bytes]) -> dict[tuple[str, int], tuple[int, int]]:
    """Returns the first and next index of every stream-partition, as SQLite reads them with a given log. Raises
    sqlite3.Error, OSError."""
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
    """Opens a database with another write-ahead log, by a hard link in a temporary folder, for reading only. Raises
    sqlite3.Error, OSError."""
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
