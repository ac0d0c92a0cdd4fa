"""Finds the streams that have messages after the damage in a write-ahead log, and makes a new log from the scan of an
old one (`stream_storage.sqlite.wal.scan_machine` draws the format). It repairs nothing.

To find the messages, SQLite opens the database file twice, to read, with the log up to the damage and with the whole
log: the difference shows the messages."""

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
from stream_storage.sqlite.wal.checksum import checksum
from stream_storage.sqlite.wal.scan_machine import HEADER, MAGIC, PAIR, VERSION, Damage, How, Scan, WalReader


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


def rebuild(wal: WalReader, found: Scan) -> Iterator[bytes]:
    """Yields a new log in pieces: the frames up to the last commit, with corrected pages and correct checksums. A
    damaged page is written as it was read if its right content is not known, or if a later frame has the same page."""
    yield from rewrite(wal, found.end, {each.frame: each for each in found.damaged})


def rewrite(wal: WalReader, end: int, corrected: dict[int, Damage]) -> Iterator[bytes]:
    """Yields a new log in pieces: a header and the first `end` frames, with correct checksums and corrected pages. A
    frame with an unrecovered page and an impossible page number is omitted."""
    last = corrected.get(end)
    pages = wal.head(end).commit if last is None else last.commit
    magic = MAGIC | wal.big_endian
    salts = PAIR.unpack(wal.salts)
    header = HEADER.pack(magic, VERSION, wal.page_bytes, wal.sequence, *salts)
    sums = checksum(header, (0, 0), wal.big_endian)
    yield header + PAIR.pack(*sums)
    for number in range(1, end + 1):
        head, damage = wal.head(number), corrected.get(number)
        if damage is not None and damage.how in (How.LOST, How.DOUBT) and not 0 < damage.page <= pages:
            continue
        page = head.page if damage is None else damage.page
        commit = head.commit if damage is None else damage.commit
        content = wal.page(number) if damage is None or damage.content is None else damage.content
        start = PAIR.pack(page, commit)
        sums = checksum(start + content, sums, wal.big_endian)
        yield start + wal.salts + PAIR.pack(*sums) + content
