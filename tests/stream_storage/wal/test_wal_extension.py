"""Goal: a log that was made large early holds what is committed before and after that, also when its node is killed.

Method: real files; a kill is a copy of the directory as it stands, opened anew.
"""

from __future__ import annotations

import resource
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from stream_storage.directory_lock import FILE_NAME as LOCK_NAME
from stream_storage.errors import DiskFailed, StorageError
from stream_storage.sqlite import checkpointer
from stream_storage.sqlite.database import PRAGMAS, Database
from stream_storage.sqlite.session import SqliteSession
from stream_storage.thread_runner import ThreadRunner
from tests.stream_storage.runner_samples import Bench
from tests.stream_storage.storage_samples import stored_data

STORED = [b"%d" % n for n in range(checkpointer.EXTEND_AFTER_COMMITS)]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    opened = Bench(tmp_path / "data")
    yield opened
    opened.close()


def wal_bytes(bench: Bench) -> int:
    path = bench.database.path.with_name("streams.sqlite-wal")
    return path.stat().st_size if path.exists() else 0


async def push(runner: ThreadRunner, bench: Bench, first_index: int, count: int) -> None:
    """Push messages, each in a commit of its own."""
    for index in range(first_index, first_index + count):
        runner.submit_write(bench.append(index, b"%d" % index))
        await runner.wait_idle()


def stored_after_a_kill(bench: Bench, to: Path) -> list[bytes]:
    shutil.copytree(bench.directory, to, ignore=shutil.ignore_patterns(LOCK_NAME))
    database = Database.open(to)
    try:
        session = database.session()
        try:
            assert session.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        finally:
            session.close()
        return stored_data(database, bench.ids[0])
    finally:
        database.close()


async def test_it_grows_once_and_is_written_over(bench: Bench, tmp_path: Path) -> None:
    async with ThreadRunner(bench.database) as runner:
        await push(runner, bench, 0, checkpointer.EXTEND_AFTER_COMMITS - 1)
        assert wal_bytes(bench) < 1024 * 1024
        await push(runner, bench, checkpointer.EXTEND_AFTER_COMMITS - 1, 1)
        with trio.fail_after(30):
            while wal_bytes(bench) < checkpointer.EXTENDED_BYTES:
                await trio.sleep(0.01)
        assert stored_after_a_kill(bench, tmp_path / "extended") == [b"%d" % n for n in range(16)]
        # The extension still grows when it has passed EXTENDED_BYTES. A push waits until it has ended.
        await push(runner, bench, 16, 1)
        large = wal_bytes(bench)
        await push(runner, bench, 17, 83)
        assert wal_bytes(bench) == large
        expected = [b"%d" % n for n in range(100)]
        assert stored_after_a_kill(bench, tmp_path / "written over") == expected
    assert wal_bytes(bench) == 0
    assert stored_data(bench.database, bench.ids[0]) == expected
    session = bench.database.session()
    assert session.execute("SELECT count(*) FROM sqlite_master WHERE name = 'trial'").fetchone()[0] == 0
    session.close()


@pytest.mark.parametrize("free_bytes", [0, checkpointer.EXTEND_FREE_BYTES_MIN - 1, OSError("no such disk")])
async def test_not_where_there_is_little_room(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, free_bytes: int | OSError
) -> None:
    def free_disk_bytes(session: SqliteSession) -> int:
        if isinstance(free_bytes, OSError):
            raise free_bytes
        return free_bytes

    monkeypatch.setattr(SqliteSession, "free_disk_bytes", free_disk_bytes)
    async with ThreadRunner(bench.database) as runner:
        await push(runner, bench, 0, 2 * checkpointer.EXTEND_AFTER_COMMITS)
        assert wal_bytes(bench) < checkpointer.EXTENDED_BYTES
    assert len(stored_data(bench.database, bench.ids[0])) == 32


async def test_others_see_nothing_of_what_is_written_to_make_it_large(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a reader, a backup and a kill in the middle of it find what is committed. Method: all three, while the log
    is large and the transaction that made it so is open."""
    rollback = SqliteSession.rollback
    seen: list[object] = []

    def look_and_undo(session: SqliteSession) -> None:
        # Once: a start makes a rollback, too, and the killed directory is opened here.
        if not seen and session.in_transaction and wal_bytes(bench) >= checkpointer.EXTENDED_BYTES:
            with (
                closing(sqlite3.connect(bench.database.path)) as reader,
                closing(sqlite3.connect(tmp_path / "backup")) as copy,
            ):
                seen.append(reader.execute("SELECT count(*) FROM messages").fetchone())
                reader.backup(copy)
                seen.append(copy.execute("SELECT count(*) FROM messages").fetchone())
                seen.append(copy.execute("PRAGMA integrity_check").fetchone())
            seen.append(stored_after_a_kill(bench, tmp_path / "killed"))
        rollback(session)

    monkeypatch.setattr(SqliteSession, "rollback", look_and_undo)
    async with ThreadRunner(bench.database) as runner:
        await push(runner, bench, 0, len(STORED))
    count = (len(STORED),)
    assert seen == [count, count, ("ok",), STORED]
    assert stored_data(bench.database, bench.ids[0]) == STORED


async def test_where_a_quota_leaves_no_room_what_was_taken_is_given_back(bench: Bench) -> None:
    """Goal: trying to make the log large takes no room from pushes. Method: a limit on file sizes, as by a quota."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with ThreadRunner(bench.database) as runner:
        await push(runner, bench, 0, checkpointer.EXTEND_AFTER_COMMITS - 1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4 * 1024 * 1024, limits[1]))
        try:
            with capture_logs() as logs:
                await push(runner, bench, checkpointer.EXTEND_AFTER_COMMITS - 1, 1)
                with trio.fail_after(30):
                    while not [line for line in logs if line["event"] == "wal_not_extended"]:
                        await trio.sleep(0.01)
            await push(runner, bench, checkpointer.EXTEND_AFTER_COMMITS, 29)
            assert wal_bytes(bench) < 1024 * 1024
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert runner.statistics().failure is None
    assert bench.errors() == [None] * 45
    assert len(stored_data(bench.database, bench.ids[0])) == 45


@pytest.mark.parametrize(("error", "goes_on"), [(DiskFailed("gone"), False), (StorageError("no"), True)])
async def test_only_a_disk_that_fails_stops_writing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: StorageError, goes_on: bool
) -> None:
    def fail(session: SqliteSession, size_bytes: int) -> None:
        raise error

    monkeypatch.setattr(SqliteSession, "extend_wal", fail)
    async with ThreadRunner(bench.database) as runner:
        with capture_logs() as logs:
            await push(runner, bench, 0, checkpointer.EXTEND_AFTER_COMMITS)
            with trio.fail_after(30):
                while not logs:
                    await trio.sleep(0.01)
        await push(runner, bench, checkpointer.EXTEND_AFTER_COMMITS, 4)
        assert (runner.statistics().failure is None) is goes_on
    stored = len(stored_data(bench.database, bench.ids[0]))
    assert stored == checkpointer.EXTEND_AFTER_COMMITS + (4 if goes_on else 0)


def test_a_session_that_could_not_make_it_large_is_as_it_was(bench: Bench) -> None:
    session = bench.database.session()
    with pytest.raises(StorageError):
        session.extend_wal(2**40)
    assert not session.in_transaction
    assert session.execute("PRAGMA cache_size").fetchone() == (PRAGMAS["cache_size"],)
    session.close()
