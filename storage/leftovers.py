"""Leftovers of an interrupted restore, survey or repair in a data directory: their names, and how to remove them.

A restore makes a new database under the name of the old one and `PART_SUFFIX`, until it is whole: that is a part. A
survey of a damaged log and a repair work in scratch folders, which hold a hard link to the database or a copy of it. A
process that makes or removes parts and scratch folders holds the lock of the directory. One exception: a reader may
survey the log of a stopped node without the lock, and gets an error from SQLite if its folder is removed.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from storage.errors import StorageError

PART_SUFFIX = ".part"
FILE_SUFFIXES = ("", "-journal", "-wal", "-shm")
"""A database has these files: itself, and journals and shared memory with a suffix behind its name."""
SURVEY_PREFIX = ".wal-survey-"
"""The folders in which `storage.wal.survey` opens the database with another log begin so."""
REPAIR_PREFIX = ".repair-"
"""The folders in which `stream-node repair` makes a log without the lost frames begin so."""


def part_path(database: Path) -> Path:
    """The path of the part that is to become this database."""
    return database.with_name(database.name + PART_SUFFIX)


def find_parts(database: Path) -> list[Path]:
    """The files of a part that an interrupted restore has left."""
    part = part_path(database)
    return [path for suffix in FILE_SUFFIXES if (path := part.with_name(part.name + suffix)).exists()]


def remove_parts(database: Path) -> int:
    """Remove the files of a part, and return how many there were. Raises OSError."""
    found = find_parts(database)
    # The database goes first: its journals alone cannot be taken for a database.
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)


def find_scratch(database: Path) -> list[Path]:
    """Scratch folders of interrupted surveys and repairs, and copies of the log that are not whole."""
    patterns = (f"{SURVEY_PREFIX}*", f"{REPAIR_PREFIX}*", f"{database.name}-wal*{PART_SUFFIX}")
    return sorted(path for pattern in patterns for path in database.parent.glob(pattern))


def remove_scratch(database: Path) -> None:
    """Remove all scratch. The database stays, since a scratch folder has only a second name of it. Raises OSError."""
    for path in find_scratch(database):
        if path.is_dir() and not path.is_symlink():
            # A reader may be removing its own folder at this moment.
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def check_not_replaced(database: Path) -> None:
    """Raises StorageError if there is a part and no database: an empty database would hide the interrupted restore."""
    if not database.exists() and find_parts(database):
        raise StorageError(
            f"a restore into {database.parent} was interrupted before it was done, and there is no database; "
            f"restore once more, or remove {part_path(database).name} to begin with an empty one"
        )
