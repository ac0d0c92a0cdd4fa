"""Checks the write-ahead log of a data directory before SQLite opens it, and refuses a log that is damaged.

SQLite reads a log up to the first frame with a wrong checksum, and ignores all later frames without an error.
`stream_storage.sqlite.wal.scan_machine` judges such a frame. This module opens, copies, cuts and replaces the files."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple
from urllib.parse import quote

import structlog

from ockam.files.durable_files import create_private, rename_durably
from stream_storage.directory_lock import FILE_NAME as LOCK_NAME
from stream_storage.directory_lock import left_in_this_boot, owner_lives
from stream_storage.errors import MessagesBehind, StorageError, WalDamaged
from stream_storage.sqlite.errors import mapped
from stream_storage.sqlite.leftovers import SURVEY_PREFIX
from stream_storage.sqlite.wal import scan_machine
from stream_storage.sqlite.wal.scan_machine import How, WalState

logger = structlog.get_logger(__name__)

WAL_SUFFIX: Final = "-wal"
SHM_SUFFIX: Final = "-shm"
KEPT_SUFFIX: Final = ".damaged"
PAGE_BYTES: Final = 8192
"""The page size that is assumed if neither the database file nor the log has a valid one."""
CHUNK_BYTES: Final = 1024 * 1024
_MAGIC: Final = b"SQLite format 3\0"


class CheckedWal(NamedTuple):
    """An open write-ahead log that has been checked. find_page: reads a page of the database file."""

    wal: scan_machine.WalReader
    found: scan_machine.Scan
    verdict: WalState
    find_page: scan_machine.FindPage


def wal_path(database: Path) -> Path:
    return database.with_name(database.name + WAL_SUFFIX)


def prepare_log(database: Path, *, rebooted: bool) -> None:
    """Prepares the write-ahead log of a database, so that SQLite reads the whole log. The caller holds the lock on the
    directory, and no connection has the database open. Raises WalDamaged and other StorageError.

    rebooted: whether the machine could have restarted since the log was written."""
    with mapped(), examined(database, rebooted=rebooted) as log:
        if log is not None:
            _check_not_alone(database, log)
        if log is None or log.verdict is WalState.SOUND:
            return
        # A damaged log stays as it is, and a copy is made.
        if log.verdict is WalState.DAMAGED:
            raise _damaged_and_kept(database, log)
        # Frames after the last commit, which a kill or a power cut can leave, are cut off: later commits would
        # overwrite only some of them, and the others would then look like damage.
        if log.verdict is WalState.TORN:
            _cut(database, log)
            return
        # The last transaction will be changed or lost. Keep a copy of the log, so that a user can inspect it.
        kept = keep_copy(database)
        behind = list_behind(database, log.wal, log.found)
        if log.verdict is WalState.COMPLETED:
            install_log(database, rebuild(log.wal, log.found))
        else:
            _cut(database, log)
        logger.warning(
            "wal_end_completed" if log.verdict is WalState.COMPLETED else "wal_end_cut",
            frames=log.found.end - log.found.good,
            unreadable=len(log.found.damaged),
            behind=None if behind is None else [str(each) for each in behind],
            copy=str(kept),
        )


def _check_not_alone(database: Path, log: CheckedWal) -> None:
    """Raises StorageError if the log has commits and the database file is missing or empty: SQLite would create a new
    database and remove the log. No power cut causes this: a node syncs a new database before it begins the log."""
    found = log.found
    if (found.good or found.commits) and not (database.exists() and database.stat().st_size):
        raise StorageError(
            f"there is a write-ahead log of {found.frames} frames in {database.parent}, and no database to it; put "
            f"{database.name} back where it was lost, or move {wal_path(database).name} away to begin anew"
        )


@mapped()
def refuse_damaged(database: Path) -> None:
    """Raises WalDamaged if the log of a database that a reader opens is damaged, unless a running node has checked it.
    Raises it also for a log that the next start would complete. A log whose last transaction the next start would cut
    off is accepted: that transaction was probably never confirmed."""
    if owner_lives(database.parent) and in_use(database.parent):
        return
    with examined(database, rebooted=not left_in_this_boot(database.parent)) as log:
        if log is None or log.verdict in (WalState.SOUND, WalState.TORN, WalState.CUT):
            return
        # Check again whether a node runs: a node that started meanwhile may have written to the log while it was
        # read here.
        if not in_use(database.parent):
            raise damaged_error(database, log, kept=None)


def in_use(directory: Path) -> bool:
    """Returns whether a node holds the lock on the data directory now. If none does, the lock is taken for a moment, in
    which a node would fail to start: call this only if a node probably runs, or could not start anyway."""
    try:
        lock = os.open(directory / LOCK_NAME, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


@contextmanager
def examined(database: Path, *, rebooted: bool) -> Iterator[CheckedWal | None]:
    """Opens and checks the write-ahead log. Yields the result, or None without a log or for an empty one. Raises
    OSError."""
    try:
        opened = wal_path(database).open("rb")
    except FileNotFoundError:
        yield None
        return
    with opened as log, open_database(database) as (page_bytes, find_page):
        size_bytes = os.fstat(log.fileno()).st_size
        if not size_bytes:
            yield None
            return
        wal = scan_machine.WalReader(lambda offset, size: os.pread(log.fileno(), size, offset), size_bytes, page_bytes)
        found = scan_machine.scan(wal, find_page)
        in_file = not found.header_valid and scan_machine.is_in_file(wal, found, find_page)
        yield CheckedWal(wal, found, scan_machine.judge(found, rebooted=rebooted, in_file=in_file), find_page)


@contextmanager
def open_database(database: Path) -> Iterator[tuple[int, scan_machine.FindPage]]:
    """Opens a database file. Yields the page size in bytes, and a function that returns a page by its number, or
    None."""
    try:
        opened: BinaryIO | None = database.open("rb")
    except FileNotFoundError:
        opened = None
    if opened is None:
        yield PAGE_BYTES, lambda number: None
        return
    with opened as file:
        header = os.pread(file.fileno(), 100, 0)
        size = int.from_bytes(header[16:18], "big")
        page_bytes = 65536 if size == 1 else size
        if header[:16] != _MAGIC or page_bytes not in scan_machine.PAGE_SIZES:
            page_bytes = PAGE_BYTES

        def find_page(number: int) -> bytes | None:
            if not 0 < number < 2**32:
                return None
            page = os.pread(file.fileno(), page_bytes, (number - 1) * page_bytes)
            return page if len(page) == page_bytes else None

        yield page_bytes, find_page


def _damaged_and_kept(database: Path, log: CheckedWal) -> WalDamaged:
    """Copies the damaged log, if possible, and returns WalDamaged. The log itself is not changed."""
    try:
        kept = keep_copy(database)
    except OSError as error:
        logger.warning("damaged_log_not_copied", reason=str(error), do="free space, or copy the data directory away")
        kept = None
    return damaged_error(database, log, kept=kept)


def damaged_error(database: Path, log: CheckedWal, kept: Path | None) -> WalDamaged:
    """Returns the error about a damaged log. kept: the path of its copy, or None."""
    found = log.found
    return WalDamaged(
        database.parent,
        bad=found.bad,
        frames=found.end - found.bad + 1,
        commits=len(found.commits),
        lost=len(found.lost),
        behind=list_behind(database, log.wal, found),
        kept=kept,
    )


def keep_copy(database: Path) -> Path:
    """Copies the write-ahead log durably to a file in its folder, and returns its path. The name has a hash of the
    content, so the same log is copied once, and no copy is overwritten. Raises OSError."""
    source = wal_path(database)
    with source.open("rb") as reading:
        digest = hashlib.file_digest(reading, "sha256").hexdigest()
    kept = source.with_name(f"{source.name}.{digest[:16]}{KEPT_SUFFIX}")
    if not kept.exists():
        with source.open("rb") as reading:
            _write_synced(kept, iter(lambda: reading.read(CHUNK_BYTES), b""))
    return kept


def install_log(database: Path, pieces: Iterable[bytes]) -> None:
    """Replaces the log, while no connection has the database open, by one rename: a kill or a power cut leaves the old
    log or the new log. Raises OSError."""
    # Remove SQLite's file of shared memory, since it describes the old log.
    database.with_name(database.name + SHM_SUFFIX).unlink(missing_ok=True)
    _write_synced(wal_path(database), pieces)


def _cut(database: Path, log: CheckedWal) -> None:
    """Cuts off the log after the last commit that SQLite reads. If there is none, the log becomes empty."""
    size_bytes = log.wal.offset(log.found.good + 1) if log.found.good else 0
    with wal_path(database).open("rb+") as file:
        file.truncate(size_bytes)
        os.fsync(file.fileno())


def _write_synced(path: Path, pieces: Iterable[bytes]) -> None:
    part = path.with_name(path.name + ".part")
    try:
        with create_private(part) as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        rename_durably(part, path)
    finally:
        part.unlink(missing_ok=True)


def list_behind(database: Path, wal: scan_machine.WalReader, found: scan_machine.Scan) -> list[MessagesBehind] | None:
    """Returns the messages of each stream-partition in the log after `found.good`; None if SQLite cannot read them.
    SQLite reads the database with the log up to the damage, and with the whole log: the difference is the messages."""
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


def rebuild(wal: scan_machine.WalReader, found: scan_machine.Scan) -> Iterator[bytes]:
    """Yields a new log in pieces: the frames up to the last commit, with corrected pages and correct checksums. A
    damaged page is written as it was read if its right content is not known, or if a later frame has the same page."""
    yield from rewrite(wal, found.end, {each.frame: each for each in found.damaged})


def rewrite(wal: scan_machine.WalReader, end: int, corrected: dict[int, scan_machine.Damage]) -> Iterator[bytes]:
    """Yields a new log in pieces: a header and the first `end` frames, with correct checksums and corrected pages. A
    frame with an unrecovered page and an impossible page number is omitted."""
    last = corrected.get(end)
    pages = wal.head(end).commit if last is None else last.commit
    magic = scan_machine.MAGIC | wal.big_endian
    salts = scan_machine.PAIR.unpack(wal.salts)
    header = scan_machine.HEADER.pack(magic, scan_machine.VERSION, wal.page_bytes, wal.sequence, *salts)
    sums = scan_machine.checksum(header, (0, 0), wal.big_endian)
    yield header + scan_machine.PAIR.pack(*sums)
    for number in range(1, end + 1):
        head, damage = wal.head(number), corrected.get(number)
        if damage is not None and damage.how in (How.LOST, How.DOUBT) and not 0 < damage.page <= pages:
            continue
        page = head.page if damage is None else damage.page
        commit = head.commit if damage is None else damage.commit
        content = wal.page(number) if damage is None or damage.content is None else damage.content
        start = scan_machine.PAIR.pack(page, commit)
        sums = scan_machine.checksum(start + content, sums, wal.big_endian)
        yield start + wal.salts + scan_machine.PAIR.pack(*sums) + content
