"""Goal: a node that starts does not disturb the members that write to its database, and waits for none of them. Nor do
members that raise the floor of all leases wait for each other without end.

Method: a transaction of another program has the locks of a writer on every table while a second member opens the
database, and the statements of the second one have a time limit.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

import psycopg

from block_node.persist.schema import block_evicted
from index_service.lease_storage import FLOOR, raise_floor
from stream_node.fleet.cluster.tables import TABLES
from stream_storage.errors import DatabaseLost
from stream_storage.postgres.database import PostgresDatabase
from tests.support.postgres import PostgresServer


def opened(server: PostgresServer, folder: Path, member: str) -> PostgresDatabase:
    """The database as a member opens it, which waits for nothing longer than some seconds."""
    return PostgresDatabase.open(
        server.url_of("postgres"),
        directory=folder / member,
        call_s=3.0,
        wait_s=3.0,
        member=member,
        further_tables=TABLES,
    )


def test_a_member_joins_while_others_write(server: PostgresServer, tmp_path: Path) -> None:
    opened(server, tmp_path, "first").close()
    tables = server.ask("SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace")
    with psycopg.connect(server.url_of("postgres")) as writer:
        for table in tables.split():
            writer.execute(f"LOCK TABLE {table} IN ROW EXCLUSIVE MODE")
        opened(server, tmp_path, "second").close()


def test_members_that_raise_the_floor_at_once_cause_no_deadlock(server: PostgresServer, tmp_path: Path) -> None:
    """Each has the leases of two groups to forget in one transaction."""
    databases = [opened(server, tmp_path, member) for member in ("first", "second")]
    first, second = (each.session() for each in databases)
    first.begin()
    raise_floor(first, 40)
    first.commit()
    first.begin()
    raise_floor(first, 41)

    def raise_too() -> None:
        second.begin()
        raise_floor(second, 42)
        raise_floor(second, 43)
        second.commit()

    with ThreadPoolExecutor() as threads:
        other = threads.submit(raise_too)
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        while server.ask(waits) == "0":
            assert not other.done(), other.result()
        raise_floor(first, 42)
        first.commit()
        other.result()
    assert next(iter(first.execute(FLOOR)))[0] == 43
    for session, database in zip((first, second), databases, strict=True):
        session.close()
        database.close()


def test_a_start_waits_a_bounded_time_for_a_lock(server: PostgresServer, tmp_path: Path) -> None:
    """Method: another connection keeps a table that a start reads from everybody else."""
    opened(server, tmp_path, "first").close()
    with psycopg.connect(server.url_of("postgres")) as other:
        other.execute("LOCK TABLE schema_version IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(DatabaseLost):
            PostgresDatabase.open(server.url_of("postgres"), wait_s=0.5, call_s=0.5)


def test_what_is_missing_is_created(server: PostgresServer, tmp_path: Path) -> None:
    """A database of an earlier program, without a table and an index."""

    def relations() -> list[str]:
        return server.ask(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY relname"
        ).split()

    url = server.url_of("postgres")
    PostgresDatabase.open(url, directory=tmp_path / "first").close()
    before = relations()
    server.ask(f"DROP INDEX block_index_by_place; DROP TABLE {block_evicted.name}")
    assert relations() != before
    PostgresDatabase.open(url, directory=tmp_path / "first").close()
    assert relations() == before


def test_a_member_that_is_frozen_in_the_middle_of_a_copy_is_fenced(server: PostgresServer, tmp_path: Path) -> None:
    """The server waits for the rest of the rows, without a time limit, and keeps the locks of the transaction."""
    frozen, other = (opened(server, tmp_path, name) for name in ("frozen", "other"))
    session, fencing = frozen.session(), other.session()
    session.begin()
    session._connection.pgconn.exec_(b"COPY messages FROM STDIN")
    fencing.begin()
    fencing.disconnect(frozen.owner)
    assert fencing.fence(frozen.owner)
    fencing.commit()
    assert server.ask("SELECT count(*) FROM cluster_writers WHERE owner = ''") == "1"
    for each in (session, fencing, frozen, other):
        each.close()
