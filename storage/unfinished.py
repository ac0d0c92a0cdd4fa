"""A database that is being made beside another one, to take its place: its name, and what an interruption leaves of it.

The new database has the other's name and `PART_SUFFIX` until it is whole. Whoever makes it holds the directory's lock.
"""

from __future__ import annotations

from pathlib import Path

from storage.errors import StorageError

PART_SUFFIX = ".part"
BESIDE = ("", "-journal", "-wal", "-shm")
"""SQLite keeps its journals and shared memory in files beside the database, named so."""


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


def check_not_replaced(database: Path) -> None:
    """Raises StorageError where a restore was interrupted that found no database: a new one must not hide that."""
    if not database.exists() and find_unfinished(database):
        raise StorageError(
            f"a restore into {database.parent} was interrupted before it was done, and there is no database; "
            f"restore once more, or remove {unfinished_of(database).name} to begin with an empty one"
        )
