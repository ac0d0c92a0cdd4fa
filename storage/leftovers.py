"""Leftovers of an interrupted restore, survey or repair in a data directory: their names, and how to remove them.

A restore writes a new database under the name of the old database with `PART_SUFFIX` added, and renames it when it is
complete. Such an incomplete database is called a part. A survey of a damaged log and a repair work in scratch folders,
which hold a hard link to the database or a copy of it. A process that makes or removes parts and scratch folders holds
the lock of the directory. There is one exception: a reader may survey the log of a stopped node without the lock. If
its folder is removed meanwhile, the reader gets an error from SQLite.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from storage.errors import StorageError

PART_SUFFIX = ".part"
FILE_SUFFIXES = ("", "-journal", "-wal", "-shm")
"""The suffixes of the files of a database: the database itself, its journals and its shared memory."""
SURVEY_PREFIX = ".wal-survey-"
"""The prefix of the folders in which `storage.wal.survey` opens the database with a different log."""
REPAIR_PREFIX = ".repair-"
"""The prefix of the folders in which `stream-node repair` makes a log without the lost frames."""


def part_path(database: Path) -> Path:
    """Returns the path of the part from which a restore makes the database."""
    return database.with_name(database.name + PART_SUFFIX)


def find_parts(database: Path) -> list[Path]:
    """Returns the files of the part that an interrupted restore has left, or an empty list."""
    part = part_path(database)
    return [path for suffix in FILE_SUFFIXES if (path := part.with_name(part.name + suffix)).exists()]


def remove_parts(database: Path) -> int:
    """Remove the files of the part that an interrupted restore has left. Returns the number of removed files. Raises
    OSError."""
    found = find_parts(database)
    # Remove the database file first: if this is interrupted, nobody can mistake the remaining journals for a database.
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)


def find_scratch(database: Path) -> list[Path]:
    """Returns the scratch folders of interrupted surveys and repairs, and the incomplete copies of the log."""
    patterns = (f"{SURVEY_PREFIX}*", f"{REPAIR_PREFIX}*", f"{database.name}-wal*{PART_SUFFIX}")
    return sorted(path for pattern in patterns for path in database.parent.glob(pattern))


def remove_scratch(database: Path) -> None:
    """Remove everything that `find_scratch` finds. The database stays, since a scratch folder contains only a hard link
    to it. Raises OSError."""
    for path in find_scratch(database):
        if path.is_dir() and not path.is_symlink():
            # A reader may be removing its own folder at this moment.
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def check_not_replaced(database: Path) -> None:
    """Raises StorageError if a part exists but no database: a new, empty database would hide the interrupted
    restore."""
    if not database.exists() and find_parts(database):
        raise StorageError(
            f"a restore into {database.parent} was interrupted before it was done, and there is no database; "
            f"restore once more, or remove {part_path(database).name} to begin with an empty one"
        )
