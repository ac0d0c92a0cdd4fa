"""Maps the errors of SQLite's driver to StorageError."""

from __future__ import annotations

import sqlite3
from contextlib import ContextDecorator

from stream_storage import errors
from stream_storage.errors import DiskFailed, WriteFailed

_WRITE = {sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_TRUNCATE}
"""The SQLite codes of a failed write: a quota (EDQUOT), a file size limit (EFBIG) or a failing disk (EIO). SQLite
reports SQLITE_FULL only for ENOSPC."""

_IOERR_CORRUPTFS = sqlite3.SQLITE_IOERR | (33 << 8)
"""The code that SQLite 3.34 and later reports for a read that failed with EIO."""
_READ = {sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ, _IOERR_CORRUPTFS}

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def storage_error(error: BaseException) -> errors.StorageError:
    """Returns the StorageError for an exception of the SQLite driver, the operating system or an operation's code."""
    if isinstance(error, errors.StorageError):
        return error
    if isinstance(error, OSError):
        return errors.system_error(error)
    if isinstance(error, UnicodeDecodeError) or "Could not decode to UTF-8" in str(error):
        # The text in the file, or SQLite's own text about a table whose name is damaged.
        return errors.DatabaseCorrupt(errors.corrupt_text("a text in it is not UTF-8"))
    if not isinstance(error, sqlite3.Error):
        return errors.OperationFailed(f"the operation failed: {type(error).__name__}: {error}; report this mistake")
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return errors.OperationFailed(f"the driver refused the operation: {error}; report this mistake")
    return _sqlite_error(code, error)


class mapped(ContextDecorator):
    """Raises the StorageError for an exception of the SQLite driver or the operating system, with it as the cause. For
    a `with` block, or as the decorator of a function."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, sqlite3.Error | OSError | UnicodeDecodeError):
            raise storage_error(error) from error


def caused_error(raised: BaseException) -> errors.StorageError:
    """Returns `storage_error(raised)`, with the exception as its cause."""
    error = storage_error(raised)
    if error is not raised:
        error.__cause__ = raised
    return error


def _sqlite_error(code: int, error: sqlite3.Error) -> errors.StorageError:
    primary = code & 0xFF
    reason = f"{error} ({error.sqlite_errorname})"
    if code in _WRITE:
        return WriteFailed(f"the disk failed: {reason}; stop the node, check the disk, then run `stream-node verify`")
    if code in _READ:
        return errors.DiskReadFailed(
            f"a part of the database cannot be read: {reason}; check the disk, and run `stream-node verify`"
        )
    if code == sqlite3.SQLITE_FULL:
        return errors.DiskFull(f"{errors.NO_ROOM}: {reason}; free space or raise the quota, then repeat")
    if primary in _DAMAGED:
        corrupt = errors.DatabaseCorrupt(errors.corrupt_text(reason))
        corrupt.fatal = True
        return corrupt
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return errors.StorageBusy(f"the database is held by another program: {reason}; end that program, then repeat")
    if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN):
        return errors.StorageReadOnly(
            f"the database cannot be written: {reason}; make the data directory and the files in it writable for this "
            "user (chown)"
        )
    if primary == sqlite3.SQLITE_IOERR:
        return DiskFailed(f"the disk failed: {reason}; stop the node, check the disk, then run `stream-node verify`")
    return errors.OperationFailed(f"the database refused the operation: {reason}; report this mistake")
