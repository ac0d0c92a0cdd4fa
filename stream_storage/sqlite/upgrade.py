"""Brings the database of a data directory up to date at the start of a node, after a backup.

The backup is a folder in the data directory, such as `backup-schema-1-20261123T010203Z`: schema version and time (UTC).
It has the format of `stream_storage.sqlite.backup`, and stays until the operator removes it. The caller holds the lock
of the directory. A kill leaves the database at one schema version, and the next start goes on there."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import structlog

from ockam.files.durable_files import make_folder, rename_durably
from ockam.files.parsing import ParseError, parse_json
from stream_storage.errors import DatabaseCorrupt, NoRoomToUpgrade, StorageBusy
from stream_storage.failpoint import failpoint
from stream_storage.sqlite.backup import (
    MANIFEST_NAME,
    BackupManifest,
    copy_file,
    count_stored,
    digest_of,
    opened_immutable,
    write_manifest,
)
from stream_storage.sqlite.errors import mapped
from stream_storage.sqlite.leftovers import PART_SUFFIX, UPGRADE_PREFIX
from stream_storage.sqlite.migrate import Migrations, migrate, version_of
from stream_storage.sqlite.session import SqliteSession

ROOM_BYTES: Final = 64 * 1024 * 1024
"""The free disk space that must be left after the backup, for the write-ahead log of the revisions."""
_NAME: Final = re.compile(rf"{UPGRADE_PREFIX}(\d+)-(\d{{8}}T\d{{6}}Z(?:-\d+)?)")

logger = structlog.get_logger(__name__)


def upgrade(session: SqliteSession, database: Path, migrations: Migrations) -> Path:
    """Makes a backup of the database beside it, unless an interrupted start has made the same one, and runs the missing
    revisions. Returns the backup. Raises NoRoomToUpgrade and other StorageErrors; the database then has the version of
    the last committed revision."""
    found = version_of(session.connection)
    # The whole database must be in its file, because the file alone is copied.
    if session.checkpoint("TRUNCATE").blocked:
        raise StorageBusy(f"{database} is being read by another program; end that program, then start again")
    # Another program that ignores the lock of the directory cannot write while the file is copied.
    session.begin()
    try:
        with mapped():
            backup = _find_same(database, found) or _back_up(session, database, found)
    finally:
        session.rollback()
    failpoint("after_upgrade_backup")
    migrate(session.connection, migrations)
    logger.info("database_upgraded", from_version=found, to_version=migrations.head, backup=str(backup))
    return backup


def find_way_back(directory: Path, supported: int) -> Path | None:
    """Returns the newest backup of an upgrade whose schema version this program supports, or None."""
    usable = [(stamp, folder) for version, stamp, folder in _backups(directory) if version <= supported]
    return max(usable)[1] if usable else None


def _backups(directory: Path) -> Iterator[tuple[int, str, Path]]:
    """Yields the schema version, the time and the folder of each complete backup that an upgrade made."""
    for folder in directory.glob(f"{UPGRADE_PREFIX}*"):
        parts = _NAME.fullmatch(folder.name)
        if parts is not None and (folder / MANIFEST_NAME).exists():
            yield int(parts[1]), parts[2], folder


def _find_same(database: Path, version: int) -> Path | None:
    """Returns a backup with the content that the database has now, or None: a node that fails in a revision and is
    started again and again must not fill the disk."""
    digest: str | None = None
    size_bytes = database.stat().st_size
    for _, _, folder in filter(lambda each: each[0] == version, _backups(database.parent)):
        try:
            manifest = parse_json((folder / MANIFEST_NAME).read_bytes(), BackupManifest)
        except ParseError:
            continue
        copy = folder / database.name
        if manifest.database_bytes != size_bytes or not copy.exists():
            continue
        digest = digest or digest_of(database)
        if digest == manifest.sha256 == digest_of(copy):
            return folder
    return None


def _back_up(session: SqliteSession, database: Path, version: int) -> Path:
    """Copies the database file into a new folder beside it, checks the copy, and names the folder."""
    # 1. The disk needs room for the copy, and for the write-ahead log that the migration will write.
    size_bytes = database.stat().st_size
    free_bytes = session.free_disk_bytes()
    if free_bytes < size_bytes + ROOM_BYTES:
        raise NoRoomToUpgrade(database.parent, size_bytes + ROOM_BYTES, free_bytes)
    # 2. The copy is made in a folder with a temporary name, which the next start removes if it is not complete.
    now_us = time.time_ns() // 1_000
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_us // 1_000_000))
    first, count = database.parent / f"{UPGRADE_PREFIX}{version}-{stamp}", 1
    named = first
    while named.exists():
        count += 1
        named = first.with_name(f"{first.name}-{count}")
    part = named.with_name(named.name + PART_SUFFIX)
    make_folder(part, mode=0o700)
    copy = part / database.name
    digest = copy_file(database, copy, lambda *progress: failpoint("within_upgrade_backup"))
    # 3. The copy is opened: it must have the schema version and the counts of the database.
    held = count_stored(session)
    _check_copy(copy, version, held)
    # 4. The manifest, and the rename, which makes the backup complete.
    write_manifest(part, now_us, version, held, size_bytes, digest)
    failpoint("before_upgrade_backup_named")
    rename_durably(part, named)
    return named


def _check_copy(copy: Path, version: int, held: tuple[int, int, int]) -> None:
    """Raises DatabaseCorrupt if the copy differs. held: the numbers of streams, messages and bytes in the database."""
    with mapped(), opened_immutable(copy) as session:
        found, counted = version_of(session.connection), count_stored(session)
    if (found, counted) != (version, held):
        raise DatabaseCorrupt(
            f"the backup before the upgrade is not what was copied: {copy} has schema version {found} and {counted}, "
            f"not {version} and {held}; check the disk, then start again"
        )
