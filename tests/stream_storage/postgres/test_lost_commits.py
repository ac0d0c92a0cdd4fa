"""Goal: a commit whose answer is lost is neither lost nor stored twice, and only the owner of a database writes.

Method: a real server behind a proxy that cuts the connection at a COMMIT, before the server has it or after the server
has done it. What is stored is read by another program, psql.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

import psycopg
from structlog.testing import capture_logs

from index_service.accesses import Access, IndexRequests
from index_service.lease_machine import StoredLease
from index_service.lease_storage import WriteLeases
from stream_storage.commit import apply_read, commit_batch
from stream_storage.contract import Append, Operation
from stream_storage.errors import (
    CommitUnsettled,
    DatabaseLost,
    DatabaseTaken,
    IndexConflict,
    NodeReplaced,
    StorageError,
)
from stream_storage.postgres.database import PostgresDatabase
from stream_storage.postgres.session import QUEUED_S, PostgresSession
from tests.stream_storage.storage_samples import Call
from tests.support.cutting_proxy import CuttingProxy
from tests.support.postgres import PostgresServer

NOTHING = lambda operation: None  # noqa: E731


@pytest.fixture
def proxy(server: PostgresServer) -> Iterator[CuttingProxy]:
    with CuttingProxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def database(proxy: CuttingProxy) -> Iterator[PostgresDatabase]:
    database = PostgresDatabase.open(url(proxy.port), wait_s=5.0, call_s=2.0)
    yield database
    database.close()


def url(port: int) -> str:
    return f"postgresql://someone@127.0.0.1:{port}/postgres"


def make_stream(session: PostgresSession) -> int:
    session.begin()
    stream_id = session.log.ensure_stream("s", 0, 1).stream_id
    session.commit()
    return stream_id


def stored(server: PostgresServer) -> list[str]:
    """Index and data of all messages, as psql prints them."""
    return server.ask("SELECT idx || ' ' || convert_from(data, 'UTF8') FROM messages ORDER BY idx").splitlines()


@pytest.mark.parametrize("cut", ["before", "after"])
@pytest.mark.parametrize("count", [1, 5, 200], ids=["one", "run", "copy"])
def test_messages_of_a_lost_commit_are_stored_once(
    server: PostgresServer, proxy: CuttingProxy, session: PostgresSession, cut: Literal["before", "after"], count: int
) -> None:
    stream_id = make_stream(session)
    proxy.cut = cut
    append = Append(stream_id, 0, 7, [b"%d" % number for number in range(count)])
    assert commit_batch(session, [append]) is None
    assert append.error is None
    assert proxy.cuts == 1
    after = Append(stream_id, count, 8, [b"next"])
    assert commit_batch(session, [after]) is None
    assert after.error is None
    assert stored(server) == [*(f"{number} {number}" for number in range(count)), f"{count} next"]


@pytest.mark.parametrize("cut", ["before", "after"])
def test_every_kind_of_write_bears_a_lost_commit(
    server: PostgresServer, proxy: CuttingProxy, session: PostgresSession, cut: Literal["before", "after"]
) -> None:
    """Goal: also what is no append is there once: a stream, a position, a lease. Method: each is the only operation of
    a commit that is cut."""
    stream_id = make_stream(session)
    lease = StoredLease(0, 3, "member")
    operations: list[Operation] = [
        Call(lambda session: session.log.ensure_stream("other", 0, 5), NOTHING),
        IndexRequests([Access(("client", "s", 0), 17)], 5, NOTHING),
        WriteLeases("client", "s", [lease], 1_000, NOTHING),
        Append(stream_id, 0, 7, [b"a", b"b", b"c"]),
        Call(lambda session: session.log.truncate_before(stream_id, 2), NOTHING),
    ]
    for operation in operations:
        proxy.cut = cut
        assert commit_batch(session, [operation]) is None
        assert operation.error is None
    assert proxy.cuts == len(operations)
    assert server.ask("SELECT count(*) FROM streams") == "2"
    assert server.ask("SELECT idx FROM saved_indexes") == "17"
    assert server.ask("SELECT fence FROM lease_fences") == "3"
    assert server.ask("SELECT first_index, next_index, size_bytes FROM streams ORDER BY id LIMIT 1") == "2|3|1"
    assert stored(server) == ["2 c"]


def test_a_bad_operation_fails_alone_also_when_the_commit_is_lost(
    server: PostgresServer, proxy: CuttingProxy, session: PostgresSession
) -> None:
    stream_id = make_stream(session)
    good, bad, last = (
        Append(stream_id, 0, 7, [b"a"]),
        Append(stream_id, 9, 7, [b"x"]),
        Append(stream_id, 1, 7, [b"b"]),
    )
    proxy.cut = "before"
    assert commit_batch(session, [good, bad, last]) is None
    assert good.error is None
    assert last.error is None
    assert bad.error is not None
    assert stored(server) == ["0 a", "1 b"]


def test_a_read_goes_on_after_a_lost_connection(
    server: PostgresServer, session: PostgresSession, database: PostgresDatabase
) -> None:
    stream_id = make_stream(session)
    reader = database.read_session()
    server.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    read = Call(lambda session: session.log.get_stream(stream_id).next_index, NOTHING)
    apply_read(reader, read)
    assert read.error is None
    assert read.result == 0
    reader.close()


@pytest.mark.parametrize("count", [1, 5, 200], ids=["one", "run", "copy"])
def test_a_transaction_of_appends_is_one_request(proxy: CuttingProxy, session: PostgresSession, count: int) -> None:
    """Goal: a lone push waits for one answer of the server. Method: the proxy counts the answers."""
    stream_id = make_stream(session)
    before = proxy.answers
    for first in (0, count):
        append = Append(stream_id, first, 7, [b"a"] * count)
        assert commit_batch(session, [append]) is None
        assert append.error is None
    assert proxy.answers - before == 2


@pytest.mark.parametrize("count", [1, 5], ids=["one", "run"])
def test_a_lone_append_elsewhere_than_at_the_end_says_so(
    server: PostgresServer, session: PostgresSession, count: int
) -> None:
    """Goal: also a statement that was sent together with the commit has its own error. Method: a wrong index, and a
    stream that is not there; both alone, and with an operation before them whose statements are sent at once."""
    stream_id = make_stream(session)
    for bad, expected in (
        (Append(stream_id, 3, 7, [b"x"] * count), "continues at index 0, not 3"),
        (Append(stream_id + 1, 0, 7, [b"x"] * count), f"there is no stream {stream_id + 1}"),
    ):
        for others in ([], [IndexRequests([Access(("client", "s", 0), 17)], 5, NOTHING)]):
            assert commit_batch(session, [*others, bad]) is None
            assert expected in str(bad.error)
            assert all(each.error is None for each in others)
    assert server.ask("SELECT idx FROM saved_indexes") == "17"
    assert stored(server) == []


@pytest.mark.parametrize("count", [1, 5], ids=["one", "run"])
def test_a_node_whose_epoch_is_over_stores_nothing(
    server: PostgresServer, session: PostgresSession, count: int
) -> None:
    """Method: another owner stands in the table, while the connection of the node is as good as before."""
    stream_id = make_stream(session)
    server.ask("UPDATE log_writer SET owner = 'another', epoch = epoch + 1")
    append = Append(stream_id, 0, 7, [b"late"] * count)
    assert isinstance(commit_batch(session, [append]), NodeReplaced)
    assert isinstance(append.error, NodeReplaced)
    assert stored(server) == []
    assert server.ask("SELECT next_index FROM streams") == "0"
    assert server.ask("SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'") == "0"


def test_a_connection_that_the_server_has_ended_leaves_no_doubt(
    server: PostgresServer, session: PostgresSession
) -> None:
    """Goal: nothing is sent to a server that is gone, so that nothing can be in doubt. Method: the connection is ended
    between two commits, with a reason, and nobody has to settle anything."""
    stream_id = make_stream(session)
    others = "FROM pg_stat_activity WHERE application_name = 'stream-node'"
    server.ask(f"SELECT pg_terminate_backend(pid) {others}")
    while server.ask(f"SELECT count(*) {others}") != "0":
        pass
    append = Append(stream_id, 0, 7, [b"a"])
    with capture_logs() as logs:
        assert commit_batch(session, [append]) is None
    assert append.error is None
    assert [entry["event"] for entry in logs] == ["database_connection_lost", "database_connected_again"]
    assert stored(server) == ["0 a"]


def test_without_a_server_a_write_waits_and_then_fails_and_is_not_stored(server: PostgresServer) -> None:
    """Goal: the wait for a server has a bound, and after it the node goes on when the server is back. Method: the
    server is killed and started again."""
    database = PostgresDatabase.open(server.url, wait_s=1.0, call_s=2.0)
    session = database.session()
    stream_id = make_stream(session)
    server.kill()
    failed = Append(stream_id, 0, 7, [b"lost"])
    assert commit_batch(session, [failed]) is None
    assert isinstance(failed.error, DatabaseLost)
    assert failed.error.retriable
    server.start()
    again = Append(stream_id, 0, 8, [b"stored"])
    assert commit_batch(session, [again]) is None
    assert again.error is None
    assert stored(server) == ["0 stored"]
    session.close()
    database.close()


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_doubt_outlives_the_wait_for_a_server_and_is_settled_later(
    server: PostgresServer, proxy: CuttingProxy, cut: Literal["before", "after"]
) -> None:
    """Goal: nobody guesses, and nothing ends. Method: no server can be reached behind the cut, for longer than an
    operation waits; then the proxy listens again."""
    database = PostgresDatabase.open(url(proxy.port), wait_s=0.5, call_s=1.0)
    session = database.session()
    stream_id = make_stream(session)
    proxy.cut = cut
    proxy.refuse_after_cut = True
    doubtful, later = Append(stream_id, 0, 7, [b"a"]), Append(stream_id, 1, 7, [b"b"])
    assert commit_batch(session, [doubtful]) is None
    assert isinstance(doubtful.error, CommitUnsettled)
    assert doubtful.error.in_doubt
    assert commit_batch(session, [later]) is None
    assert isinstance(later.error, DatabaseLost)
    assert not later.error.in_doubt
    proxy.listen_again()
    is_stored = cut == "after"
    last = Append(stream_id, int(is_stored), 8, [b"c"])
    with capture_logs() as logs:
        assert commit_batch(session, [last]) is None
    assert last.error is None
    assert [entry["stored"] for entry in logs if entry["event"] == "lost_commit_settled"] == [is_stored]
    assert stored(server) == (["0 a", "1 c"] if is_stored else ["0 c"])
    session.close()
    database.close()


@pytest.mark.parametrize("back", [False, True], ids=["away", "back"])
@pytest.mark.parametrize("cut", ["before", "after"])
def test_operations_in_doubt_are_not_done_again_because_of_a_bad_one(
    server: PostgresServer, cut: Literal["before", "after"], back: bool
) -> None:
    """Goal: whoever is told "not stored" finds nothing stored, also beside an operation that fails. Method: the answer
    to the commit is lost for longer than an operation waits; one time, the server is back right after that."""
    with CuttingProxy(server.port) as proxy:
        database = PostgresDatabase.open(url(proxy.port), wait_s=0.5, call_s=1.0)
        session = database.session()
        stream_id = make_stream(session)
        good, bad, last = (Append(stream_id, index, 7, [b"x"]) for index in (0, 9, 1))
        proxy.cut = cut
        proxy.refuse_after_cut = True
        if back:
            settle = session.settle

            def settle_and_listen(error: StorageError) -> bool | StorageError:
                result = settle(error)
                proxy.listen_again()
                return result

            session.settle = settle_and_listen  # type: ignore[method-assign]
        assert commit_batch(session, [good, bad, last]) is None
        assert isinstance(bad.error, IndexConflict)
        for each in (good, last):
            assert isinstance(each.error, CommitUnsettled)
            assert each.error.in_doubt
        if not back:
            proxy.listen_again()
        # What follows sooner counts as one that has waited in vain, too.
        time.sleep(2 * QUEUED_S)
        is_stored = cut == "after"
        after = Append(stream_id, 2 * is_stored, 8, [b"after"])
        assert commit_batch(session, [after]) is None
        assert after.error is None
        assert stored(server) == (["0 x", "1 x", "2 after"] if is_stored else ["0 after"])
        session.close()
        database.close()


@pytest.mark.parametrize("reads", [False, True], ids=["writer", "reader"])
def test_a_transaction_whose_beginning_is_refused_leaves_the_connection_usable(
    server: PostgresServer, database: PostgresDatabase, session: PostgresSession, reads: bool
) -> None:
    """Method: another transaction holds the row of the writer, or its table, so that the first statement waits. The
    statement is cancelled, as an administrator can do."""
    stream_id = make_stream(session)
    used = database.read_session() if reads else session
    held = "LOCK TABLE log_writer" if reads else "SELECT * FROM log_writer FOR UPDATE"
    cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with psycopg.connect(server.url) as other, ThreadPoolExecutor() as pool:
        other.execute(held)
        beginning = pool.submit(used.begin)
        while not server.ask(cancel):
            pass
        with pytest.raises(StorageError, match="cancel"):
            beginning.result()
    used.begin()
    assert used.log.get_stream(stream_id).next_index == 0
    used.rollback()
    if reads:
        used.close()


def test_a_second_node_is_refused(server: PostgresServer, session: PostgresSession) -> None:
    second = PostgresDatabase.open(server.url)
    with pytest.raises(DatabaseTaken, match=r"127\.0\.0\.1"):
        second.session()
    second.close()


def test_a_node_that_was_replaced_stores_nothing_more(server: PostgresServer, session: PostgresSession) -> None:
    """Goal: after a take-over, the node before cannot write, whatever it believes. Method: its connection is ended, and
    another node takes the database before it comes back."""
    stream_id = make_stream(session)
    server.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    second = PostgresDatabase.open(server.url)
    owner = second.session()
    append = Append(stream_id, 0, 7, [b"late"])
    commit_batch(session, [append])
    assert append.error is not None
    failure = commit_batch(session, [Append(stream_id, 0, 7, [b"later"])])
    assert isinstance(failure, NodeReplaced)
    ours = Append(stream_id, 0, 8, [b"ours"])
    assert commit_batch(owner, [ours]) is None
    assert ours.error is None
    assert stored(server) == ["0 ours"]
    owner.close()
    second.close()
