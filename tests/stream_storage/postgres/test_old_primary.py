"""Goal: a primary that was left, and is started again alone, serves no reads: it lacks what was confirmed since.

Method: the primary of a pair is killed and its standby promoted. The writer goes on there. Then the old primary starts
again, alone, and says that it takes writes. The connections of the readers are ended, again and again, so that they
come to both servers.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from structlog.testing import capture_logs

from stream_storage.commit import apply_read, commit_batch
from stream_storage.contract import Append
from stream_storage.postgres.database import PostgresDatabase
from stream_storage.postgres.session import PostgresSession
from tests.stream_storage.postgres.failover import Pair
from tests.stream_storage.storage_samples import Call

MEETINGS = 12
"""How often the readers look for a server. Each time, one of two is the old primary, by chance."""


@pytest.fixture
def database(pair: Pair) -> Iterator[PostgresDatabase]:
    database = PostgresDatabase.open(pair.url, wait_s=20.0, call_s=2.0)
    yield database
    database.close()


@pytest.fixture
def reader(database: PostgresDatabase, session: PostgresSession) -> Iterator[PostgresSession]:
    # The session that writes is there first, as in a node.
    reader = database.read_session()
    yield reader
    reader.close()


def next_index(reader: PostgresSession, stream_id: int) -> object:
    read = Call(lambda session: session.log.get_stream(stream_id).next_index, lambda operation: None)
    apply_read(reader, read)
    return read.result if read.error is None else read.error


def push(session: PostgresSession, stream_id: int, index: int) -> None:
    append = Append(stream_id, index, 7, [b"%d" % index])
    assert commit_batch(session, [append]) is None
    assert append.error is None


def test_a_reader_that_comes_to_an_old_primary_looks_for_another_server(
    pair: Pair, session: PostgresSession, reader: PostgresSession
) -> None:
    stream_id = fail_over(pair, session)
    pair.primary.start()
    # Each transaction that reads ends with a rollback, and none that writes does.
    end_readers = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'ROLLBACK'"
    assert pair.standby is not None
    with capture_logs() as logs:
        for _ in range(MEETINGS):
            assert next_index(reader, stream_id) == 4
            for server in (pair.primary, pair.standby):
                server.ask(end_readers)
    # The reader came to the old primary, and told it once.
    assert [entry["event"] for entry in logs].count("database_old_primary_left") == 1


def test_a_reader_that_is_connected_to_an_old_primary_leaves_it_when_the_writer_moves(
    pair: Pair, session: PostgresSession, reader: PostgresSession
) -> None:
    """Method: the connection of the writer is ended, and so it finds the promoted standby. The old primary lives on,
    and so does the reader's connection to it."""
    session.begin()
    stream_id = session.log.ensure_stream("s", 0, 1).stream_id
    session.commit()
    assert next_index(reader, stream_id) == 0
    assert pair.standby is not None
    pair.standby.promote()
    # A commit on the old primary waits for a standby, so the writer cannot stay there.
    for index in range(3):
        push(session, stream_id, index)
        assert next_index(reader, stream_id) == index + 1


def fail_over(pair: Pair, session: PostgresSession) -> int:
    """Stores a message on the first primary and three on the second. Returns the id of their stream."""
    session.begin()
    stream_id = session.log.ensure_stream("s", 0, 1).stream_id
    session.commit()
    push(session, stream_id, 0)
    pair.primary.kill()
    assert pair.standby is not None
    pair.standby.promote()
    for index in (1, 2, 3):
        push(session, stream_id, index)
    return stream_id
