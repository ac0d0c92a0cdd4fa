"""Finds and removes the files that an interrupted restore, survey, repair or upgrade has left in a data directory.

A restore writes a new database under the name of the old database with `PART_SUFFIX` added. When the new database is
complete, the restore renames it. A survey lists the messages in a damaged write-ahead log. A survey and a repair work
in temporary folders, which contain a hard link to the database or a copy of the database.

A process holds the lock of the directory while it makes or removes such files. There is one exception: a process that
only reads can survey the write-ahead log of a stopped node without the lock. If another process removes the temporary
folder meanwhile, SQLite reports an error to the reader.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from stream_storage.errors import StorageError

PART_SUFFIX = ".part"
FILE_SUFFIXES = ("", "-journal", "-wal", "-shm")
"""The suffixes of the files of a database: the database itself, its journals and its shared memory."""
SURVEY_PREFIX = ".wal-survey-"
"""The name prefix of the folders in which `stream_storage.sqlite.wal.survey` opens the database with another
write-ahead log.
"""
REPAIR_PREFIX = ".repair-"
"""The name prefix of the folders in which `stream-node repair` makes a write-ahead log without the lost frames.
"""
UPGRADE_PREFIX = "backup-schema-"
"""The name prefix of the backups that `stream_storage.sqlite.upgrade` makes in the data directory. The schema version
and the time follow. While such a backup is incomplete, its name also ends in PART_SUFFIX."""


def part_path(database: Path) -> Path:
    """Returns the path of the incomplete database that a restore writes."""
    return database.with_name(database.name + PART_SUFFIX)


def find_parts(database: Path) -> list[Path]:
    """Returns the files of the incomplete database that an interrupted restore has left. The list can be empty."""
    part = part_path(database)
    return [path for suffix in FILE_SUFFIXES if (path := part.with_name(part.name + suffix)).exists()]


def remove_parts(database: Path) -> int:
    """Remove the incomplete database that an interrupted restore has left. Returns the number of removed files.
    Raises OSError."""
    found = find_parts(database)
    # Remove the database file first: if this is interrupted, nobody can mistake the remaining journals for a database.
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)


def find_scratch(database: Path) -> list[Path]:
    """Returns the temporary folders of interrupted surveys and repairs of the write-ahead log, incomplete copies of the
    log, and incomplete backups of interrupted upgrades.
    """
    patterns = (
        f"{SURVEY_PREFIX}*",
        f"{REPAIR_PREFIX}*",
        f"{database.name}-wal*{PART_SUFFIX}",
        f"{UPGRADE_PREFIX}*{PART_SUFFIX}",
    )
    return sorted(path for pattern in patterns for path in database.parent.glob(pattern))


def remove_scratch(database: Path) -> None:
    """Remove the temporary folders and incomplete copies that `find_scratch` finds. The database itself is not removed,
    since a temporary folder contains only a hard link or a copy. Raises OSError.
    """
    for path in find_scratch(database):
        if path.is_dir() and not path.is_symlink():
            # A reader may be removing its own folder at this moment.
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def check_not_replaced(database: Path) -> None:
    """Raises StorageError if an interrupted restore has left an incomplete database and no database exists. A new,
    empty database would hide the interrupted restore."""
    if not database.exists() and find_parts(database):
        raise StorageError(
            f"a restore into {database.parent} was interrupted before it was done, and there is no database; "
            f"restore once more, or remove {part_path(database).name} to begin with an empty one"
        )
