"""Goal: what passes does not end a node for good: a connection that is lost at a bad moment, a server without room, a
process without descriptors. Method: a real server, which refuses or ends what the test wants.
"""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

import psycopg

from stream_storage.commit import commit_batch
from stream_storage.contract import Append, Session
from stream_storage.errors import IndexConflict
from stream_storage.postgres.database import PostgresDatabase
from stream_storage.postgres.server import Deadlines
from stream_storage.postgres.session import QUEUED_S, PostgresSession
from tests.stream_storage.storage_samples import Call
from tests.support.postgres import PostgresServer

CONNECTIONS = "FROM pg_stat_activity WHERE application_name = 'stream-node'"
FULL_DISK = (
    "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS "
    "'BEGIN RAISE EXCEPTION USING ERRCODE = ''53100'', MESSAGE = ''could not extend file''; END'",
    "CREATE TRIGGER full_disk BEFORE UPDATE ON log_writer FOR EACH ROW EXECUTE FUNCTION full_disk()",
)


@pytest.fixture
def database(server: PostgresServer) -> Iterator[PostgresDatabase]:
    database = PostgresDatabase.open(server.url, wait_s=0.3, call_s=2.0)
    yield database
    database.close()


@pytest.fixture
def stream_id(session: PostgresSession) -> int:
    session.begin()
    stream_id = session.log.ensure_stream("s", 0, 1).stream_id
    session.commit()
    return stream_id


def test_a_connection_that_is_lost_before_a_rollback_ends_nothing(
    server: PostgresServer, session: PostgresSession, stream_id: int
) -> None:
    """Claim: an operation that is refused, as a push to a wrong index is, fails alone, also if the connection is lost
    before its transaction is undone. Method: the operation itself ends the connection, and then refuses."""

    def refuse(session: Session) -> None:
        session.log.get_stream(stream_id)
        end_connections(server)
        raise IndexConflict(stream_id, 0, 9)

    refused = Call(refuse, lambda operation: None)
    assert commit_batch(session, [refused]) is None
    assert isinstance(refused.error, IndexConflict)
    append = Append(stream_id, 0, 7, [b"a"])
    assert commit_batch(session, [append]) is None
    assert append.error is None


def test_a_server_without_room_at_a_new_connection_is_used_again_when_it_has_room(
    server: PostgresServer, session: PostgresSession, stream_id: int
) -> None:
    """Claim: a node whose server came back on a full disk writes again when there is room. Method: a trigger refuses
    the node's row with the server's own error of a full disk, while the connection is made again; then it goes."""
    for statement in FULL_DISK:
        server.ask(statement)
    end_connections(server)
    failed = Append(stream_id, 0, 7, [b"a"])
    assert commit_batch(session, [failed]) is None
    assert failed.error is not None
    # The node may find out at its commit that the connection is gone, and cannot ask then what became of it.
    assert failed.error.retriable or failed.error.in_doubt
    server.ask("DROP TRIGGER full_disk ON log_writer")
    # What follows sooner counts as one that has waited in vain, too.
    time.sleep(2 * QUEUED_S)
    append = Append(stream_id, 0, 7, [b"b"])
    assert commit_batch(session, [append]) is None
    assert append.error is None


def test_a_statement_that_is_cancelled_while_the_node_connects_again_ends_nothing(
    server: PostgresServer, session: PostgresSession, stream_id: int
) -> None:
    """Claim: an administrator who cancels what a node waits for does not end its writing. Method: another transaction
    holds the row of the writer, so that the connection that is made again waits for it; that statement is cancelled."""
    append = Append(stream_id, 0, 7, [b"a"])
    with psycopg.connect(server.url) as other, ThreadPoolExecutor() as pool:
        other.execute("SELECT * FROM log_writer FOR UPDATE")
        end_connections(server)
        committing = pool.submit(commit_batch, session, [append])
        while not server.ask("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
            assert not committing.done()
        other.rollback()
        assert committing.result() is None
    if append.error is not None:
        # What follows sooner counts as one that has waited in vain, too.
        time.sleep(2 * QUEUED_S)
        append = Append(stream_id, 0, 7, [b"a"])
        assert commit_batch(session, [append]) is None
    assert append.error is None


def test_a_call_that_takes_too_long_ends_also_without_free_descriptors() -> None:
    """Claim: a frozen server cannot keep a node waiting while the process has no descriptor left. Method: all are
    taken; the other end of the connection sees that the call is ended."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    deadlines = Deadlines(0.1)
    here, there = socket.socketpair()
    taken: list[int] = []
    with here, there:
        there.settimeout(10.0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(here.fileno(), there.fileno()) + 8, hard))
        try:
            with suppress(OSError):
                while True:
                    taken.append(os.dup(here.fileno()))
            deadlines.begin(here.fileno())
            assert there.recv(1) == b""
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for descriptor in taken:
                os.close(descriptor)
            deadlines.end(here.fileno())
            deadlines.close()


def end_connections(server: PostgresServer) -> None:
    server.ask(f"SELECT pg_terminate_backend(pid) {CONNECTIONS}")
    while server.ask(f"SELECT count(*) {CONNECTIONS}") != "0":
        pass
