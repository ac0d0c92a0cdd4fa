"""Goal: when the primary dies, freezes or comes back alone, no confirmed message is lost and none is stored twice.

Method: a primary with a synchronous standby, and a writer that commits all the time to five streams. The primary is
killed or frozen and the standby promoted; then psql reads all messages of the new primary, and they must be exactly the
confirmed ones. With a standby that the primary does not wait for, the same test must find a loss.
"""

from __future__ import annotations

import time

import pytest

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from stream_storage.commit import apply_read, commit_batch
from stream_storage.contract import Append
from stream_storage.errors import DatabaseLost
from stream_storage.postgres.database import PostgresDatabase
from tests.stream_storage.postgres.failover import Pair, Writer
from tests.stream_storage.storage_samples import Call


def test_a_killed_primary_loses_no_confirmed_message() -> None:
    with Pair() as pair:
        writer = Writer(pair.url)
        writer.start()
        writer.wait_commits(20)
        pair.primary.kill()
        assert pair.standby is not None
        pair.standby.promote()
        writer.wait_commits(20)
        writer.end()
        assert writer.failure is None
        assert writer.is_whole(pair.standby)


def test_a_frozen_primary_is_left_after_the_time_of_a_call() -> None:
    with Pair() as pair:
        writer = Writer(pair.url, call_s=1.0)
        writer.start()
        writer.wait_commits(20)
        pair.primary.freeze()
        assert pair.standby is not None
        pair.standby.promote()
        writer.wait_commits(20)
        # The old primary goes on, and has nobody who writes to it.
        pair.primary.thaw()
        writer.wait_commits(20)
        writer.end()
        assert writer.failure is None
        assert writer.is_whole(pair.standby)


def test_a_cancelled_commit_is_not_confirmed_before_the_standby_has_it() -> None:
    """Goal: a COMMIT that says OK without its standby is not believed, and neither is the write that settles it.

    Method: the standby is stopped, each write that waits is cancelled, and no confirm comes until the standby is back.
    """
    with Pair() as pair:
        writer = Writer(pair.url, call_s=30.0)
        writer.start()
        writer.wait_commits(20)
        assert pair.standby is not None
        pair.standby.freeze()
        pair.wait_for_standby()
        before = len(writer.commits)
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        # First the commit waits, then the write that settles it. Each is on a connection of its own.
        cancelled: set[str] = set()
        while len(cancelled) < 3:
            pair.wait_for_standby()
            # A write that settles was cancelled before, if this is the second one.
            assert not cancelled or not writer.database._ownership.connected
            for process in pair.primary.ask(waiting).split():
                pair.primary.ask(f"SELECT pg_cancel_backend({process})")
                cancelled.add(process)
            assert len(writer.commits) == before
        pair.standby.thaw()
        writer.wait_commits(20)
        writer.end()
        assert writer.failure is None
        assert writer.is_whole(pair.primary)


def test_a_primary_that_comes_back_alone_confirms_nothing_until_its_standby_is_back() -> None:
    with Pair() as pair:
        writer = Writer(pair.url, call_s=2.0)
        writer.start()
        writer.wait_commits(20)
        assert pair.standby is not None
        pair.standby.freeze()
        time.sleep(0.2)
        before = len(writer.commits)
        pair.primary.kill()
        pair.primary.start()
        time.sleep(3.0)
        assert len(writer.commits) == before
        pair.standby.thaw()
        writer.wait_commits(20)
        writer.end()
        assert writer.failure is None
        assert writer.is_whole(pair.primary)


def test_without_a_synchronous_standby_the_check_finds_a_loss() -> None:
    """Goal: the checks above can fail. Method: a standby that is stopped while the primary confirms, and then promoted,
    lacks confirmed messages."""
    with Pair(names="") as pair:
        database = PostgresDatabase.open(pair.url, wait_s=5.0)
        session = database.session()
        session.begin()
        stream_id = session.log.ensure_stream("s", 0, 1).stream_id
        session.commit()
        pair.wait_copied()
        assert pair.standby is not None
        pair.standby.kill()
        append = Append(stream_id, 0, 7, [b"confirmed"])
        assert commit_batch(session, [append]) is None
        assert append.error is None
        pair.primary.kill()
        pair.standby.start()
        pair.standby.promote()
        assert pair.standby.ask("SELECT count(*) FROM messages") == "0"
        session.close()
        database.close()


def test_a_standby_that_lacks_a_confirmed_message_serves_no_reads() -> None:
    """Method: the standby is stopped while the primary confirms alone, and is then the only server."""
    with Pair(names="") as pair:
        database = PostgresDatabase.open(pair.url, wait_s=1.0, standby_reads=True)
        session, reader = database.session(), database.read_session()
        session.begin()
        stream_id = session.log.ensure_stream("s", 0, 1).stream_id
        session.commit()
        pair.wait_copied()
        assert pair.standby is not None
        pair.standby.kill()
        assert commit_batch(session, [Append(stream_id, 0, 7, [b"confirmed"])]) is None
        pair.primary.kill()
        pair.standby.start()
        found = Call(lambda session: session.log.read(stream_id, 0, 10, 100), lambda operation: None)
        apply_read(reader, found)
        assert isinstance(found.error, DatabaseLost)
        for each in (session, reader, database):
            each.close()
