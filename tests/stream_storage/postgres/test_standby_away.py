"""Goal: a standby that is away for long ends nothing. Commits in doubt are told as unknown, later writes as not stored,
and writing goes on by itself when the standby is back. A start waits, too.

Method: the only standby, for which every commit waits, is killed for longer than an operation waits, and started again.
What is stored is read by psql.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

import psycopg
from structlog.testing import capture_logs

from stream_storage.commit import commit_batch
from stream_storage.contract import Append
from stream_storage.errors import CommitUnsettled, DatabaseLost, StandbyMissing
from stream_storage.postgres.database import PostgresDatabase
from stream_storage.postgres.server import PostgresPrimary
from stream_storage.postgres.session import PostgresSession
from tests.stream_storage.postgres.failover import PATIENCE_S, Pair
from tests.support.postgres import PostgresServer

ATTEMPTS = 5
ASKED = 30


@pytest.fixture
def standby(pair: Pair) -> PostgresServer:
    assert pair.standby is not None
    return pair.standby


@pytest.fixture
def database(pair: Pair) -> Iterator[PostgresDatabase]:
    database = PostgresDatabase.open(pair.primary.url, wait_s=0.5, call_s=0.5)
    yield database
    database.close()


@pytest.fixture
def stream_id(session: PostgresSession) -> int:
    session.begin()
    stream_id = session.log.ensure_stream("s", 0, 1).stream_id
    session.commit()
    return stream_id


def connections(pair: Pair) -> int:
    return int(pair.primary.ask("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'stream-node'"))


def test_writing_goes_on_after_a_standby_was_away(
    pair: Pair, standby: PostgresServer, session: PostgresSession, stream_id: int
) -> None:
    standby.kill()
    with capture_logs() as logs:
        doubtful = Append(stream_id, 0, 7, [b"doubtful"])
        assert commit_batch(session, [doubtful]) is None, "no error is fatal"
        assert isinstance(doubtful.error, CommitUnsettled)
        assert doubtful.error.in_doubt
        assert "a commit of the database server waits for a standby" in str(doubtful.error)
        for _ in range(ATTEMPTS):
            later = Append(stream_id, 1, 7, [b"later"])
            assert commit_batch(session, [later]) is None
            assert isinstance(later.error, StandbyMissing)
            assert later.error.retriable
            assert not later.error.in_doubt
        standby.start()
        wait_written(session, Append(stream_id, 1, 8, [b"after"]))
    assert [entry["stored"] for entry in logs if entry["event"] == "lost_commit_settled"] == [True]
    texts = pair.primary.ask("SELECT idx || ' ' || convert_from(data, 'UTF8') FROM messages ORDER BY idx")
    assert texts.splitlines() == ["0 doubtful", "1 after"]


def test_attempts_leave_no_connections_behind(
    pair: Pair, standby: PostgresServer, session: PostgresSession, stream_id: int
) -> None:
    """Goal: the connections of a server do not run out while a standby is away. Method: they are counted after many
    attempts. The commit that waits keeps its connection, and so does the last attempt."""
    standby.kill()
    for _ in range(ATTEMPTS):
        append = Append(stream_id, 0, 7, [b"a"])
        assert commit_batch(session, [append]) is None
        assert append.error is not None
    deadline_s = time.monotonic() + PATIENCE_S
    while connections(pair) > 2:
        assert time.monotonic() < deadline_s, "attempts leave connections behind"
        time.sleep(0.1)
    standby.start()
    wait_written(session, Append(stream_id, 1, 8, [b"b"]))


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "again"])
def test_a_node_that_starts_without_the_standby_waits_and_says_why(
    pair: Pair, standby: PostgresServer, is_new: bool
) -> None:
    """Goal: a start waits for a standby as long as every operation does. Method: with tables and without them, the
    standby is away for a first start, and comes back during the second one."""
    if not is_new:
        open_and_close(pair, wait_s=5.0)
    standby.kill()
    with pytest.raises(StandbyMissing, match="waits for a standby; start the standby"):
        open_and_close(pair, wait_s=1.0)
    back = threading.Thread(target=standby.start)
    back.start()
    open_and_close(pair, wait_s=PATIENCE_S)
    back.join()


def test_a_standby_that_is_there_is_not_told_as_missing(pair: Pair) -> None:
    """Goal: a commit that waits for a moment, as each one does, is no reason to say that the standby is away. Method:
    the server is asked again and again while two writers commit; nearly always, one of them waits."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    ends = threading.Event()

    def write(table: str) -> None:
        with psycopg.connect(pair.primary.url, autocommit=True) as connection:
            connection.execute(f"CREATE TABLE {table} (number bigint)".encode())
            while not ends.is_set():
                connection.execute(f"INSERT INTO {table} VALUES (1)".encode())

    writers = [threading.Thread(target=write, args=(table,)) for table in ("one", "other")]
    for writer in writers:
        writer.start()
    server = PostgresPrimary(pair.primary.url, wait_s=10.0, call_s=10.0)
    seen = told = 0
    for _ in range(ASKED):
        seen += pair.primary.ask(waiting) != "0"
        told += server._waits_for_standby()
    ends.set()
    for writer in writers:
        writer.join()
    server.close()
    assert seen
    assert told < seen / 2


def open_and_close(pair: Pair, wait_s: float) -> None:
    """Opens the database and its session as a node does."""
    database = PostgresDatabase.open(pair.primary.url, wait_s=wait_s, call_s=0.5)
    try:
        database.session().close()
    finally:
        database.close()


def wait_written(session: PostgresSession, append: Append) -> None:
    """Returns when the append is stored. It may take some attempts until the standby has connected."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        append.error = None
        assert commit_batch(session, [append]) is None
        if append.error is None:
            return
        assert isinstance(append.error, DatabaseLost), append.error
        assert time.monotonic() < deadline_s, "nothing is written"
