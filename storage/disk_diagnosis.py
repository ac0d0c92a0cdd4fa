"""Finds the cause of a disk error: no room left, a failing disk, or a damaged file.

A failed write: SQLite has one error code (SQLITE_IOERR_WRITE) for a failing disk, for a quota and for a limit on file
sizes; only a disk that is full to its last byte has a different code. The system's error number would show the cause,
but Python has no access to `sqlite3_system_errno`. So this module makes a test: if a new file beside the database gets
more room than a transaction needs, the write did not fail from lack of room.

A failed read: SQLite reports a part that the disk cannot read as damage (SQLITE_CORRUPT). So this module reads the file
again: the system reports an unreadable part as an error.

Both tests run in the thread that met the error, once per error.
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
"""The room that the test file asks for. It is twice the largest append of one stream (a full mailbox), so nearly every
transaction needs less."""
CHECKED_BYTES_MAX = 1024 * 1024 * 1024
"""The size of the largest file whose structure is checked. Pushes wait during the check."""
READ_BYTES = 1024 * 1024
CHECK_IT = "check the disk, and run `stream-node verify`"
CHUNK = bytes(64 * 1024)
SUFFIXES = ("", "-wal", "-shm")
"""The suffixes of the files of a database: the database itself, its log and its shared memory."""

_opened: dict[Path, int] = {}

logger = structlog.get_logger(__name__)


def diagnose(error: StorageError, session: Session) -> StorageError:
    """Returns the error that really happened: `error` itself, or a more precise one.

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
    """Returns DiskReadFailed if the file is not damaged: a part of the file cannot be read, or can be read at the
    second attempt. Returns None if the file is damaged."""
    # A damaged part of a file can be read every time. A part that the disk has lost cannot be read.
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
    """Reads the whole database file and its log. Returns the OSError of the failed read, or None if both files can be
    read.

    The caller cannot write until the whole file is read. The wait is justified: without it, every failed read would
    count as damage, and damage ends all writing.
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
    """Returns a descriptor of the database file that is never closed: closing it would drop SQLite's locks on the
    file."""
    if database not in _opened:
        _opened[database] = os.open(database, os.O_RDONLY)
    return _opened[database]


def _read_all(opened: int) -> None:
    at = 0
    while read := os.pread(opened, READ_BYTES, at):
        at += len(read)


def find_no_room(database: Path, size_bytes: int) -> OSError | None:
    """Tests whether the files of the database can grow by `size_bytes`. Returns the OSError if they cannot, or None if
    they can or the test is not possible.

    The test uses a temporary file whose name is removed at once, so that a killed process leaves nothing behind.
    """
    probe = database.with_name(f"{database.name}-room")
    try:
        opened = os.open(probe, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.unlink(probe)
            # Ask for room behind the size of the largest database file, since that file would reach a limit on file
            # sizes first.
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
