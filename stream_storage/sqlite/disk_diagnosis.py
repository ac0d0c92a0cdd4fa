"""Finds the cause of a disk error, in the thread of the error: no room left, a failing disk, or a damaged file.

A failed write: SQLite has one error code (SQLITE_IOERR_WRITE) for a failing disk, for a quota and for a limit on file
sizes, and Python has no access to the system's error number (`sqlite3_system_errno`). So this module tries to allocate
a new file in the folder. If that gets more room than a transaction needs, lack of room was not the cause.

A failed read: SQLite can report damage (SQLITE_CORRUPT) if the disk cannot read a part of the file. So this module
reads the file again without SQLite: for an unreadable part, the system then reports an error."""

from __future__ import annotations

import errno
import os
import sqlite3
from functools import cache
from pathlib import Path
from typing import Final

import structlog

from stream_storage.contract import Session
from stream_storage.errors import DatabaseCorrupt, DiskReadFailed, StorageError, WriteFailed
from stream_storage.sqlite.errors import storage_error
from stream_storage.sqlite.rows import connection_of

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
ROOM_BYTES = 32 * 1024 * 1024
"""The room that is tried: twice the largest append to one stream, so nearly every transaction needs less."""
CHECKED_BYTES_MAX = 1024 * 1024 * 1024
"""The largest file whose structure is checked after a failed read. Pushes wait during the check."""
READ_BYTES = 1024 * 1024
CHECK_IT = "check the disk, and run `stream-node verify`"
CHUNK = bytes(64 * 1024)
SUFFIXES = ("", "-wal", "-shm")

logger = structlog.get_logger(__name__)


def diagnose(error: StorageError, session: Session) -> StorageError:
    """Returns a more precise error if a test finds the cause of `error`, else `error` itself: DiskFull for a
    WriteFailed, DiskReadFailed for damage that only SQLite has reported. A wrong checksum of a message needs no
    test."""
    # A DatabaseCorrupt is fatal only if SQLite has reported it. Its `__cause__` would tell that too, but `raise … from`
    # in a compiled module does not set `__cause__`.
    by_sqlite = isinstance(error, DatabaseCorrupt) and error.fatal
    if not isinstance(error, WriteFailed) and not by_sqlite:
        return error
    path = connection_of(session).execute("PRAGMA database_list").fetchone()[2]
    if not path:
        return error
    if by_sqlite:
        found = _diagnose_read(session, Path(path))
    else:
        no_room = find_no_room(Path(path), ROOM_BYTES)
        found = None if no_room is None else storage_error(no_room)
    if found is None:
        return error
    logger.warning("disk_error_judged", was=str(error), found=str(found))
    found.__cause__ = error
    return found


def _diagnose_read(session: Session, database: Path) -> StorageError | None:
    """Returns DiskReadFailed if a part of the file cannot be read, or could not be read for a moment; None if the file
    is damaged, or too large to check."""
    # A damaged part of a file can still be read. A part that the disk cannot read gives an error.
    unreadable = find_unreadable(database)
    if unreadable is not None:
        return DiskReadFailed(f"a part of the database cannot be read: {unreadable}; {CHECK_IT}")
    if _size_bytes(database) > CHECKED_BYTES_MAX:
        return None
    try:
        (verdict,) = connection_of(session).execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error:
        return None
    if verdict != "ok":
        return None
    return DiskReadFailed(f"a part of the database could not be read for a moment; {CHECK_IT}")


def find_unreadable(database: Path) -> OSError | None:
    """Reads the whole database file and its write-ahead log, and returns the first OSError, or None. Without this,
    every failed read would count as damage, and damage stops all writing."""
    try:
        _read_all(_open_for_good(database))
        with database.with_name(database.name + "-wal").open("rb", buffering=0) as log:
            _read_all(log.fileno())
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    return None


@cache
def _open_for_good(database: Path) -> int:
    """Returns a descriptor of the database file. It is never closed: its close would drop SQLite's locks."""
    return os.open(database, os.O_RDONLY)


def _read_all(opened: int) -> None:
    at = 0
    while read := os.pread(opened, READ_BYTES, at):
        at += len(read)


def find_no_room(database: Path, size_bytes: int) -> OSError | None:
    """Returns the OSError with which the files of the database cannot grow by `size_bytes`; None if they can, or if the
    test is not possible."""
    probe = database.with_name(f"{database.name}-room")
    try:
        opened = os.open(probe, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # Without a name, no file remains if the process is killed.
            os.unlink(probe)
            # Ask for room after the end of the largest database file: that file would be the first to reach a limit
            # on file sizes.
            start = max(_size_bytes(database.with_name(database.name + suffix)) for suffix in SUFFIXES)
            take_room(opened, start, size_bytes)
        finally:
            os.close(opened)
    except OSError as error:
        return error if error.errno in NO_ROOM else None
    return None


def take_room(opened: int, start: int, size_bytes: int) -> None:
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(opened, start, size_bytes)
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
    for at in range(start, start + size_bytes, len(CHUNK)):
        os.pwrite(opened, CHUNK, at)


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
