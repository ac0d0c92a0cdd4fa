"""Goal: a database of an older version is brought up to date with every value as it was, or stays as it was."""

from __future__ import annotations

import gzip
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable

from block_node.persist.chain_log import ChainLog
from index_service.accesses import Access, IndexRequests
from index_service.lease_machine import StoredLease
from index_service.lease_storage import load_leases
from stream_service.extensions import Retention
from stream_service.stored import get_retention
from stream_storage.contract import Append
from stream_storage.schema import metadata
from stream_storage.seal import SEALED
from stream_storage.sqlite.database import FILE_NAME, Database
from stream_storage.sqlite.rows import connection_of
from stream_storage.sqlite.schema import SCHEMA_VERSION
from stream_storage.sqlite.verify import verify
from tests.stream_storage.crash_samples import run_child
from tests.stream_storage.storage_samples import reading, writing
from tests.stream_storage.test_seals import NOW_US, nothing, problems_of

VERSION_1 = Path(__file__).parents[1] / "vectors" / "storage" / "version_1.sqlite.gz"
"""A database made by the program when its schema had version 1, with rows in every table."""
NEWER = {"saved_indexes": ("created_us", "generation")}
"""By table, the columns that version 1 has not. No table of it has seals."""


def unpacked(directory: Path) -> Path:
    directory.mkdir()
    (directory / FILE_NAME).write_bytes(gzip.decompress(VERSION_1.read_bytes()))
    return directory


def rows_of(directory: Path) -> dict[str, list[tuple[object, ...]]]:
    """The rows of each table, in the columns of version 1 if it has the table."""
    with closing(sqlite3.connect(directory / FILE_NAME)) as connection:
        found = {}
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]
            names = [column for column in columns if column not in ("seal", *NEWER.get(name, ()))]
            found[name] = sorted(connection.execute(f"SELECT {', '.join(names)} FROM {name}").fetchall(), key=repr)
        return found


def test_a_database_of_version_1_is_brought_up_to_date_with_every_value_as_it_was(tmp_path: Path) -> None:
    directory = unpacked(tmp_path / "data")
    before = rows_of(directory)
    assert {name for name, rows in before.items() if rows} >= set(SEALED) - {
        "time_falls",
        "stream_histories",
        "stream_mirrors",
        "stream_followers",
        "stream_promotions",
        "stream_publishers",
        "worker_places",
        "block_damaged",
    }
    assert problems_of(directory) == (), "a reader takes the older file as it is"
    database = Database.open(directory)
    with reading(database) as session:
        assert verify(session).problems == ()
        assert connection_of(session).execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        record = session.log.find_stream("größe", 1)
        assert record is not None
        assert get_retention(session, record.stream_id) == Retention(60, None, 10**6)
        leases = load_leases(session, "mailer", "größe")
        assert (leases.rows, leases.floor) == ([StoredLease(0, 5, "member"), StoredLease(1, 6, None)], 4)
    after = rows_of(directory)
    assert {name: rows for name, rows in after.items() if name in before} == before
    with writing(database) as session:
        asked = IndexRequests([Access(("mailer", "größe", 0), None)], 8, nothing)
        asked.apply(session)
        assert asked.indexes == [2]
        log = ChainLog("blocks")
        stream, state = log.open(session)
        assert (list(state.available), stream is not None) == ([(1, 3)], True)
        session.log.append([Append(record.stream_id, record.next_index, NOW_US, [b"more"])])
    database.close()
    assert problems_of(directory) == ()
    with closing(sqlite3.connect(directory / FILE_NAME)) as migrated, closing(sqlite3.connect(":memory:")) as new:
        for table in metadata.sorted_tables:
            new.execute(str(CreateTable(table).compile(dialect=sqlite.dialect())))
            if table.name in before:
                shape = [
                    sorted(tuple(row[1:3]) + tuple(row[5:]) for row in each.execute(f"PRAGMA table_info({table.name})"))
                    for each in (migrated, new)
                ]
                assert shape[0] == shape[1], table.name


@pytest.mark.parametrize(("site", "version"), [("before_revision_commit", 1), ("after_revision_commit", 2)])
def test_a_kill_while_a_database_is_brought_up_to_date_leaves_the_old_one_or_the_new_one(
    tmp_path: Path, site: str, version: int
) -> None:
    directory = unpacked(tmp_path / "data")
    before = rows_of(directory)
    status, lines = run_child("open", directory, environment={"STREAM_NODE_FAILPOINT": site})
    assert (status, lines) == (-signal.SIGKILL, [])
    with closing(sqlite3.connect(directory / FILE_NAME)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (version,)
    assert rows_of(directory) == before
    Database.open(directory).close()
    assert problems_of(directory) == ()
