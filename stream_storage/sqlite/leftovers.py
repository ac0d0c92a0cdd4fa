"""Finds and removes the files that an interrupted restore, survey, repair or upgrade has left in a data directory.

A restore writes a new database under the name of the old one with `PART_SUFFIX` added, and renames it when it is
complete. A survey of a damaged write-ahead log and a repair work in temporary folders with a hard link to the database
or a copy of it. All of these hold the lock of the directory, apart from a reader's survey of a stopped node: if its
folder is removed meanwhile, SQLite reports an error to the reader."""

from __future__ import annotations

import shutil
from pathlib import Path

from stream_storage.errors import StorageError

PART_SUFFIX = ".part"
FILE_SUFFIXES = ("", "-journal", "-wal", "-shm")
"""The suffixes of the files of a database: the database itself, its journals and its shared memory."""
SURVEY_PREFIX = ".wal-survey-"
"""Begins the names of folders in which a database is opened with another write-ahead log."""
REPAIR_PREFIX = ".repair-"
"""Begins the names of folders in which `stream-node repair` makes a write-ahead log without lost frames."""
UPGRADE_PREFIX = "backup-schema-"
"""Begins the names of the backups of `stream_storage.sqlite.upgrade`; schema version and time follow, and PART_SUFFIX
while one is incomplete."""


def part_path(database: Path) -> Path:
    return database.with_name(database.name + PART_SUFFIX)


def find_parts(database: Path) -> list[Path]:
    part = part_path(database)
    return [path for suffix in FILE_SUFFIXES if (path := part.with_name(part.name + suffix)).exists()]


def remove_parts(database: Path) -> int:
    """Removes the files of an interrupted restore, and returns their number. Raises OSError."""
    found = find_parts(database)
    # Remove the database file first: if this is interrupted, nobody can mistake the remaining journals for a database.
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)


def find_scratch(database: Path) -> list[Path]:
    """Returns the temporary folders of interrupted surveys and repairs, and incomplete copies of logs and backups."""
    patterns = (
        f"{SURVEY_PREFIX}*",
        f"{REPAIR_PREFIX}*",
        f"{database.name}-wal*{PART_SUFFIX}",
        f"{UPGRADE_PREFIX}*{PART_SUFFIX}",
    )
    return sorted(path for pattern in patterns for path in database.parent.glob(pattern))


def remove_scratch(database: Path) -> None:
    """Removes the files that `find_scratch` finds. Links and copies are removed, never the database. Raises OSError."""
    for path in find_scratch(database):
        if path.is_dir() and not path.is_symlink():
            # A reader may be removing its own folder at this moment.
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def check_not_replaced(database: Path) -> None:
    """Raises StorageError if an interrupted restore has left no database: a new, empty one would hide the restore."""
    if not database.exists() and find_parts(database):
        raise StorageError(
            f"a restore into {database.parent} was interrupted before it was done, and there is no database; "
            f"restore once more, or remove {part_path(database).name} to begin with an empty one"
        )
