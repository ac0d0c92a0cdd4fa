"""Restoring: puts a backup into a data directory, a new one or in place of a database. `backup.py` takes backups.

The new database is made beside the old one, and gets its name in one step once it is whole, checked and synced. Until
then the old one stays. A power cut at any moment leaves one or the other.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import msgspec
import structlog

from index_service.lease_storage import raise_fences
from storage.database import BUSY_TIMEOUT_MS, FILE_NAME, Database
from storage.durable_files import make_folder, remove_folders, rename_durably, sync
from storage.errors import DatabaseCorrupt, StorageBusy, StorageError, WalDamaged, storage_error
from storage.leftovers import FILE_SUFFIXES, find_parts, part_path, remove_parts
from storage.lock import FILE_NAME as LOCK_NAME
from storage.lock import DirectoryLock, left_in_this_boot
from storage.migrate import migrate
from storage.wal.check import prepare_log
from stream_node.backup import (
    CHUNK_BYTES,
    BackupError,
    Manifest,
    Progress,
    count_stored,
    digest_of,
    names_in,
    read_manifest,
    verify_file,
)
from stream_node.clock_note import FILE_NAME as CLOCK_NAME

logger = structlog.get_logger(__name__)


class Present(msgspec.Struct, frozen=True):
    """Present: the state of a data directory. streams, messages: None where there is no database, or one that
    cannot be read."""

    found: bool
    streams: int | None = None
    messages: int | None = None


def restore(
    backup: Path, target: Path, *, check: bool, over: bool = False, dry_run: bool = False, progress: Progress
) -> tuple[Manifest, Present]:
    """Put the database of a backup into the data directory `target`, which must be new or empty unless `over`.

    check: read every message too, before the database gets its name. over: replace the database that is there. dry_run:
    do all checks, of the backup's own file, and change nothing. Returns what was put in place, and of what.
    Raises BackupError, DatabaseInUse and other StorageError.
    """
    manifest = read_manifest(backup)
    try:
        if dry_run:
            present = _look_at(target, over)
            if digest_of(backup / FILE_NAME, progress) != manifest.sha256:
                raise _damaged(backup)
            if check:
                verify_file(backup / FILE_NAME, manifest.messages, progress)
            return manifest, present
        with _owned(target) as was_there:
            present = _replaceable(target, over, was_there)
            _put(backup, target, manifest, check, progress)
            return manifest, present
    except (OSError, sqlite3.Error) as error:
        raise storage_error(error) from error


def _put(backup: Path, target: Path, manifest: Manifest, check: bool, progress: Progress) -> None:
    """Put the backup's database in place of the one that is there, if any:

    1. copy it beside that one, synced, and check it;
    2. raise the fences in the copy: from here on it is whole;
    3. bring all of the old database into its one file, and remove its log: the log of one database must never lie
       beside another's file, where SQLite would take it for that one's own;
    4. give the copy its name, which takes it from the old one. That is one step, on disk when this returns.
    """
    database = target / FILE_NAME
    part = part_path(database)
    # Of an earlier restore that was interrupted; its log would be taken for the new copy's.
    remove_parts(database)
    try:
        if _copy_file(backup / FILE_NAME, part, progress) != manifest.sha256:
            raise _damaged(backup)
        if check:
            verify_file(part, manifest.messages, progress)
        _forget_leases(part)
        _settle(database)
        rename_durably(part, database)
    finally:
        remove_parts(database)


def _settle(database: Path) -> None:
    """Have all that a database holds in its one file, synced, and nothing beside it. One that SQLite cannot read keeps
    what its file has. Raises StorageError where another program uses it, or the disk fails."""
    if database.exists():
        try:
            # Of a damaged log SQLite copies a part alone; the whole of it is kept under a name of its own.
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


def _copy_log(database: Path) -> None:
    """Copy the write-ahead log into the file, all of it. Raises StorageError."""
    location = f"file:{quote(str(database.absolute()))}?mode=rw"
    try:
        with closing(
            sqlite3.connect(location, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_MS / 1000)
        ) as connection:
            connection.execute("PRAGMA synchronous=FULL")
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error as error:
        raise storage_error(error) from error
    if busy:
        raise StorageBusy(f"{database} is being read by another program; end that program, then restore once more")


def _forget_leases(part: Path) -> None:
    """Raise the fences in the copy. Leases given after the backup are unknown, so fences continue above every number
    that can have been given: the time, since fences rise more slowly."""
    with closing(sqlite3.connect(part, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        migrate(connection)
        raise_fences(connection, time.time_ns() // 1_000)
        connection.execute("COMMIT")
    # Closing copies the log too, but says nothing when it fails; then the fences would be lost with the log.
    _copy_log(part)
    sync(part)


@contextmanager
def _owned(target: Path) -> Iterator[list[str]]:
    """Hold the data directory, which is made if there is none. Returns the names of the files in it. Raises
    DatabaseInUse, StorageError."""
    was_there, made = names_in(target), make_folder(target)
    lock = DirectoryLock(target)
    try:
        yield was_there
    except BaseException:
        lock.release(clean=not lock.left_unclean)
        if LOCK_NAME not in was_there:
            (target / LOCK_NAME).unlink(missing_ok=True)
        remove_folders(made)
        raise
    lock.release(clean=True)


def _look_at(target: Path, over: bool) -> Present:
    """As `_replaceable`, for a directory that is not changed."""
    names = names_in(target)
    if LOCK_NAME not in names:
        return _replaceable(target, over, names)
    with _owned_as_it_is(target):
        return _replaceable(target, over, names)


@contextmanager
def _owned_as_it_is(target: Path) -> Iterator[None]:
    lock = DirectoryLock(target)
    try:
        yield
    finally:
        lock.release(clean=not lock.left_unclean)


def _replaceable(target: Path, over: bool, names: list[str]) -> Present:
    """The database that a restore would replace. Raises BackupError where it must not be replaced."""
    # What an interrupted restore has left is replaced without asking.
    unfinished = {path.name for path in find_parts(target / FILE_NAME)}
    if not set(names) - {LOCK_NAME, CLOCK_NAME} - unfinished:
        return Present(found=False)
    if not over:
        raise BackupError(
            f"{target} is not empty; choose another data directory, or say --over to replace its database"
        )
    if FILE_NAME not in names:
        raise BackupError(f"{target} has other files and no database to replace; choose another data directory")
    try:
        session = Database.open(target, read_only=True).read_session()
        try:
            streams, messages, _ = count_stored(session)
            return Present(True, streams, messages)
        finally:
            session.close()
    except (StorageError, sqlite3.Error):
        return Present(found=True)


def _copy_file(source: Path, target: Path, progress: Progress) -> str:
    """Copy the file and sync it. Returns the SHA-256 of the written bytes."""
    digest, done, total = hashlib.sha256(), 0, source.stat().st_size
    with source.open("rb") as reading, target.open("wb") as writing:
        while chunk := reading.read(CHUNK_BYTES):
            digest.update(chunk)
            writing.write(chunk)
            done += len(chunk)
            progress("copying", done, total)
        writing.flush()
        os.fsync(writing.fileno())
    return digest.hexdigest()


def _damaged(backup: Path) -> BackupError:
    return BackupError(f"the database in {backup} is not what was backed up: its SHA-256 differs; use another backup")
