"""Opens the database of a node: an SQLite file, in which a row names its worker, or a PostgreSQL server."""

from __future__ import annotations

from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

import structlog
from sqlalchemy import Column, Integer, Table, insert, select

from stream_node.fleet.worker_place import worker_name
from stream_node.node.config import Config, ConfigError
from stream_storage.contract import Engine, Session
from stream_storage.errors import DiskFull, NoRoomToUpgrade
from stream_storage.schema import metadata
from stream_storage.seal import SEAL, check_sealed, seal_column, seal_of
from stream_storage.sqlite.backup import MANIFEST_NAME, opened_file
from stream_storage.sqlite.ballast import Ballast
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
"""A table with one row. number: the worker of this database, from 0. workers: the number of workers of the node. It
decides which streams are in which database, so it comes with every backup: a node with another number would begin
streams anew, at index 0. A database of an older version has no row until a node serves it."""

_FIND = compiled(select(places.c.number, places.c.workers, places.c.seal))
_INSERT = compiled(insert(places), "number", "workers", SEAL)


class StoredPlace(NamedTuple):
    """The worker that a database belongs to. Without workers, a node's database belongs to worker 0 of 1."""

    number: int
    workers: int

    def __str__(self) -> str:
        if self.workers == 1:
            return "the database of a node with one process"
        return f"the database of {worker_name(self.number)}, one of {self.workers} workers"


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
    """Stores the place in a database without a place. Raises ConfigError if it has another place, and StorageError."""
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


logger = structlog.get_logger(__name__)

SCHEMES = ("postgresql", "postgres")


def open_database(config: Config, folder: Path, place: StoredPlace) -> Engine:
    """Opens the database that the settings name. Raises ConfigError, StorageError.
    folder: the folder of its files, or of its lock. place: the worker to which a database in a file must belong."""
    if config.block_node:
        # A database gets the tables of the modules that are loaded, and a program may not have loaded those of blocks.
        import_module("stream_node.node.block_services")
    if config.database is None:
        try:
            opened = Database.open(folder, migrate=config.migrate)
        except NoRoomToUpgrade:
            raise
        except DiskFull:
            # Without the ballast there is room to start. Then the operator can delete messages.
            if not Ballast(folder).give_up():
                raise
            opened = Database.open(folder, migrate=config.migrate)
        try:
            ensure_stored(opened, place)
        except BaseException:
            opened.close()
            raise
        return opened
    check_url(config.database)
    try:
        from stream_storage.postgres.database import PostgresDatabase
    except ImportError as error:
        raise ConfigError(
            f"database: {error.name} is not installed; install the extra `postgres` (in a checkout: "
            "pip install '.[postgres]')"
        ) from error
    from stream_node.fleet.cluster.tables import TABLES

    database = PostgresDatabase.open(
        config.database,
        directory=folder,
        unsafe=config.database_unsafe,
        wait_s=config.database_wait_s,
        call_s=config.database_call_s,
        standby_reads=config.database_standby_reads,
        member=config.cluster,
        further_tables=() if config.cluster is None else TABLES,
        migrate=config.migrate,
    )
    logger.info("database_opened", database=database.name, meaning=database.durability.meaning)
    return database


def check_url(url: str) -> None:
    """Raises ConfigError if the URL is not one of PostgreSQL, cannot be read, or contains a password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        # The URL may contain a password, and the error the URL, so nobody gets to see the error.
        raise ConfigError("database: its host cannot be read; write postgresql://USER@HOST:PORT/DATABASE") from None
    if parts.scheme not in SCHEMES:
        raise ConfigError(
            "database: the node knows postgresql://USER@HOST:PORT/DATABASE; without this setting, it keeps an SQLite "
            "file in its data directory"
        )
    if parts.password or any("password" in name for name, _ in parse_qsl(parts.query)):
        raise ConfigError(
            "database: the URL contains a password, and settings are shown; put the password into a file for libpq, "
            "and name it by PGPASSFILE or ?passfile=FILE"
        )
