"""Restoring a database file that another program has restored, as Litestream does.

Goal: it becomes a data directory whole, checked and with fences above all earlier ones, or nothing is changed. Method:
files as SQLite itself copies them from a data directory, with the tables that Litestream adds; no Litestream is needed.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from stream_node.care.restore import FileContents, Present, restore_file
from stream_storage.directory_lock import FILE_NAME as LOCK_NAME
from stream_storage.errors import DatabaseCorrupt, DatabaseInUse, DatabaseTooNew, StorageError
from stream_storage.sqlite.backup import BackupError
from stream_storage.sqlite.database import FILE_NAME, Database
from stream_storage.sqlite.schema import SCHEMA_VERSION
from tests.cli.command import CommandLine
from tests.cli.promised import promised
from tests.stream_storage.test_migration import unpacked
from tests.stream_storage.test_seals import problems_of
from tests.support.backups import NOW_US, WORDS, kill_with_log, names, quiet, store, stored_streams
from tests.support.data_dir import stored_messages
from tests.support.restored_fences import check_no_fence_twice

HELD = FileContents(streams=1, messages=3, data_bytes=11, newest_us=NOW_US)


def copy_out(directory: Path, file: Path) -> Path:
    """Copies the database of a directory into a file, as a program does that knows SQLite and nothing of a node."""
    with closing(sqlite3.connect(directory / FILE_NAME)) as source, closing(sqlite3.connect(file)) as copied:
        source.backup(copied)
        copied.execute("CREATE TABLE IF NOT EXISTS _litestream_seq (id INTEGER PRIMARY KEY, seq INTEGER)")
        copied.execute("INSERT INTO _litestream_seq VALUES (1, 7)")
        copied.commit()
    for each in ("-wal", "-shm"):
        file.with_name(file.name + each).unlink(missing_ok=True)
    return file


@pytest.fixture
def data(tmp_path: Path) -> Path:
    store(tmp_path / "data", "words", WORDS)
    return tmp_path / "data"


@pytest.fixture
def file(data: Path, tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return copy_out(data, tmp_path / "out" / "restored.sqlite")


def put(file: Path, target: Path, *, over: bool = False, dry_run: bool = False) -> tuple[FileContents, Present]:
    return restore_file(file, target, over=over, dry_run=dry_run, progress=quiet)


def test_a_file_becomes_a_data_directory_and_stays_as_it_is(data: Path, file: Path, tmp_path: Path) -> None:
    store(data, "words", [b"later"])
    before = file.read_bytes()
    assert put(file, tmp_path / "new" / "place") == (HELD, Present(found=False))
    assert names(tmp_path / "new" / "place") == {FILE_NAME, LOCK_NAME}
    assert (tmp_path / "new" / "place" / LOCK_NAME).read_bytes() == b""
    assert (names(file.parent), file.read_bytes()) == ({file.name}, before)
    assert stored_messages(tmp_path / "new" / "place", "words") == WORDS
    store(tmp_path / "new" / "place", "words", [b"four"])
    assert stored_streams(tmp_path / "new" / "place") == {"words": 4}


def test_a_directory_in_use_or_not_empty_is_refused(data: Path, file: Path, tmp_path: Path) -> None:
    kill_with_log(data, "later", [b"four"])
    for dry_run in (False, True):
        with pytest.raises(BackupError, match="not empty"):
            put(file, data, dry_run=dry_run)
    database = Database.open(data)
    for dry_run in (False, True):
        with pytest.raises(DatabaseInUse, match="is in use by this process"):
            put(file, data, over=True, dry_run=dry_run)
    database.close()
    assert stored_streams(data) == {"words": 3, "later": 1}
    assert put(file, data, over=True, dry_run=True) == put(file, data, over=True) == (HELD, Present(True, 2, 4))
    assert stored_streams(data) == {"words": 3}


def test_a_file_that_stands_in_its_data_directory_already_is_taken_over(file: Path, tmp_path: Path) -> None:
    """Goal: whoever let Litestream restore to the usual name still gets the checks and the fences."""
    target = tmp_path / "direct"
    target.mkdir()
    shutil.move(file, target / FILE_NAME)
    assert put(target / FILE_NAME, target, over=True) == (HELD, Present(True, 1, 3))
    assert stored_streams(target) == {"words": 3}
    with closing(sqlite3.connect(target / FILE_NAME)) as connection:
        assert connection.execute("SELECT count(*) FROM lease_floor").fetchone() == (1,)


def damage(file: Path, statement: str) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(statement)
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def empty(file: Path) -> None:
    file.write_bytes(b"")


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: -8192 * 2])


def leave_a_log(file: Path) -> None:
    file.with_name(file.name + "-wal").write_bytes(b"some")


def remove(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(
    ("spoil", "error", "says"),
    [
        pytest.param(remove, BackupError, "cannot be read: No such file.*litestream restore", id="missing"),
        pytest.param(empty, BackupError, "is no database of a node", id="empty"),
        pytest.param(lambda file: file.write_bytes(b"x" * 9_000), BackupError, "not a database", id="another file"),
        pytest.param(leave_a_log, BackupError, "restored.sqlite-wal beside it has a part of it", id="with a log"),
        pytest.param(cut, (DatabaseCorrupt, BackupError), "malformed|problems", id="cut"),
        pytest.param(
            lambda file: damage(file, "PRAGMA application_id=1"), BackupError, "no database of a node", id="of others"
        ),
        pytest.param(
            lambda file: damage(file, "PRAGMA user_version=99"), DatabaseTooNew, "schema version 99", id="too new"
        ),
        pytest.param(
            lambda file: damage(file, "UPDATE messages SET data = x'00' WHERE idx = 1"),
            DatabaseCorrupt,
            r"problems \(\d+\), the first: .*message",
            id="a wrong message",
        ),
        pytest.param(
            lambda file: damage(file, "DELETE FROM messages WHERE idx = 1"), DatabaseCorrupt, "missing", id="a gap"
        ),
    ],
)
def test_what_cannot_be_served_is_refused_and_nothing_is_left(
    file: Path,
    tmp_path: Path,
    spoil: Callable[[Path], object],
    error: type[Exception] | tuple[type[Exception], ...],
    says: str,
    dry_run: bool,
) -> None:
    spoil(file)
    with pytest.raises(error, match=says):
        put(file, tmp_path / "back", dry_run=dry_run)
    assert not (tmp_path / "back").exists()


def test_the_file_of_a_running_node_is_not_mistaken_for_a_copy(data: Path, tmp_path: Path) -> None:
    kill_with_log(data, "later", [b"four"])
    with pytest.raises(BackupError, match="stream-node backup"):
        put(data / FILE_NAME, tmp_path / "back")


def test_a_file_of_an_older_version_is_brought_up_to_date(tmp_path: Path) -> None:
    old = unpacked(tmp_path / "old")
    file = copy_out(old, tmp_path / "old.sqlite")
    contents, _ = put(file, tmp_path / "new")
    with closing(sqlite3.connect(tmp_path / "new" / FILE_NAME)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        assert connection.execute("SELECT count(*) FROM messages").fetchone() == (contents.messages,)
    assert contents.messages > 0
    assert problems_of(tmp_path / "new") == ()


def test_the_command_says_what_it_did_and_wants_one_source(command: CommandLine, file: Path, tmp_path: Path) -> None:
    back = tmp_path / "back"
    arguments = ("restore", "--file", file, "--data-dir", back)
    dry = command(*arguments, "--dry-run", "--json").read(promised.Restored)
    assert (dry.dry_run, dry.verified, dry.backup, dry.file) == (True, True, None, str(file))
    assert not back.exists()
    done = f"1 stream, 3 messages restored to {back}, verified, the newest from 2027-01-15T08:00:00Z"
    assert command(*arguments).text == f"{done}\n"
    assert "say --over" in command(*arguments).failed(1)
    assert command(*arguments, "--over").text == f"{done}, in place of 1 stream, 3 messages\n"
    assert "not both" in command("restore", tmp_path, "--file", file, "--data-dir", back).failed(2)
    assert "not both" in command("restore", "--data-dir", back).failed(2)
    assert command(*arguments, "--over", "--json").read(promised.Restored).newest_us == NOW_US


async def test_no_fence_is_given_twice_after_a_file_was_restored(tmp_path: Path) -> None:
    """Goal: who got a lease after the last moment that the file knows never meets its fence again. Method: a partition
    leased before, and both after it; restored, both come under higher fences, and the old one saves nothing."""
    file = tmp_path / "file.sqlite"
    await check_no_fence_twice(
        tmp_path / "data", lambda data: copy_out(data, file), lambda data: put(file, data, over=True)
    )


def test_a_restore_that_fails_keeps_the_database_that_was_there(data: Path, file: Path) -> None:
    damage(file, "UPDATE messages SET data = x'00' WHERE idx = 1")
    with pytest.raises(StorageError):
        put(file, data, over=True)
    assert f"{FILE_NAME}.part" not in names(data)
    assert stored_messages(data, "words") == WORDS
