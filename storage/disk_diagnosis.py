"""Finds out what an error of the disk was: no room left, a disk that fails, or a damaged file.

A failed write: SQLite has one error code (SQLITE_IOERR_WRITE) for a disk that fails, for a quota and for a limit on
file sizes; only a disk that is full to its last byte has another. The system's error number would tell, but Python has
no access to `sqlite3_system_errno`. So this module tries: if a new file beside the database can have more room than a
transaction needs, room was not what was missing.

A failed read: SQLite reports a part that the disk cannot read as damage (SQLITE_CORRUPT). So this module reads the file
again.

Both take place in the writing thread, once per error.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path
from typing import Final

import structlog

from storage.contract import Session
from storage.errors import DatabaseCorrupt, DiskReadFailed, StorageError, WriteFailed, storage_error

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
ROOM_BYTES = 32 * 1024 * 1024
"""Twice the most that one stream appends at once (a full mailbox), so more than nearly every transaction needs."""
CHECKED_BYTES_MAX = 1024 * 1024 * 1024
"""The structure of a larger file is not checked, since pushes wait meanwhile."""
READ_BYTES = 1024 * 1024
CHECK_IT = "check the disk, and run `stream-node verify`"
CHUNK = bytes(64 * 1024)
SUFFIXES = ("", "-wal", "-shm")
"""The database has files with its name and these suffixes."""

_opened: dict[Path, int] = {}

logger = structlog.get_logger(__name__)


def diagnose(error: StorageError, session: Session) -> StorageError:
    """The error, or the one that it really was.

    A WriteFailed becomes DiskFull if there is no room. A DatabaseCorrupt becomes DiskReadFailed if the file is not
    damaged but cannot be read.
    """
    if not isinstance(error, WriteFailed | DatabaseCorrupt):
        return error
    path = session.connection.execute("PRAGMA database_list").fetchone()[2]
    if not path:
        return error
    found = _diagnose_write(Path(path)) if isinstance(error, WriteFailed) else _diagnose_read(session, Path(path))
    if found is None:
        return error
    logger.warning("disk_error_judged", was=str(error), found=str(found))
    found.__cause__ = error
    return found


def _diagnose_write(database: Path) -> StorageError | None:
    missing = find_no_room(database, ROOM_BYTES)
    return None if missing is None else storage_error(missing)


def _diagnose_read(session: Session, database: Path) -> StorageError | None:
    """DiskReadFailed if a part of the file cannot be read, or can be read on the second try; None if it is damaged."""
    # Damage can be read, again and again; a part that the disk lost cannot.
    unreadable = find_unreadable(database)
    if unreadable is not None:
        return DiskReadFailed(f"a part of the database cannot be read: {unreadable}; {CHECK_IT}")
    if _size_bytes(database) > CHECKED_BYTES_MAX:
        return None
    try:
        (verdict,) = session.connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error:
        return None
    return (
        DiskReadFailed(f"a part of the database could not be read for a moment; {CHECK_IT}")
        if verdict == "ok"
        else None
    )


def find_unreadable(database: Path) -> OSError | None:
    """The error of reading the whole database file and its log; None if all of both can be read.

    Writing waits for as long as the disk takes to read the whole file. That is worth it: if the file is damaged
    instead, writing ends for good.
    """
    try:
        _read_all(_open_for_good(database))
        with database.with_name(database.name + "-wal").open("rb", buffering=0) as log:
            _read_all(log.fileno())
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    return None


def _open_for_good(database: Path) -> int:
    """A descriptor of the database file that is never closed: closing it would drop SQLite's locks on the file."""
    if database not in _opened:
        _opened[database] = os.open(database, os.O_RDONLY)
    return _opened[database]


def _read_all(opened: int) -> None:
    at = 0
    while read := os.pread(opened, READ_BYTES, at):
        at += len(read)


def find_no_room(database: Path, size_bytes: int) -> OSError | None:
    """The error of growing a file of the database by `size_bytes`; None if it can grow, or if nobody can tell.

    The file that is made for the trial loses its name at once, so that a kill leaves nothing behind.
    """
    probe = database.with_name(f"{database.name}-room")
    try:
        opened = os.open(probe, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.unlink(probe)
            # Behind the end of the largest file, since a limit on file sizes counts from there.
            start = max(_size_bytes(database.with_name(database.name + suffix)) for suffix in SUFFIXES)
            _take_room(opened, start, size_bytes)
        finally:
            os.close(opened)
    except OSError as error:
        return error if error.errno in NO_ROOM else None
    return None


def _take_room(opened: int, start: int, size_bytes: int) -> None:
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
