"""Goal: a log that was made large early holds what is committed before and after that, also when its node is killed.

Method: real files; a kill is a copy of the directory as it stands, opened anew.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from storage import threads
from storage.database import Database
from storage.lock import FILE_NAME as LOCK_NAME
from storage.runner import ThreadRunner
from storage.session import SqliteSession
from tests.storage.runner_samples import Bench
from tests.storage.storage_samples import stored_data


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    opened = Bench(tmp_path / "data")
    yield opened
    opened.close()


def wal_bytes(bench: Bench) -> int:
    path = bench.database.path.with_name("streams.sqlite-wal")
    return path.stat().st_size if path.exists() else 0


async def push(runner: ThreadRunner, bench: Bench, first_index: int, count: int) -> None:
    """Each in a commit of its own."""
    for index in range(first_index, first_index + count):
        runner.submit_write(bench.append(index, b"%d" % index))
        await runner.wait_idle()


def stored_after_a_kill(bench: Bench, to: Path) -> list[bytes]:
    shutil.copytree(bench.directory, to, ignore=shutil.ignore_patterns(LOCK_NAME))
    database = Database.open(to)
    try:
        session = database.session()
        try:
            assert session.connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        finally:
            session.close()
        return stored_data(database, bench.ids[0])
    finally:
        database.close()


async def test_it_grows_once_and_is_written_over(bench: Bench, tmp_path: Path) -> None:
    async with ThreadRunner(bench.database) as runner:
        await push(runner, bench, 0, threads.EXTEND_AFTER_COMMITS - 1)
        assert wal_bytes(bench) < 1024 * 1024
        await push(runner, bench, threads.EXTEND_AFTER_COMMITS - 1, 1)
        with trio.fail_after(30):
            while wal_bytes(bench) < threads.EXTENDED_BYTES:
                await trio.sleep(0.01)
        large = wal_bytes(bench)
        assert stored_after_a_kill(bench, tmp_path / "extended") == [b"%d" % n for n in range(16)]
        await push(runner, bench, 16, 84)
        assert wal_bytes(bench) == large
        expected = [b"%d" % n for n in range(100)]
        assert stored_after_a_kill(bench, tmp_path / "written over") == expected
    assert wal_bytes(bench) == 0
    assert stored_data(bench.database, bench.ids[0]) == expected
    session = bench.database.session()
    assert (
        session.connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'wal_extension'").fetchone()[0] == 0
    )
    session.close()


@pytest.mark.parametrize("free_bytes", [0, threads.EXTEND_FREE_BYTES_MIN - 1, OSError("no such disk")])
async def test_not_where_there_is_little_room(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, free_bytes: int | OSError
) -> None:
    def free_disk_bytes(session: SqliteSession) -> int:
        if isinstance(free_bytes, OSError):
            raise free_bytes
        return free_bytes

    monkeypatch.setattr(SqliteSession, "free_disk_bytes", free_disk_bytes)
    async with ThreadRunner(bench.database) as runner:
        await push(runner, bench, 0, 2 * threads.EXTEND_AFTER_COMMITS)
        assert wal_bytes(bench) < threads.EXTENDED_BYTES
    assert len(stored_data(bench.database, bench.ids[0])) == 32
