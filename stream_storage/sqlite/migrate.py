"""Brings the tables of a database from an older schema version to the newest one, by revisions of Alembic.

The schema version is the `user_version` in the header of the file. Alembic, whose import takes half a second, is
imported only if there is something to do. `stream_storage.sqlite.upgrade` makes the backup before."""

from __future__ import annotations

import sqlite3
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stream_storage.errors import MigrationFailed, StorageError
from stream_storage.failpoint import failpoint
from stream_storage.sqlite.errors import storage_error
from stream_storage.sqlite.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from alembic.script import Script
    from sqlalchemy import Connection


class Migrations(NamedTuple):
    """A chain of revisions: the files of `package`. The id of each is its schema version, in four digits."""

    package: str
    head: int


MIGRATIONS: Final = Migrations("stream_storage.sqlite.migrations", SCHEMA_VERSION)


def version_of(connection: sqlite3.Connection) -> int:
    """Returns the schema version of the database, or 0 for a new file. Raises sqlite3.Error."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def migrate(connection: sqlite3.Connection, migrations: Migrations = MIGRATIONS) -> int:
    """Runs the revisions that the database lacks, each in one transaction, over a connection with autocommit. Returns
    their number. A kill or a StorageError leaves the version of the last committed revision."""
    if version_of(connection) == migrations.head:
        return 0
    from sqlalchemy import StaticPool, create_engine

    # SQLAlchemy gets this one connection, and does not close it: the engine is never disposed of. Returning the
    # connection to the pool must not end the transaction of a revision.
    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool, pool_reset_on_return=None)
    missing = find_missing(migrations, version_of(connection))
    foreign_keys = connection.execute("PRAGMA foreign_keys").fetchone()[0]
    # A revision may replace a table, which would delete the rows that refer to it. SQLite ignores this setting within a
    # transaction, so it is set before.
    connection.execute("PRAGMA foreign_keys=0")
    try:
        with engine.connect() as alchemy:
            for revision in missing:
                _run(connection, alchemy, revision)
    finally:
        connection.execute(f"PRAGMA foreign_keys={foreign_keys}")
    return len(missing)


def find_missing(migrations: Migrations, version: int) -> list[Script]:
    """Returns the revisions from `version` (0: no tables) to the newest one, in the order in which they run."""
    from alembic.script import ScriptDirectory

    spec = find_spec(migrations.package)
    assert spec is not None, f"there is no package {migrations.package}"
    assert spec.submodule_search_locations is not None, f"{migrations.package} is no package"
    folder = spec.submodule_search_locations[0]
    scripts = ScriptDirectory(folder, version_locations=[folder])
    assert scripts.get_current_head() == revision_id(migrations.head), "the newest revision is not the schema version"
    found = scripts.iterate_revisions("heads", revision_id(version) if version else "base")
    return list(reversed(list(found)))


def revision_id(version: int) -> str:
    return f"{version:04}"


def _run(connection: sqlite3.Connection, alchemy: Connection, revision: Script) -> None:
    """Runs one revision in one transaction, which also writes the new schema version."""
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext
    from sqlalchemy.exc import DBAPIError

    version = int(revision.revision)
    try:
        # SQLAlchemy ends the transaction, but does not begin one on a connection with autocommit.
        with alchemy.begin():
            connection.execute("BEGIN IMMEDIATE")
            with Operations.context(MigrationContext.configure(alchemy)):
                revision.module.upgrade()
            broken: list[Any] = connection.execute("PRAGMA foreign_key_check").fetchall()
            if broken:
                table, _, parent, _ = broken[0]
                raise MigrationFailed(version, f"a row of {table} refers to a row of {parent} that is missing")
            if not connection.in_transaction:
                raise MigrationFailed(version, "the revision ended its transaction")
            connection.execute(f"PRAGMA user_version={version}")
            failpoint("before_revision_commit")
    except Exception as error:
        if isinstance(error, StorageError):
            raise
        cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
        found = storage_error(cause)
        # Errors such as a full disk have texts of their own. Any other error is a mistake in the revision.
        if isinstance(cause, sqlite3.Error | OSError) and (found.retriable or found.fatal):
            raise found from error
        raise MigrationFailed(version, f"{type(cause).__name__}: {cause}") from error
    failpoint("after_revision_commit")
