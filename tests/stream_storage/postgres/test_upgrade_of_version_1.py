"""Goal: a database of version 1 gets the incarnation of each saved position, and a node of that version that still runs
cannot write any more.

Method: the tables of this version are given the shape that version 1 had, with its seals; a session that was opened
before stands for the node of that version.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from index_service.accesses import Access, IndexRequests, load_positions
from index_service.extensions import LoadRequest
from stream_service.operations import ensure_streams
from stream_storage.commit import commit_batch
from stream_storage.contract import Do, ignore_done
from stream_storage.errors import DatabaseTooOld, NodeReplaced
from stream_storage.postgres.database import PostgresDatabase
from stream_storage.postgres.schema import SCHEMA_VERSION
from stream_storage.seal import seal_of
from tests.support.postgres import PostgresServer


def test_a_database_of_version_1_is_brought_up_to_date_and_its_writer_is_fenced(
    server: PostgresServer, tmp_path: Path
) -> None:
    old = PostgresDatabase.open(server.url_of("postgres"), directory=tmp_path / "old", member="old")
    writer = old.session()
    made = Do(lambda session: ensure_streams(session, "größe", (0, 1), 77), ignore_done)
    saves = IndexRequests([Access(("c", name, 1), 5) for name in ("größe", "gone")], 9, ignore_done)
    assert commit_batch(writer, [made, saves]) is None
    server.ask("ALTER TABLE saved_indexes DROP created_us, DROP generation; UPDATE schema_version SET version = 1")
    for name in ("größe", "gone"):
        seal = seal_of("saved_indexes", ("c", name, 1, 5, 9))
        server.ask(f"UPDATE saved_indexes SET seal = {seal} WHERE stream_name = '\\x{name.encode().hex()}'")

    with pytest.raises(DatabaseTooOld, match="start with --migrate, which fences"):
        PostgresDatabase.open(server.url_of("postgres"), directory=tmp_path / "new", member="new", migrate=False)
    assert server.ask("SELECT version FROM schema_version") == "1"
    new = PostgresDatabase.open(server.url_of("postgres"), directory=tmp_path / "new", member="new")
    session = new.session()
    for name, created_us in (("größe", 77), ("gone", 0)):
        found = load_positions(session, LoadRequest(1, "c", name, [1, 0], creates=False), 11)
        assert found == [(5, 9, created_us, 0), None], "its seal is right, too"
    assert server.ask("SELECT version FROM schema_version") == str(SCHEMA_VERSION)
    late = IndexRequests([Access(("c", "größe", 1), 6)], 12, ignore_done)
    assert isinstance(commit_batch(writer, [late]), NodeReplaced) or isinstance(late.error, NodeReplaced)
    writer.close()
    session.close()
    for database in (old, new):
        database.close()
    PostgresDatabase.open(server.url_of("postgres"), directory=tmp_path / "new", member="new").close()
