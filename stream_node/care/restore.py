"""Restores a backup into a new data directory, or replaces the database of an existing one.
`stream_storage.sqlite.backup` takes backups. A database file that Litestream has restored from its copy can take the
place of a backup. The new database is written to a separate file in the data directory. When this file is complete,
checked and synced, one rename replaces the old database: a power cut leaves either the old database or the new one."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import msgspec
import structlog

from index_service.lease_storage import raise_fences
from ockam.files.durable_files import make_folder, remove_folders, rename_durably, sync
from stream_node.node.clock_note import FILE_NAME as CLOCK_NAME
from stream_service.stored import list_stored
from stream_storage.directory_lock import FILE_NAME as LOCK_NAME
from stream_storage.directory_lock import DirectoryLock, left_in_this_boot
from stream_storage.errors import DatabaseCorrupt, StorageBusy, StorageError, WalDamaged
from stream_storage.history import begin_entries
from stream_storage.sqlite.backup import (
    BackupError,
    BackupManifest,
    Progress,
    copy_file,
    count_stored,
    digest_of,
    names_in,
    opened_file,
    read_manifest,
    verify_file,
)
from stream_storage.sqlite.ballast import FILE_NAME as BALLAST_NAME
from stream_storage.sqlite.database import BUSY_TIMEOUT_MS, FILE_NAME, Database
from stream_storage.sqlite.errors import mapped
from stream_storage.sqlite.leftovers import FILE_SUFFIXES, UPGRADE_PREFIX, find_parts, part_path, remove_parts
from stream_storage.sqlite.migrate import migrate
from stream_storage.sqlite.session import SqliteSession
from stream_storage.sqlite.wal.check import prepare_log

logger = structlog.get_logger(__name__)


class Present(msgspec.Struct, frozen=True):
    """The state of a data directory before a restore. The numbers are None if its database cannot be read."""

    found: bool  # whether it has a database
    streams: int | None = None
    messages: int | None = None


class FileContents(msgspec.Struct, frozen=True):
    """The contents of a database file, or of a backup. Times are in microseconds since 1970; None if unknown."""

    streams: int
    messages: int
    data_bytes: int  # the size of all messages
    newest_us: int | None = None  # the time of the newest message
    created_us: int | None = None  # the time of the backup


def restore(
    backup: Path, target: Path, *, check: bool, over: bool = False, dry_run: bool = False, progress: Progress
) -> tuple[BackupManifest, Present]:
    """Restores a backup into the data directory `target`, which must be new or empty unless `over` is True.
    check: whether every message is read and checked before the database is replaced. dry_run: whether the backup and
    the target are only checked. Returns the manifest of the backup, and the state of the data directory before the
    restore. Raises BackupError, DatabaseInUse and other StorageErrors."""
    manifest = read_manifest(backup)
    source = _DatabaseFile(backup / FILE_NAME, manifest.sha256, manifest.messages if check else None)
    return manifest, _restore(source, target, over, dry_run, progress)


def restore_file(
    file: Path, target: Path, *, over: bool = False, dry_run: bool = False, progress: Progress
) -> tuple[FileContents, Present]:
    """Restores a database file, which Litestream has written and nobody changes, as `restore` does with a backup.
    A file has no SHA-256 to compare with, so every message is read and checked."""
    with opened_file(file) as session:
        streams, messages, data_bytes = count_stored(session)
        newest_us = max((stream.last_time_us for stream in list_stored(session, {})), default=0) or None
    present = _restore(_DatabaseFile(file, None, messages), target, over, dry_run, progress)
    return FileContents(streams, messages, data_bytes, newest_us), present


class _DatabaseFile(msgspec.Struct, frozen=True):
    """The database file that a restore copies. sha256: None if unknown. messages: None if they are not checked."""

    file: Path
    sha256: str | None
    messages: int | None

    def check(self, file: Path, digest: str | None, progress: Progress) -> None:
        """Checks this file or a copy of it. Raises BackupError, DatabaseCorrupt."""
        if self.sha256 not in (None, digest):
            raise BackupError(
                f"the database in {self.file.parent} is not what was backed up: its SHA-256 differs; use another backup"
            )
        if self.messages is not None:
            verify_file(file, self.messages, progress)


@mapped()
def _restore(source: _DatabaseFile, target: Path, over: bool, dry_run: bool, progress: Progress) -> Present:
    """Restores the source. Returns the state of the data directory before the restore."""
    # A dry run does the same checks. It holds the lock if there is a lock file, but creates none.
    if dry_run:
        names = names_in(target)
        lock = DirectoryLock(target) if LOCK_NAME in names else None
        try:
            present = _replaceable(target, over, names)
        finally:
            if lock is not None:
                lock.release_as_found()
        source.check(source.file, source.sha256 and digest_of(source.file, progress), progress)
        return present
    with locked_directory(target) as was_there:
        present = _replaceable(target, over, was_there)
        # The copy is checked before it replaces anything.
        _replace_database(source, target, progress)
        return present


def _replace_database(source: _DatabaseFile, target: Path, progress: Progress) -> None:
    """Replaces the database of a data directory, if it has one, by the database of the source.

    1. Copy the source to a separate file in the data directory, sync the copy, and check it.
    2. Raise the fences (lease numbers) in the copy. The copy is then complete.
    3. Move the content of the old database's write-ahead log into the old database file, and remove the log. If the old
       log stayed, SQLite would use it as the log of the new database.
    4. Rename the copy to the name of the database. This is a single step, and it is on disk when this function returns.
    """
    database = target / FILE_NAME
    part = part_path(database)
    # An interrupted restore may have left these files. SQLite would use their log as the log of the new copy.
    remove_parts(database)
    try:
        digest = copy_file(source.file, part, progress)
        source.check(part, digest, progress)
        _forget_leases(part)
        _merge_log(database)
        rename_durably(part, database)
    finally:
        remove_parts(database)


def _merge_log(database: Path) -> None:
    """Moves the content of a database's write-ahead log into the database file, syncs the file, and removes the log.
    If SQLite cannot read the database, its file is not changed."""
    if database.exists():
        try:
            # SQLite copies only a part of a damaged log, so `prepare_log` first saves the whole log under another name.
            prepare_log(database, rebooted=not left_in_this_boot(database.parent))
        except WalDamaged as error:
            logger.warning("old_log_damaged", kept=str(error.kept), reason=str(error))
        try:
            _copy_log(database)
        except DatabaseCorrupt as error:
            logger.warning("old_database_not_readable", reason=str(error))
        sync(database)
    for suffix in filter(None, FILE_SUFFIXES):
        database.with_name(database.name + suffix).unlink(missing_ok=True)
    sync(database.parent)


@mapped()
def _copy_log(database: Path) -> None:
    """Copies the whole write-ahead log into the database file. Raises StorageBusy if another program reads it."""
    location = f"file:{quote(str(database.absolute()))}?mode=rw"
    with closing(
        sqlite3.connect(location, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_MS / 1000)
    ) as connection:
        connection.execute("PRAGMA synchronous=FULL")
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if busy:
        raise StorageBusy(f"{database} is being read by another program; end that program, then restore once more")


def _forget_leases(part: Path) -> None:
    """Raises all fences (lease numbers) in the copy `part`, and syncs it.
    The backup does not have the leases that were given after it, so their fences are unknown. But fences rise more
    slowly than time: the present time in microseconds is above every earlier fence. New fences start there."""
    with closing(sqlite3.connect(part, isolation_level=None)) as connection:
        # A backup of an older version is brought up to date here. The backup itself stays as it is.
        migrate(connection)
        connection.execute("BEGIN IMMEDIATE")
        session = SqliteSession(connection, writes=True)
        raise_fences(session, time.time_ns() // 1_000)
        # From here on the restored streams can differ from all other copies of them.
        begin_entries(session)
        connection.execute("COMMIT")
    # Closing the connection copies the log too, but reports no failure. After a failure the fences would be lost
    # with the log, so it is copied here.
    _copy_log(part)
    sync(part)


@contextmanager
def locked_directory(target: Path) -> Iterator[list[str]]:
    """Locks the data directory while the block runs. Makes the directory if it does not exist.
    Yields the names of the files that the directory had before. If the block fails, a new lock file and new folders are
    removed. Raises DatabaseInUse, StorageError."""
    was_there, made = names_in(target), make_folder(target, mode=0o700)
    lock = DirectoryLock(target)
    try:
        yield was_there
    except BaseException:
        lock.release_as_found()
        if LOCK_NAME not in was_there:
            (target / LOCK_NAME).unlink(missing_ok=True)
        remove_folders(made)
        raise
    lock.release(clean=True)


def _replaceable(target: Path, over: bool, names: list[str]) -> Present:
    """Returns the state of the database that a restore would replace. Raises BackupError if a restore is not allowed.
    names: the names of all files in the folder `target`."""
    # The files of an interrupted restore may always be replaced.
    unfinished = {path.name for path in find_parts(target / FILE_NAME)}
    # A directory with nothing but backups that an upgrade has left counts as empty: one of them may be restored.
    kept = {name for name in names if name.startswith(UPGRADE_PREFIX)}
    if not set(names) - {LOCK_NAME, CLOCK_NAME, BALLAST_NAME} - unfinished - kept:
        return Present(found=False)
    if not over:
        raise BackupError(
            f"{target} is not empty; choose another data directory, or say --over to replace its database"
        )
    if FILE_NAME not in names:
        raise BackupError(f"{target} has other files and no database to replace; choose another data directory")
    try:
        with closing(Database.open(target, read_only=True).read_session()) as session:
            streams, messages, _ = count_stored(session)
            return Present(True, streams, messages)
    except (StorageError, sqlite3.Error):
        return Present(found=True)
