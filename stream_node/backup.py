"""Copies the database of a data directory while a node uses it, or while none does, and puts such a copy back.

A backup is a folder with the database, consumers' positions in it, and a manifest with its SHA-256. It is one state
of the database: that at which the copying began. Not in it: the configuration, and what other programs keep elsewhere.

Taking a backup only reads: SQLite's backup interface copies the pages of one read transaction, so a node goes on
pushing meanwhile; only its write-ahead log is not emptied until the copy is done. The node's lock is not touched.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

import msgspec

from index_service.lease_storage import raise_fences
from storage.contract import Session
from storage.database import FILE_NAME, Database
from storage.durable_files import make_folder, remove_folders, rename_durably, sync, write_durably
from storage.errors import DatabaseCorrupt, DatabaseTooNew, StorageError, storage_error
from storage.lock import FILE_NAME as LOCK_NAME
from storage.lock import DirectoryLock
from storage.schema import SCHEMA_VERSION
from storage.session import SqliteSession
from storage.verify import verify

MANIFEST_NAME = "backup.json"
FORMAT = 1
"""Of the manifest; raised with every change that older programs cannot read."""
STEP_PAGES = 256
"""Pages (of 4 KiB) copied between two reports of progress."""
CHUNK_BYTES = 1024 * 1024
PART_SUFFIX = ".part"
"""Of a database that is not whole yet."""
LIST_PAGE = 1_000

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Told what is being done ("copying", "verifying"), how far it is, and of how much if that is known."""


class BackupError(Exception):
    """A backup that cannot be taken or put back as asked; the text says what to do."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup has. created_us: when it was taken, in microseconds since 1970. database_bytes, sha256: of the
    database file; data_bytes: of the stored messages' data."""

    format: int
    created_us: int
    schema_version: int
    streams: int
    messages: int
    data_bytes: int
    database_bytes: int
    sha256: str


class Present(msgspec.Struct, frozen=True):
    """What a restore finds in a data directory. streams, messages: None where there is no database (`found`), or one
    that cannot be read."""

    found: bool
    streams: int | None = None
    messages: int | None = None


def back_up(source: Path, target: Path, *, now_us: int, check: bool, progress: Progress) -> Manifest:
    """Copy the database of the data directory `source` into the new or empty folder `target`, synced to disk.

    check: read every message of the copy too. The database has its name in `target` only once it is whole.
    Raises BackupError, StorageError.
    """
    database = Database.open(source, read_only=True)
    made = _make_folder(target)
    part = target / (FILE_NAME + PART_SUFFIX)
    try:
        session = database.read_session()
        try:
            session.begin()
            streams, messages, data_bytes = count_stored(session)
            schema_version = session.connection.execute("PRAGMA user_version").fetchone()[0]
            _copy_pages(session.connection, part, progress)
        finally:
            session.close()
        if check:
            _verify_file(part, messages, progress)
        manifest = Manifest(
            format=FORMAT,
            created_us=now_us,
            schema_version=schema_version,
            streams=streams,
            messages=messages,
            data_bytes=data_bytes,
            database_bytes=part.stat().st_size,
            sha256=_digest(part, progress),
        )
        sync(part)
        _write_manifest(target, manifest)
        rename_durably(part, target / FILE_NAME)
    except BaseException as error:
        _clean_up(target, made, part, target / MANIFEST_NAME, target / FILE_NAME)
        if isinstance(error, OSError | sqlite3.Error):
            raise storage_error(error) from error
        raise
    return manifest


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
            if _digest(backup / FILE_NAME, progress) != manifest.sha256:
                raise _damaged(backup)
            if check:
                _verify_file(backup / FILE_NAME, manifest.messages, progress)
            return manifest, present
        with _owned(target) as was_there:
            present = _replaceable(target, over, was_there)
            _put(backup, target, manifest, check, progress)
            return manifest, present
    except (OSError, sqlite3.Error) as error:
        raise storage_error(error) from error


def read_manifest(backup: Path) -> Manifest:
    """Raises BackupError, DatabaseTooNew."""
    try:
        manifest = msgspec.json.decode((backup / MANIFEST_NAME).read_bytes(), type=Manifest)
    except OSError as error:
        raise BackupError(
            f"{backup} is no backup: {MANIFEST_NAME}: {error.strerror or error}; name a folder made by `backup`"
        ) from error
    except msgspec.DecodeError as error:
        raise BackupError(f"{backup / MANIFEST_NAME} cannot be read: {error}; take another backup") from error
    if manifest.format > FORMAT:
        raise BackupError(f"{backup} was taken by a newer program; restore it with that one")
    if manifest.schema_version > SCHEMA_VERSION:
        raise DatabaseTooNew(manifest.schema_version, SCHEMA_VERSION)
    return manifest


def count_stored(session: Session) -> tuple[int, int, int]:
    """Stream-partitions, messages and bytes of data, as the rows of the streams say."""
    streams = messages = data_bytes = 0
    after: tuple[str, int] | None = None
    while page := session.log.list_streams(after=after, limit=LIST_PAGE):
        streams += len(page)
        messages += sum(record.next_index - record.first_index for record in page)
        data_bytes += sum(record.size_bytes for record in page)
        after = (page[-1].name, page[-1].partition)
    return streams, messages, data_bytes


def _copy_pages(source: sqlite3.Connection, part: Path, progress: Progress) -> None:
    """Within the transaction that `source` has begun, so that a node that writes does not make it start again."""
    with closing(sqlite3.connect(part, isolation_level=None)) as destination:
        destination.execute("PRAGMA journal_mode=OFF")
        destination.execute("PRAGMA synchronous=OFF")
        source.backup(
            destination, pages=STEP_PAGES, progress=lambda _, left, total: progress("copying", total - left, total)
        )


def _put(backup: Path, target: Path, manifest: Manifest, check: bool, progress: Progress) -> None:
    """Copy, check, and put in place of what is there. What is there stays whole until the last three steps."""
    part = target / (FILE_NAME + PART_SUFFIX)
    try:
        if _copy_file(backup / FILE_NAME, part, progress) != manifest.sha256:
            raise _damaged(backup)
        if check:
            _verify_file(part, manifest.messages, progress)
        _forget_leases(part)
        # A write-ahead log beside the new database would be taken for its own.
        for suffix in ("-wal", "-shm"):
            (target / (FILE_NAME + suffix)).unlink(missing_ok=True)
        sync(target)
        rename_durably(part, target / FILE_NAME)
    finally:
        part.unlink(missing_ok=True)


def _forget_leases(part: Path) -> None:
    """What was leased since is unknown, so fences go on above what any can be: the time, as they rise more slowly."""
    with closing(sqlite3.connect(part, isolation_level=None)) as connection:
        raise_fences(connection, time.time_ns() // 1_000)
    sync(part)


@contextmanager
def _owned(target: Path) -> Iterator[list[str]]:
    """Hold the data directory, made if there is none; the names that were in it. Raises DatabaseInUse, StorageError."""
    was_there, made = _names(target), make_folder(target)
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
    """As `_replaceable`, of a directory that is left as it is."""
    names = _names(target)
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
    """What a restore would replace. Raises BackupError where it must not."""
    if not set(names) - {LOCK_NAME}:
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


def _verify_file(file: Path, messages: int, progress: Progress) -> None:
    """Raises DatabaseCorrupt. `immutable`, so that SQLite makes no further files beside one that nobody writes to."""
    location = f"file:{quote(str(file.absolute()))}?mode=ro&immutable=1"
    with closing(sqlite3.connect(location, uri=True, isolation_level=None)) as connection:
        session = SqliteSession(connection, writes=False)
        report = verify(session, lambda _, checked: progress("verifying", checked, messages))
    if not report.sound:
        raise DatabaseCorrupt(
            f"the copy has problems ({report.problem_count:,}), the first: {report.problems[0]}; "
            "run `stream-node verify` on where it came from, and use an older backup"
        )


def _copy_file(source: Path, target: Path, progress: Progress) -> str:
    """Copy and sync; the SHA-256 of what was written."""
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


def _digest(file: Path, progress: Progress) -> str:
    digest, done, total = hashlib.sha256(), 0, file.stat().st_size
    with file.open("rb") as reading:
        while chunk := reading.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            progress("reading back", done, total)
    return digest.hexdigest()


def _damaged(backup: Path) -> BackupError:
    return BackupError(f"the database in {backup} is not what was backed up: its SHA-256 differs; use another backup")


def _make_folder(target: Path) -> list[Path]:
    """The folders that had to be made. Raises BackupError where something is in it."""
    if _names(target):
        raise BackupError(f"{target} is not empty; choose a new folder for each backup")
    try:
        return make_folder(target)
    except OSError as error:
        raise storage_error(error) from error


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BackupError(f"{folder} cannot be used: {error.strerror or error}; choose another folder") from error


def _clean_up(folder: Path, made: list[Path], *files: Path) -> None:
    for file in files:
        file.unlink(missing_ok=True)
    for suffix in ("-journal", "-wal", "-shm"):
        (folder / (FILE_NAME + PART_SUFFIX + suffix)).unlink(missing_ok=True)
    remove_folders(made)


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    write_durably(folder / MANIFEST_NAME, msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
