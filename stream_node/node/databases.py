"""Opens the database of a node: an SQLite file in the data directory, or a PostgreSQL server."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import structlog

from stream_node.care.stored_place import StoredPlace, ensure_stored
from stream_node.node.config import Config, ConfigError
from stream_storage.engine import Engine
from stream_storage.errors import DiskFull, NoRoomToUpgrade
from stream_storage.sqlite.ballast import Ballast
from stream_storage.sqlite.database import Database

logger = structlog.get_logger(__name__)

SCHEMES = ("postgresql", "postgres")


def open_database(config: Config, folder: Path, place: StoredPlace) -> Engine:
    """Opens the database that the settings name. Raises ConfigError, StorageError.
    folder: the folder of its files, or of its lock. place: the worker to which a database in a file must belong."""
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
