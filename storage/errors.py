"""The errors of storage, and the one place that turns errors of the driver and of the system into them.

The text of every error says what happened and what to do.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage.wal.survey import Behind


class StorageError(Exception):
    """The base of all errors of this package.

    retriable: the same operation may succeed later, once there is room or another program releases the database.
    fatal: nothing more may be written through this connection, and the node must be stopped.
    in_doubt: the operation may be on disk in spite of the error. If false, nothing of the operation is on disk.
    """

    retriable = False
    fatal = False
    in_doubt = False


class StorageBusy(StorageError):
    """Another process held the database for longer than the busy timeout."""

    retriable = True


class DiskFull(StorageError):
    """No room: the disk is full, or a quota or a limit on file sizes is reached. Nothing of the operation is stored."""

    retriable = True


class DiskFailed(StorageError):
    """The disk failed in a write, a sync or otherwise. After that, earlier writes are in doubt too."""

    fatal = True


class WriteFailed(DiskFailed):
    """A write failed, from lack of room or since the disk failed; `storage.disk_diagnosis.diagnose` finds out which."""


class DiskReadFailed(StorageError):
    """A part of the database could not be read. The operation that tried left nothing; other operations go on."""


class CommitInDoubt(DiskFailed):
    """The transaction was written to the write-ahead log, but the disk failed in the sync.

    The transaction is invisible until the node starts again; that start finds out whether the log holds it.
    failure: the error of the disk.
    """

    in_doubt = True

    def __init__(self, failure: StorageError) -> None:
        super().__init__(f"what was being stored may or may not be there after the next start, since {failure}")
        self.failure = failure


class StorageReadOnly(StorageError):
    """The data directory or the database cannot be written."""


class DatabaseInUse(StorageError):
    """Another node has the data directory. pid: the id of its process, or None if nobody could tell."""

    def __init__(self, pid: int | None, path: Path) -> None:
        owner = "another process" if pid is None else f"process {pid}"
        super().__init__(f"the data directory {path} is in use by {owner}; stop it, or choose another data directory")
        self.pid = pid
        self.path = path


class DatabaseTooNew(StorageError):
    """The database was written by a later version. found, supported: schema versions."""

    def __init__(self, found: int, supported: int) -> None:
        super().__init__(
            f"the database has schema version {found}, this program knows versions up to {supported}; "
            "install the newer program that wrote it, or choose another data directory"
        )
        self.found = found
        self.supported = supported


class DatabaseCorrupt(StorageError):
    """The database is damaged, or belongs to another program."""


class WalDamaged(DatabaseCorrupt):
    """The write-ahead log is damaged in the middle, and confirmed messages stand behind the damage.

    bad: the first frame whose checksum does not fit. frames, commits: how many of them stand from there to the last
    commit. lost: how many of these frames cannot be recovered. behind: the streams with messages there, None if nobody
    can tell. kept: a copy of the log.
    """

    def __init__(
        self,
        directory: Path,
        *,
        bad: int,
        frames: int,
        commits: int,
        lost: int,
        behind: Sequence[Behind] | None,
        kept: Path | None,
    ) -> None:
        text = f"the write-ahead log in {directory} is damaged: its frame {bad} does not fit, and from there on stand "
        text += f"{frames} frames with {commits} commits"
        if behind is None:
            text += "; which streams they belong to cannot be told"
        elif behind:
            named = ", ".join(map(str, behind[:NAMED_MAX]))
            more = f" and {len(behind) - NAMED_MAX} more" if len(behind) > NAMED_MAX else ""
            text += f", with messages of {named}{more}"
        text += "; nothing was changed"
        if kept is not None:
            text += f", and a copy of the log is in {kept.name}"
        super().__init__(f"{text}; see what `stream-node repair --data-dir {directory}` can recover")
        self.directory = directory
        self.bad = bad
        self.frames = frames
        self.commits = commits
        self.lost = lost
        self.behind = behind
        self.kept = kept


NAMED_MAX = 10
"""The text of an error names at most this many streams."""


class IndexConflict(StorageError):
    """An append does not continue its stream. expected: the next index; found: the first index of the append."""

    def __init__(self, stream_id: int, expected: int, found: int) -> None:
        super().__init__(f"stream {stream_id} continues at index {expected}, not {found}; read the stream's end again")
        self.stream_id = stream_id
        self.expected = expected
        self.found = found


class StreamNotFound(StorageError):
    """No stream has this id: the stream was never made, or was deleted."""

    def __init__(self, stream_id: int) -> None:
        super().__init__(f"there is no stream {stream_id}; it may have been deleted: create it again by name")
        self.stream_id = stream_id


class StorageClosed(StorageError):
    """The operation came after the storage was closed, or after a fatal error. Nothing of it is stored."""


class OperationFailed(StorageError):
    """An operation raised an exception that no disk or file can cause: its code has a mistake. See `__cause__`."""


_WRITE = {sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_TRUNCATE}
"""SQLite answers FULL to ENOSPC only. Quotas (EDQUOT), file size limits (EFBIG) and failing disks (EIO) get these
codes."""

_IOERR_CORRUPTFS = sqlite3.SQLITE_IOERR | (33 << 8)
"""The code of SQLite 3.34 and later for a read that ended with EIO."""
_READ = {sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ, _IOERR_CORRUPTFS}

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def storage_error(error: BaseException) -> StorageError:
    """The StorageError for an exception of the driver, of the system or of an operation's code."""
    if isinstance(error, StorageError):
        return error
    if isinstance(error, OSError):
        return _system_error(error)
    if not isinstance(error, sqlite3.Error):
        return OperationFailed(f"the operation failed: {type(error).__name__}: {error}; report this mistake")
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return OperationFailed(f"the driver refused the operation: {error}; report this mistake")
    return _sqlite_error(code, error)


def _sqlite_error(code: int, error: sqlite3.Error) -> StorageError:
    primary = code & 0xFF
    reason = f"{error} ({error.sqlite_errorname})"
    if code in _WRITE:
        return WriteFailed(f"the disk failed: {reason}; stop the node, check the disk, then run `stream-node verify`")
    if code in _READ:
        return DiskReadFailed(
            f"a part of the database cannot be read: {reason}; check the disk, and run `stream-node verify`"
        )
    if code == sqlite3.SQLITE_FULL:
        return DiskFull(f"no room to write: {reason}; free space or raise the quota, then repeat")
    if primary in _DAMAGED:
        corrupt = DatabaseCorrupt(corrupt_text(reason))
        corrupt.fatal = True
        return corrupt
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StorageBusy(f"the database is held by another program: {reason}; end that program, then repeat")
    if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN):
        return StorageReadOnly(
            f"the database cannot be written: {reason}; make the data directory writable for this user"
        )
    if primary == sqlite3.SQLITE_IOERR:
        return DiskFailed(f"the disk failed: {reason}; stop the node, check the disk, then run `stream-node verify`")
    return OperationFailed(f"the database refused the operation: {reason}; report this mistake")


def _system_error(error: OSError) -> StorageError:
    reason = f"{error.strerror or error}: {error.filename}" if error.filename else f"{error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DiskFull(f"no room to write: {reason}; free space or raise the quota, then repeat")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StorageReadOnly(f"the data directory cannot be written: {reason}; make it writable for this user")
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        what = f"{error.filename} is" if error.filename else "a part of its path is"
        return StorageReadOnly(f"the data directory cannot be used: {what} no directory; choose another")
    return DiskFailed(f"the data directory cannot be used: {reason}; check the disk and the path")


def corrupt_text(reason: str) -> str:
    """The text of an error about a damaged database: the reason, and what to do."""
    return (
        f"the database is damaged: {reason}; stop the node, keep a copy of the data directory, run "
        "`stream-node verify`, then restore a backup or start with another data directory"
    )
