"""What an interrupted restore, survey or repair leaves in a data directory: how it is named, found and removed.

A database that is being made to take another one's place has the other's name and `PART_SUFFIX` until it is whole. A
survey of a damaged log and a repair work in folders of their own, which have a hard link to the database or a copy of
it. Whoever makes or removes any of this holds the directory's lock; a reader that surveys a stopped node's log does
not, and is told by SQLite when its folder goes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from storage.errors import StorageError

PART_SUFFIX = ".part"
BESIDE = ("", "-journal", "-wal", "-shm")
"""SQLite keeps its journals and shared memory in files beside the database, named so."""
SURVEY_PREFIX = ".wal-survey-"
"""Of the folders in which `storage.wal.survey` opens the database with another log."""
REPAIR_PREFIX = ".repair-"
"""Of the folders in which `stream-node repair` makes a log without what is lost."""


def unfinished_of(database: Path) -> Path:
    """Where the database that is to have this path is made."""
    return database.with_name(database.name + PART_SUFFIX)


def find_unfinished(database: Path) -> list[Path]:
    """The files that an interruption has left of it."""
    part = unfinished_of(database)
    return [path for suffix in BESIDE if (path := part.with_name(part.name + suffix)).exists()]


def remove_unfinished(database: Path) -> int:
    """Remove them; how many there were. Raises OSError."""
    found = find_unfinished(database)
    # The database before its journals: a journal alone is nobody's.
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)


def find_scratch(database: Path) -> list[Path]:
    """What an interruption has left of a survey or a repair: their folders, and copies of the log that were not whole
    when it came."""
    patterns = (f"{SURVEY_PREFIX}*", f"{REPAIR_PREFIX}*", f"{database.name}-wal*{PART_SUFFIX}")
    return sorted(path for pattern in patterns for path in database.parent.glob(pattern))


def remove_scratch(database: Path) -> None:
    """Remove that. The database itself stays: a folder has another name of the file. Raises OSError."""
    for path in find_scratch(database):
        if path.is_dir() and not path.is_symlink():
            # A reader may be removing its own folder just now.
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def check_not_replaced(database: Path) -> None:
    """Raises StorageError where a restore was interrupted that found no database: a new one must not hide that."""
    if not database.exists() and find_unfinished(database):
        raise StorageError(
            f"a restore into {database.parent} was interrupted before it was done, and there is no database; "
            f"restore once more, or remove {unfinished_of(database).name} to begin with an empty one"
        )
