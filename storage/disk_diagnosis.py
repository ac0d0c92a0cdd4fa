"""What an error of the disk was: want of room, a disk that fails, or damage. It is asked in the thread that writes.

SQLite tells the first two alike (SQLITE_IOERR_WRITE), but for a disk that is full to its last byte: a quota and a limit
on file sizes look like a broken disk. It keeps the system's error number to itself: Python has no way to its
`sqlite3_system_errno`, and reading it out of the driver's memory would risk the process to learn why a write failed. So
the file system is asked again: where a new file beside the database can have more room than a transaction wants, it was
not the room that was missing.

In the same way SQLite tells a read that the disk failed as damage (SQLITE_CORRUPT), so the file is read again, here.
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
"""Twice what one stream hands over at once (a full mailbox), so more than nearly every transaction wants."""
CHECKED_BYTES_MAX = 1024 * 1024 * 1024
"""The structure of a larger file is not looked through while pushes wait."""
READ_BYTES = 1024 * 1024
CHECK_IT = "check the disk, and run `stream-node verify`"
CHUNK = bytes(64 * 1024)
SUFFIXES = ("", "-wal", "-shm")
"""Of the files that the database has, after its name."""

_opened: dict[Path, int] = {}

logger = structlog.get_logger(__name__)


def judge(error: StorageError, session: Session) -> StorageError:
    """The error; or in its place a DiskFull where a write failed and there is no room, and a DiskReadFailed where the
    file looked damaged and is not, but cannot be read."""
    if not isinstance(error, WriteFailed | DatabaseCorrupt):
        return error
    path = session.connection.execute("PRAGMA database_list").fetchone()[2]
    if not path:
        return error
    found = _judge_write(Path(path)) if isinstance(error, WriteFailed) else _judge_read(session, Path(path))
    if found is None:
        return error
    logger.warning("disk_error_judged", was=str(error), found=str(found))
    found.__cause__ = error
    return found


def _judge_write(database: Path) -> StorageError | None:
    missing = find_no_room(database, ROOM_BYTES)
    return None if missing is None else storage_error(missing)


def _judge_read(session: Session, database: Path) -> StorageError | None:
    """SQLite calls a read that ended with EIO damage (SQLITE_CORRUPT). Damage can be read, again and again."""
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
    """Why a part of the database's file or log cannot be read; None where all of both can be.

    It takes as long as the disk takes for the whole file, in the thread that writes: only damage can be the
    alternative, and that ends writing for good.
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
    """A descriptor of the database's file that is never closed: closing one would drop SQLite's locks on the file."""
    if database not in _opened:
        _opened[database] = os.open(database, os.O_RDONLY)
    return _opened[database]


def _read_all(opened: int) -> None:
    at = 0
    while read := os.pread(opened, READ_BYTES, at):
        at += len(read)


def find_no_room(database: Path, size_bytes: int) -> OSError | None:
    """Why a file of the database cannot grow by so much; None where it can, or where that cannot be learnt.

    The new file has no name for longer than it takes to remove that, so that a kill leaves nothing.
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
