"""The row in a database that names its worker, and how many workers share the streams of the node.
The number of workers decides which streams are in which database. A node with another number would begin streams anew,
at index 0. So the number is in each database, and comes with every backup. A database of an older version has no row
until a node serves it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Column, Integer, Table, insert, select

from stream_node.fleet.worker_place import WorkerPlace, worker_name
from stream_node.node.config import ConfigError
from stream_storage.contract import Session
from stream_storage.schema import metadata
from stream_storage.seal import SEAL, check_sealed, seal_column, seal_of
from stream_storage.sqlite.backup import MANIFEST_NAME, opened_file
from stream_storage.sqlite.database import FILE_NAME, Database
from stream_storage.sqlite.rows import connection_of
from stream_storage.sqlite.verify import has_seal
from stream_storage.statement import compiled

places = Table(
    "worker_places",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("workers", Integer, nullable=False),
    seal_column(),
)
"""A table with one row. number: the worker of this database, from 0. workers: the number of workers of the node."""

_FIND = compiled(select(places.c.number, places.c.workers, places.c.seal))
_INSERT = compiled(insert(places), "number", "workers", SEAL)


class StoredPlace(NamedTuple):
    """The worker that a database belongs to. That of a node without workers belongs to worker 0 of 1."""

    number: int
    workers: int

    def __str__(self) -> str:
        if self.workers == 1:
            return "the database of a node with one process"
        return f"the database of {worker_name(self.number)}, one of {self.workers} workers"


def stored_place(place: WorkerPlace | None) -> StoredPlace:
    return StoredPlace(0, 1) if place is None else StoredPlace(place.number, len(place.addresses))


def find_stored(session: Session) -> StoredPlace | None:
    """Returns the place that a session's database has stored, if any. Raises StorageError."""
    # A database of an older version that is only read has no such table.
    if not has_seal(connection_of(session), places.name):
        return None
    row = session.execute(_FIND).fetchone()
    if row is None:
        return None
    check_sealed(places.name, row, "run `stream-node verify`, then restore a backup")
    return StoredPlace(*row[:-1])


def read_stored(folder: Path) -> StoredPlace | None:
    """Returns the place that the database in a folder has stored, if any. The folder may be a backup.
    Raises StorageError, BackupError."""
    if not (folder / FILE_NAME).exists():
        return None
    if (folder / MANIFEST_NAME).exists():
        # Nothing may be written beside a backup, not even the files that SQLite needs for a database in use.
        with opened_file(folder / FILE_NAME) as session:
            return find_stored(session)
    with closing(Database.open(folder, read_only=True).read_session()) as session:
        return find_stored(session)


def write_stored(session: Session, place: StoredPlace) -> None:
    """Stores the place in a database that has none. Call it inside a transaction."""
    session.execute(_INSERT, (*place, seal_of(places.name, place)))


def ensure_stored(database: Database, place: StoredPlace) -> None:
    """Stores the place in a database that has none. Raises ConfigError if it has another one, and StorageError."""
    with closing(database.session()) as session:
        found = find_stored(session)
        if found is None:
            session.begin()
            write_stored(session, place)
            session.commit()
        elif found != place:
            raise ConfigError(
                f"data_dir: {database.directory} has {found}, and cannot be served as {place}; serve the data "
                f"directory that holds the folders of all workers, with --workers {found.workers}"
            )
