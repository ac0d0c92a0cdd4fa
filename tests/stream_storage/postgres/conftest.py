"""Servers and sessions of the tests of PostgreSQL. A test module that uses `session` has its own fixture `database`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.postgres import PostgresServer

if TYPE_CHECKING:
    from stream_storage.postgres.database import PostgresDatabase
    from stream_storage.postgres.session import PostgresSession
    from tests.stream_storage.postgres.failover import Pair


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def pair() -> Iterator[Pair]:
    # This module needs psycopg, and a test module that lacks it is skipped before it asks for a fixture.
    from tests.stream_storage.postgres.failover import Pair

    with Pair() as pair:
        yield pair


@pytest.fixture
def session(database: PostgresDatabase) -> Iterator[PostgresSession]:
    """The session that writes."""
    session = database.session()
    yield session
    session.close()
