"""The databases of nodes in a test: SQLite, or PostgreSQL where the fixture `each_database` asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from stream_storage.contract import Engine, Session
from stream_storage.sqlite.database import Database
from stream_storage.statement import Rows, compiled

if TYPE_CHECKING:
    from tests.support.postgres import PostgresServer


class _Folders:
    """Gives each data directory a database of its own on a PostgreSQL server."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._names: dict[Path, str] = {}

    def url(self, directory: Path) -> str:
        name = self._names.get(directory.resolve())
        if name is None:
            name = self._names[directory.resolve()] = self._server.new_database()
        return self._server.url_of(name)

    def close(self) -> None:
        for name in self._names.values():
            self._server.ask(f"DROP DATABASE {name} WITH (FORCE)")


_folders: _Folders | None = None
"""None while databases are SQLite's."""


@contextmanager
def on_postgres(server: PostgresServer) -> Iterator[None]:
    """In this block, databases are on the server. They are dropped at its end."""
    global _folders
    _folders = _Folders(server)
    try:
        yield
    finally:
        folders, _folders = _folders, None
        folders.close()


def open_database(directory: Path) -> Engine:
    """Opens the database that belongs to a data directory, as a node does."""
    if _folders is None:
        return Database.open(directory)
    from tests.support.storage.mortal_database import MortalDatabase

    return MortalDatabase.open(_folders.url(directory), directory=directory, unsafe=True)


def database_settings(directory: Path) -> dict[str, Any]:
    """The settings with which a node has the same database."""
    return {} if _folders is None else {"database": _folders.url(directory), "database_unsafe": True}


def execute_text(session: Session, statement: str, **values: Any) -> Rows:
    """Executes a statement that is the same for every kind of database. values: those of its parameters (`:name`)."""
    return session.execute(compiled(text(statement)), values)
