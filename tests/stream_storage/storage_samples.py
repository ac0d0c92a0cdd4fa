"""Helpers of the tests of storage: sources of sessions, transactions, streams with content."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from stream_storage.contract import Append, Operation, Session, SessionSource
from stream_storage.sqlite.database import Database
from stream_storage.sqlite.verify import verify
from tests.support.postgres import PostgresServer
from tests.support.storage.memory import MemoryDatabase

if TYPE_CHECKING:
    from stream_storage.postgres.database import PostgresDatabase

Source: TypeAlias = "MemoryDatabase | Database | PostgresDatabase"
EVERYTHING = 2**64 - 1
MEMORY_BYTES_MIN = 512 * 1024 * 1024


def _memory_directory() -> Path | None:
    directory = Path("/dev/shm")
    usable = directory.is_dir() and os.access(directory, os.W_OK)
    return directory if usable and shutil.disk_usage(directory).free >= MEMORY_BYTES_MIN else None


MEMORY_DIRECTORY = _memory_directory()
"""A file system in memory with enough room for any test, or None."""


@contextmanager
def open_sources(kind: str, directory: Path) -> Iterator[Source]:
    """A source of the kind "memory" or "sqlite". A database on disk is verified at the end."""
    source: Source = MemoryDatabase() if kind == "memory" else Database.open(directory)
    try:
        yield source
        if isinstance(source, Database):
            session = source.read_session()
            assert verify(session).problems == ()
            session.close()
    finally:
        source.close()


@contextmanager
def fresh_database(server: PostgresServer) -> Iterator[PostgresDatabase]:
    """An empty database on a PostgreSQL server that may lose what it has confirmed."""
    from stream_storage.postgres.database import PostgresDatabase

    name = f"test_{secrets.token_hex(4)}"
    server.ask(f"CREATE DATABASE {name}")
    database = PostgresDatabase.open(server.url_of(name), unsafe=True)
    try:
        yield database
    finally:
        database.close()
        server.ask(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def writing(source: SessionSource) -> Iterator[Session]:
    """A session that writes, in a transaction that is committed at the end."""
    session = source.session()
    try:
        session.begin()
        yield session
        session.commit()
    finally:
        session.close()


@contextmanager
def reading(source: SessionSource) -> Iterator[Session]:
    session = source.read_session()
    try:
        yield session
    finally:
        session.close()


def make_stream(source: Source, data: Sequence[bytes] = (), name: str = "stream") -> int:
    """The id of a stream that holds `data`."""
    with writing(source) as session:
        stream_id = session.log.ensure_stream(name, 0, 1).stream_id
        session.log.append([Append(stream_id, 0, 1_000, data)])
    return stream_id


def stored_data(source: Source, stream_id: int) -> list[bytes]:
    with reading(source) as session:
        return [record[1] for record in session.log.read(stream_id, 0, EVERYTHING, EVERYTHING)]


class Call(Operation):
    """An operation that calls a function; `result` is the value that the function returned."""

    __slots__ = ("function", "result")

    def __init__(self, function: Callable[[Session], Any], on_done: Callable[[Any], None]) -> None:
        super().__init__(on_done)
        self.function = function
        self.result: Any = None

    def apply(self, session: Session) -> None:
        self.result = self.function(session)
