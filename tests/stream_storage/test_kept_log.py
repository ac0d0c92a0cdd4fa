"""Stops and starts while another program reads the database, as a program does that copies it continuously.

Goal: such a stop counts as clean although its commits stay in the write-ahead log, loses nothing, and is told apart
from every other way in which commits can be in the log. Method: a second connection of plain SQLite with a read
transaction that is older than the last commits; the next start is asked through damage that only a check would find.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import structlog.testing
import trio

from stream_node.care.repair import plan_repair, repair
from stream_storage.directory_lock import FILE_NAME as LOCK_NAME
from stream_storage.directory_lock import KEPT, boot_id, owner_of
from stream_storage.errors import DatabaseCorrupt, DatabaseInUse, WalDamaged
from stream_storage.sqlite.database import FILE_NAME, PAGE_BYTES, Database
from stream_storage.sqlite.session import SqliteSession
from stream_storage.sqlite.wal.check import examined
from stream_storage.thread_runner import ThreadRunner
from tests.stream_storage.runner_samples import Bench
from tests.stream_storage.storage_samples import reading, stored_data
from tests.stream_storage.wal.wal_samples import FRAME_BYTES, WAL_NAME, change

COMMITS = 40
MARK = KEPT + b"\n" + boot_id() + b"\n"


@contextmanager
def reading_program(directory: Path) -> Iterator[sqlite3.Connection]:
    """Another program that has read the database, and whose transaction has not ended."""
    with closing(sqlite3.connect(directory / FILE_NAME, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM messages").fetchone()
        yield connection


def data_of(life: int) -> list[bytes]:
    return [b"life %d message %d " % (life, number) * 20 for number in range(COMMITS)]


async def live(directory: Path, life: int) -> None:
    """Opens the directory, makes COMMITS commits, and stops in good order."""
    bench = Bench(directory)
    async with ThreadRunner(bench.database) as runner:
        for number, data in enumerate(data_of(life)):
            runner.submit_write(bench.append(life * COMMITS + number, data))
            await runner.wait_idle()
    bench.close()
    assert bench.errors() == [None] * COMMITS


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A copy of a directory that was stopped in good order while another program was reading its database."""
    directory = tmp_path / "read"
    trio.run(live, directory, 0)
    with reading_program(directory):
        trio.run(live, directory, 1)
        return shutil.copytree(directory, tmp_path / "kept", ignore=shutil.ignore_patterns("*-shm"))


def stored(directory: Path) -> list[bytes]:
    database = Database.open(directory)
    try:
        with reading(database) as session:
            (stream,) = session.log.list_streams(limit=2)
        return stored_data(database, stream.stream_id)
    finally:
        database.close()


def mark_of(directory: Path) -> bytes:
    return (directory / LOCK_NAME).read_bytes()


def damage_the_end(directory: Path) -> None:
    """Overwrite the last pages of the database file, which hold messages; the header and the streams stay."""
    with (directory / FILE_NAME).open("r+b") as file:
        file.seek(-2 * PAGE_BYTES, 2)
        file.write(b"\xff" * 2 * PAGE_BYTES)


async def test_a_stop_beside_a_reader_is_clean_and_says_that_the_log_is_kept(tmp_path: Path) -> None:
    await live(tmp_path, 0)
    assert mark_of(tmp_path) == b""
    with reading_program(tmp_path) as reader:
        with structlog.testing.capture_logs() as lines:
            await live(tmp_path, 1)
        assert [line["log_level"] for line in lines if line["event"] == "log_kept"] == ["info"]
        assert (mark_of(tmp_path), owner_of(tmp_path)) == (MARK, None)
        assert (tmp_path / WAL_NAME).stat().st_size > COMMITS * FRAME_BYTES
        # The other program has read on in its old state all the time.
        assert reader.execute("SELECT count(*) FROM messages").fetchone() == (COMMITS,)
        # The next node begins beside it, and so does its stop.
        await live(tmp_path, 2)
        assert mark_of(tmp_path) == MARK
    assert stored(tmp_path) == [*data_of(0), *data_of(1), *data_of(2)]
    assert (mark_of(tmp_path), (tmp_path / WAL_NAME).exists()) == (b"", False)


@pytest.mark.parametrize(
    ("mark", "checked"),
    [
        pytest.param(MARK, False, id="kept"),
        pytest.param(KEPT + b"\nanother boot\n", False, id="kept, then the machine was started anew"),
        pytest.param(b"4242\n" + boot_id() + b"\n", True, id="killed"),
        pytest.param(b"", True, id="a log that nobody announced"),
        pytest.param(b"something\n", True, id="a mark of another program"),
    ],
)
def test_only_a_kept_log_spares_the_next_start_its_checks(kept: Path, mark: bytes, checked: bool) -> None:
    assert mark_of(kept) == MARK
    damage_the_end(kept)
    (kept / LOCK_NAME).write_bytes(mark)
    if checked:
        with pytest.raises(DatabaseCorrupt):
            Database.open(kept)
        assert mark_of(kept) != b"" or mark == b""
        return
    Database.open(kept).close()


def test_damage_in_a_kept_log_is_refused_unless_a_power_cut_explains_it(kept: Path) -> None:
    """Goal: the mark still says in which boot the log was written, so that lost commits cannot pass for a torn end."""
    if not boot_id():
        pytest.skip("this system does not tell when it was started")
    with examined(kept / FILE_NAME, rebooted=False) as log:
        assert log is not None
        # The first frame of the last transaction, behind the commit before.
        before = max(n for n in range(1, log.found.good) if log.wal.head(n).commit)
        assert before + 1 < log.found.good
        at = log.wal.offset(before + 1)
    change(kept, at + 100, at + 3_000, at + 6_000)
    refused = shutil.copytree(kept, kept.parent / "refused")
    for _ in range(2):
        # The mark is still there after a start that has changed nothing.
        with pytest.raises(WalDamaged):
            Database.open(refused)
        assert mark_of(refused) == MARK
    (kept / LOCK_NAME).write_bytes(KEPT + b"\nanother boot\n")
    assert len(stored(kept)) == 2 * COMMITS - 1


async def test_a_log_from_an_earlier_boot_is_not_said_to_be_of_this_one(tmp_path: Path) -> None:
    await live(tmp_path, 0)
    with reading_program(tmp_path):
        await live(tmp_path, 1)
        (tmp_path / LOCK_NAME).write_bytes(KEPT + b"\nanother boot\n")
        await live(tmp_path, 2)
        assert mark_of(tmp_path) == KEPT + b"\n\n"


async def test_after_a_checkpoint_that_failed_the_stop_is_not_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(session: SqliteSession, mode: str) -> None:
        raise DatabaseInUse(1, tmp_path)

    await live(tmp_path, 0)
    with reading_program(tmp_path):
        with monkeypatch.context() as patch, structlog.testing.capture_logs() as lines:
            patch.setattr(SqliteSession, "checkpoint", fail)
            await live(tmp_path, 1)
        assert [line["event"] for line in lines] == ["checkpoint_failed"]
        assert owner_of(tmp_path) is not None
    assert stored(tmp_path) == [*data_of(0), *data_of(1)]


def test_a_look_at_a_kept_log_keeps_the_mark_and_a_repair_removes_it(kept: Path) -> None:
    assert not plan_repair(kept).needed
    assert mark_of(kept) == MARK
    assert repair(kept)[1] is None
    assert mark_of(kept) == b""


async def test_after_a_kill_beside_a_reader_the_whole_log_is_written_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: pages whose sync failed before the kill reach the disk although the log cannot be emptied. Method: every
    write at a place of the log, put together; at each one, another program is kept from writing."""
    await live(tmp_path, 0)
    log, written, refused = tmp_path / WAL_NAME, bytearray(), 0
    pwrite = os.pwrite

    def noted(file: int, data: bytes, offset: int) -> int:
        nonlocal refused
        if os.path.samestat(os.fstat(file), log.stat()):
            assert offset == len(written)
            written.extend(data)
            with (
                closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None, timeout=0)) as other,
                pytest.raises(sqlite3.OperationalError, match="locked"),
            ):
                other.execute("BEGIN IMMEDIATE")
            refused += 1
        return pwrite(file, data, offset)

    with reading_program(tmp_path):
        await live(tmp_path, 1)
        (tmp_path / LOCK_NAME).write_bytes(b"4242\n" + boot_id() + b"\n")
        before = log.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", noted)
            database = Database.open(tmp_path)
        assert refused >= 1
        # What was behind the last commit has been cut off before.
        assert written == log.read_bytes()
        assert before.startswith(written)
        assert len(written) > COMMITS * FRAME_BYTES
        database.close()
    assert stored(tmp_path) == [*data_of(0), *data_of(1)]
