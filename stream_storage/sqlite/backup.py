"""Takes a backup of a data directory, whether its node is running or stopped. `stream_node.care.restore` restores it.

A backup is a folder with a copy of the database, which includes the saved positions of consumers, and a manifest with
the SHA-256 hash of the copy. SQLite's backup interface copies the pages of one read transaction, so a running node
continues to store pushes; its write-ahead log grows until the copy is complete. The lock of the data directory is not
touched."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import quote

import msgspec

from ockam.files import durable_files
from ockam.files.parsing import ParseError, parse_json
from stream_storage.contract import Session
from stream_storage.errors import DatabaseCorrupt, DatabaseTooNew
from stream_storage.sqlite.database import FILE_NAME, Database
from stream_storage.sqlite.errors import storage_error
from stream_storage.sqlite.leftovers import part_path, remove_parts
from stream_storage.sqlite.migrate import version_of
from stream_storage.sqlite.schema import APPLICATION_ID, SCHEMA_VERSION
from stream_storage.sqlite.session import SqliteSession
from stream_storage.sqlite.verify import verify
from stream_storage.stream_rows import each_stream

MANIFEST_NAME = "backup.json"
FORMAT = 1
"""The version of the manifest format. It is increased with every change that older programs cannot read."""
STEP_PAGES = 256
"""The number of database pages (of 8 KiB) that are copied between two progress reports."""
CHUNK_BYTES = 1024 * 1024
JOURNAL_SUFFIXES: Final = ("-wal", "-journal")
_DO: Final = "name the file that `litestream restore` wrote"

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Reports progress: the current step (such as "copying"), the amount that is done, and the total, or None."""


class BackupError(Exception):
    """The error of a backup that cannot be taken or restored as requested. The text says what to do."""


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of a backup, a JSON file in its folder."""

    format: int
    created_us: int  # the time of the backup, in microseconds since 1970
    schema_version: int
    streams: int  # the number of partitions
    messages: int
    data_bytes: int  # the data of all messages
    database_bytes: int
    sha256: str  # the hash of the database file


def back_up(source: Path, target: Path, *, now_us: int, check: bool, progress: Progress) -> BackupManifest:
    """Copies the database of the data directory `source` durably into the new or empty folder `target`.

    check: whether every message of the copy is also read and checked. The copy gets its final name when it is complete.

    Raises BackupError, StorageError."""
    database = Database.open(source, read_only=True)
    made = _make_folder(target)
    part = part_path(target / FILE_NAME)
    try:
        session = database.read_session()
        try:
            # The transaction holds one state of the database for the counts and for the copy.
            session.begin()
            counts = count_stored(session)
            schema_version = session.execute("PRAGMA user_version").fetchone()[0]
            _copy_pages(session.connection, part, progress)
        finally:
            session.close()
        if check:
            verify_file(part, counts[1], progress)
        database_bytes, sha256 = part.stat().st_size, digest_of(part, progress)
        # The database gets its name last: a folder without it is no backup.
        durable_files.sync(part)
        manifest = write_manifest(target, now_us, schema_version, counts, database_bytes, sha256)
        durable_files.rename_durably(part, target / FILE_NAME)
    except BaseException as error:
        for file in (target / MANIFEST_NAME, target / FILE_NAME):
            file.unlink(missing_ok=True)
        remove_parts(target / FILE_NAME)
        durable_files.remove_folders(made)
        if isinstance(error, OSError | sqlite3.Error):
            raise storage_error(error) from error
        raise
    return manifest


def read_manifest(backup: Path) -> BackupManifest:
    """Reads the manifest of a backup. Raises BackupError, and DatabaseTooNew if its database needs a newer program."""
    try:
        manifest = parse_json((backup / MANIFEST_NAME).read_bytes(), BackupManifest)
    except OSError as error:
        raise BackupError(
            f"{backup} is no backup: {MANIFEST_NAME}: {error.strerror or error}; name a folder made by `backup`"
        ) from error
    except ParseError as error:
        raise BackupError(f"{backup / MANIFEST_NAME} cannot be read: {error}; take another backup") from error
    if manifest.format > FORMAT:
        raise BackupError(f"{backup} was taken by a newer program; restore it with that one")
    if manifest.schema_version > SCHEMA_VERSION:
        raise DatabaseTooNew(manifest.schema_version, SCHEMA_VERSION)
    return manifest


def count_stored(session: Session) -> tuple[int, int, int]:
    """Returns the numbers of partitions, messages and bytes of data, as sums over the rows of partitions."""
    streams = messages = data_bytes = 0
    for record in each_stream(session.log):
        streams += 1
        messages += record.next_index - record.first_index
        data_bytes += record.size_bytes
    return streams, messages, data_bytes


def _copy_pages(source: sqlite3.Connection, part: Path, progress: Progress) -> None:
    """Copies all pages. The caller's read transaction keeps commits of a running node from restarting the copy."""
    durable_files.create_private(part).close()
    with closing(sqlite3.connect(part, isolation_level=None)) as destination:
        destination.execute("PRAGMA journal_mode=OFF")
        destination.execute("PRAGMA synchronous=OFF")
        source.backup(
            destination, pages=STEP_PAGES, progress=lambda _, left, total: progress("copying", total - left, total)
        )


def verify_file(file: Path, messages: int, progress: Progress) -> None:
    """Reads and checks every message of the database `file`. Raises DatabaseCorrupt."""
    with opened_immutable(file) as session:
        report = verify(session, lambda _, checked: progress("verifying", checked, messages))
    if not report.sound:
        raise DatabaseCorrupt(
            f"the copy has problems ({report.problem_count:,}), the first: {report.problems[0]}; "
            "run `stream-node verify` on where it came from, and use an older backup"
        )


def digest_of(file: Path, progress: Progress = lambda step, done, total: None) -> str:
    digest, done, total = hashlib.sha256(), 0, file.stat().st_size
    with file.open("rb") as reading:
        while chunk := reading.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            progress("reading back", done, total)
    return digest.hexdigest()


def copy_file(source: Path, target: Path, progress: Progress) -> str:
    """Copies a file durably. Returns the SHA-256 hash of the written bytes."""
    digest, done, total = hashlib.sha256(), 0, source.stat().st_size
    with source.open("rb") as reading, durable_files.create_private(target) as writing:
        while chunk := reading.read(CHUNK_BYTES):
            digest.update(chunk)
            writing.write(chunk)
            done += len(chunk)
            progress("copying", done, total)
        writing.flush()
        os.fsync(writing.fileno())
    return digest.hexdigest()


def _make_folder(target: Path) -> list[Path]:
    if names_in(target):
        raise BackupError(f"{target} is not empty; choose a new folder for each backup")
    try:
        return durable_files.make_folder(target, mode=0o700)
    except OSError as error:
        raise BackupError(f"{target} cannot be made: {error.strerror or error}; choose another folder") from error


def names_in(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BackupError(f"{folder} cannot be used: {error.strerror or error}; choose another folder") from error


def write_manifest(
    folder: Path, created_us: int, schema_version: int, counts: tuple[int, int, int], database_bytes: int, sha256: str
) -> BackupManifest:
    """Writes the manifest of a backup durably into its folder. counts: the result of `count_stored`."""
    manifest = BackupManifest(
        format=FORMAT,
        created_us=created_us,
        schema_version=schema_version,
        streams=counts[0],
        messages=counts[1],
        data_bytes=counts[2],
        database_bytes=database_bytes,
        sha256=sha256,
    )
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
    durable_files.write_durably(folder / MANIFEST_NAME, content, mode=durable_files.PRIVATE_MODE)
    return manifest


@contextmanager
def opened_immutable(file: Path) -> Iterator[SqliteSession]:
    """Yields a session that reads the database in `file`, opened as `immutable`, so that SQLite creates no other
    files. Raises sqlite3.Error."""
    location = f"file:{quote(str(file.absolute()))}?mode=ro&immutable=1"
    with closing(sqlite3.connect(location, uri=True, isolation_level=None)) as connection:
        yield SqliteSession(connection, writes=False)


@contextmanager
def opened_file(file: Path) -> Iterator[SqliteSession]:
    """Yields a session that reads a database file outside a data directory, such as one that Litestream has restored,
    without a manifest or a lock. Raises BackupError if the file is missing, incomplete or no node's database, and
    DatabaseTooNew."""
    _check_complete(file)
    try:
        with opened_immutable(file) as session:
            application = session.connection.execute("PRAGMA application_id").fetchone()[0]
            if application != APPLICATION_ID:
                raise BackupError(f"{file} is no database of a node; {_DO}")
            version = version_of(session.connection)
            if version > SCHEMA_VERSION:
                raise DatabaseTooNew(version, SCHEMA_VERSION)
            yield session
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise BackupError(f"{file} cannot be read as a database: {error}; {_DO}") from error


def _check_complete(file: Path) -> None:
    """Raises BackupError if the file cannot be read, or if a journal beside it has a part of the database."""
    try:
        with file.open("rb"):
            pass
        for journal in (file.with_name(file.name + suffix) for suffix in JOURNAL_SUFFIXES):
            if journal.exists() and journal.stat().st_size:
                raise BackupError(
                    f"{file} is not complete: {journal.name} beside it has a part of it; {_DO}, or copy the database "
                    "of a node with `stream-node backup`"
                )
    except OSError as error:
        raise BackupError(f"{file} cannot be read: {error.strerror or error}; {_DO}") from error
