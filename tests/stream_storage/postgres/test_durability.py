"""Goal: a confirm goes on to mean what it meant at the start, whatever becomes of the settings of the servers.

Method: the settings of a real server are changed while a session writes, and psql looks at what the session has.
"""

from __future__ import annotations

import time

import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from structlog.testing import capture_logs

from stream_node.care.doctor import examine_server
from stream_node.node.config import Config
from stream_storage.commit import commit_batch
from stream_storage.contract import Append, Operation
from stream_storage.errors import DatabaseLost, UnsafeDatabase
from stream_storage.postgres import session as session_module
from stream_storage.postgres.database import PostgresDatabase
from stream_storage.postgres.session import PostgresSession
from tests.stream_storage.postgres.failover import PATIENCE_S, Pair
from tests.stream_storage.storage_samples import Call
from tests.support.postgres import PostgresServer

CHANGED = "database_durability_changed"


def promise(session: PostgresSession) -> str:
    """The value of synchronous_commit with which the session commits."""
    session.begin()
    try:
        return str(session.run("SHOW synchronous_commit", ()).fetchone()[0])
    finally:
        session.rollback()


def reset(server: PostgresServer, **settings: str) -> None:
    """Changes settings of a running server."""
    for name, value in settings.items():
        server.ask(f"ALTER SYSTEM SET {name} = '{value}'")
    server.ask("SELECT pg_reload_conf()")


def end_connections(server: PostgresServer) -> None:
    server.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'stream-node'")


def nothing() -> Operation:
    return Call(lambda session: None, lambda operation: None)


@pytest.mark.parametrize(
    ("found", "unsafe", "wanted"),
    [
        ("on", False, "on"),
        ("remote_apply", False, "remote_apply"),
        ("remote_write", False, "on"),
        ("local", False, "on"),
        ("local", True, "local"),
        ("off", True, "off"),
    ],
)
def test_a_session_commits_at_least_as_safely_as_at_the_start(
    server: PostgresServer, found: str, unsafe: bool, wanted: str
) -> None:
    reset(server, synchronous_commit=found)
    database = PostgresDatabase.open(server.url, unsafe=unsafe)
    session = database.session()
    assert database.durability.synchronous_commit == wanted
    assert promise(session) == wanted
    reset(server, synchronous_commit="off")
    assert promise(session) == wanted
    end_connections(server)
    operation = nothing()
    assert commit_batch(session, [operation]) is None
    assert operation.error is None
    assert promise(session) == wanted, "the next connection keeps the promise too"
    session.close()
    database.close()


def test_a_server_that_became_unsafe_is_not_written_to_until_it_is_mended(server: PostgresServer) -> None:
    database = PostgresDatabase.open(server.url, wait_s=0.5)
    session = database.session()
    reset(server, full_page_writes="off")
    end_connections(server)
    refused = nothing()
    with capture_logs() as logs:
        assert commit_batch(session, [refused]) is None
    assert isinstance(refused.error, DatabaseLost)
    assert any("full_page_writes = off" in entry.get("reason", "") for entry in logs)
    reset(server, full_page_writes="on")
    # The server reads its settings a little later.
    again = nothing()
    deadline_s = time.monotonic() + PATIENCE_S
    while commit_batch(session, [again]) is not None or again.error is not None:
        assert isinstance(again.error, DatabaseLost), again.error
        assert time.monotonic() < deadline_s, "the mended server is not used"
        again.error = None
    session.close()
    database.close()


def test_a_promoted_standby_that_waits_for_nobody_is_told() -> None:
    """Method: the primary waits for its standby. The standby is promoted, and waits for none. Then it gets the setting
    of the primary, and loses it again."""
    with Pair() as pair, capture_logs() as logs:
        assert pair.standby is not None
        database = PostgresDatabase.open(pair.url, wait_s=PATIENCE_S, call_s=2.0)
        assert database.durability.waits_for_standby
        session = database.session()
        stream_id = make_stream(session)
        pair.primary.kill()
        pair.standby.promote()
        append = Append(stream_id, 0, 7, [b"a"])
        assert commit_batch(session, [append]) is None
        assert append.error is None
        session.close()
        database.close()
    told = [entry for entry in logs if entry["event"] == CHANGED]
    assert [entry["log_level"] for entry in told] == ["warning"]
    assert "on no other machine: set synchronous_standby_names" in told[0]["meaning"]


def make_stream(session: PostgresSession) -> int:
    session.begin()
    stream_id = session.log.ensure_stream("s", 0, 1).stream_id
    session.commit()
    return stream_id


def test_tables_that_a_crash_empties_are_refused_and_told(server: PostgresServer) -> None:
    """The tables of others may be as they like."""
    PostgresDatabase.open(server.url).close()
    server.ask("CREATE UNLOGGED TABLE scratch (value int)")
    PostgresDatabase.open(server.url).close()
    server.ask("ALTER TABLE messages SET UNLOGGED")
    with pytest.raises(UnsafeDatabase, match="table messages is UNLOGGED"):
        PostgresDatabase.open(server.url)
    finding = examine_server(server.url, Config())
    assert (finding.status, "table messages is UNLOGGED" in finding.text) == ("wrong", True)
    database = PostgresDatabase.open(server.url, unsafe=True)
    assert database.durability.meaning == (
        "a confirmed message can be lost when the server crashes (table messages is UNLOGGED)"
    )
    database.close()


def test_a_table_that_becomes_unlogged_beside_a_running_node_gets_no_more_messages(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the node looks before each transaction, in place of every ten seconds."""
    database = PostgresDatabase.open(server.url, wait_s=0.5)
    session = database.session()
    stream_id = make_stream(session)
    monkeypatch.setattr(session_module, "EXAMINE_S", 0.0)
    assert commit_batch(session, [nothing()]) is None
    server.ask("ALTER TABLE messages SET UNLOGGED")
    refused = Append(stream_id, 0, 7, [b"a"])
    assert commit_batch(session, [refused]) is None
    assert isinstance(refused.error, DatabaseLost)
    assert server.ask("SELECT count(*) FROM messages") == "0"
    again = nothing()
    commit_batch(session, [again])
    assert "table messages is UNLOGGED" in str(again.error)
    server.ask("ALTER TABLE messages SET LOGGED")
    # After a wait in vain, an operation tries to connect once. The server of a busy machine may answer later.
    ends_s = time.monotonic() + PATIENCE_S
    while True:
        stored = Append(stream_id, 0, 7, [b"a"])
        assert commit_batch(session, [stored]) is None
        if stored.error is None or time.monotonic() > ends_s:
            break
    assert stored.error is None
    session.close()
    database.close()
