"""Backups of a data directory, of a node that pushes meanwhile too, and putting them back."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
import trio

from stream_node.care.restore import Present
from stream_storage.directory_lock import FILE_NAME as LOCK_NAME
from stream_storage.errors import DatabaseCorrupt, DatabaseInUse, DatabaseTooNew, StorageError
from stream_storage.sqlite.backup import MANIFEST_NAME, BackupError, back_up
from stream_storage.sqlite.database import FILE_NAME, Database
from tests.cli.command import CommandLine, at_terminal
from tests.cli.promised import promised
from tests.support.backups import NOW_US, WORDS, kill_with_log, names, put, store, take
from tests.support.data_dir import open_session, stored_messages
from tests.support.restored_fences import check_no_fence_twice
from tests.support.served import PATIENCE_S, served, wait_until


@pytest.fixture
def data(tmp_path: Path) -> Path:
    store(tmp_path / "data", "words", WORDS)
    return tmp_path / "data"


@pytest.fixture
def taken(data: Path, tmp_path: Path) -> Path:
    take(data, tmp_path / "taken", check=True)
    return tmp_path / "taken"


def test_what_was_backed_up_comes_back(data: Path, taken: Path, tmp_path: Path) -> None:
    store(data, "words", [b"later"])
    assert names(taken) == {FILE_NAME, MANIFEST_NAME}
    assert put(taken, tmp_path / "new" / "place") == Present(found=False)
    assert names(tmp_path / "new" / "place") == {FILE_NAME, LOCK_NAME}
    assert stored_messages(tmp_path / "new" / "place", "words") == WORDS
    store(tmp_path / "new" / "place", "words", [b"four"])
    assert stored_messages(data, "words") == [*WORDS, b"later"]


def test_a_backup_says_what_it_has(data: Path, taken: Path, tmp_path: Path) -> None:
    store(data, "other", [b"12345"])
    manifest = take(data, tmp_path / "second")
    assert (manifest.streams, manifest.messages, manifest.data_bytes) == (2, 4, 16)
    assert manifest.created_us == NOW_US
    assert json.loads((taken / MANIFEST_NAME).read_bytes())["messages"] == 3


def test_the_lock_is_not_touched(data: Path, tmp_path: Path) -> None:
    (data / LOCK_NAME).write_bytes(b"123\n")
    before = (data / LOCK_NAME).stat()
    take(data, tmp_path / "taken")
    after = (data / LOCK_NAME).stat()
    assert (data / LOCK_NAME).read_bytes() == b"123\n"
    assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)


async def test_a_node_that_pushes_is_backed_up_in_one_state(tmp_path: Path) -> None:
    """What was confirmed before is in it, pushing goes on, and the copying is not begun anew by any push."""
    confirmed, wanted = 0, trio.Event()

    async with served(tmp_path / "data") as running, trio.open_nursery() as nursery:
        peer = await running.peer()
        route = await peer.create("busy")
        await peer.push_all(route, [bytes(8_000)] * 1_000)
        confirmed = 1_000

        async def push_on() -> None:
            nonlocal confirmed
            while not wanted.is_set():
                await peer.push(route, bytes(1_000))
                confirmed += 1

        nursery.start_soon(push_on)
        steps: list[int] = []

        def slowly(what: str, done: int, total: int | None) -> None:
            if what == "copying":
                steps.append(done)
                so_far = confirmed
                trio.from_thread.run(wait_until, lambda: confirmed > so_far)

        before = confirmed
        manifest = await trio.to_thread.run_sync(
            lambda: back_up(tmp_path / "data", tmp_path / "taken", now_us=NOW_US, check=True, progress=slowly)
        )
        during = confirmed
        wanted.set()
    assert before <= manifest.messages < during
    assert len(steps) > 1
    assert steps == sorted(steps)
    put(tmp_path / "taken", tmp_path / "back")
    with trio.fail_after(PATIENCE_S):
        async with served(tmp_path / "back") as running:
            peer = await running.peer()
            assert (await peer.push(await peer.create("busy"), b"next")).index == manifest.messages


def test_a_folder_with_something_in_it_is_no_place_for_a_backup(data: Path, taken: Path) -> None:
    with pytest.raises(BackupError, match="not empty; choose a new folder"):
        take(data, taken)
    with pytest.raises(BackupError, match="cannot be used"):
        take(data, taken / FILE_NAME)


def test_a_backup_that_fails_leaves_nothing(data: Path, tmp_path: Path) -> None:
    with sqlite3.connect(data / FILE_NAME) as connection:
        connection.execute("UPDATE messages SET data = x'00' WHERE idx = 1")
    connection.close()
    with pytest.raises(DatabaseCorrupt, match=r"problems \(\d+\), the first: .*message"):
        take(data, tmp_path / "bad", check=True)
    assert not (tmp_path / "bad").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatabaseCorrupt):
        take(data, tmp_path / "empty", check=True)
    assert names(tmp_path / "empty") == set()
    with pytest.raises(StorageError, match="there is no database"):
        take(tmp_path / "empty", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_directory_in_use_or_not_empty_is_refused(data: Path, taken: Path, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="not empty"):
        put(taken, data)
    database = Database.open(data)
    for dry_run in (False, True):
        with pytest.raises(DatabaseInUse, match="is in use by this process"):
            put(taken, data, over=True, dry_run=dry_run)
    database.close()
    assert (data / LOCK_NAME).read_bytes() == b""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis").touch()
    for over, says in ((False, "not empty"), (True, "no database to replace")):
        with pytest.raises(BackupError, match=says):
            put(taken, tmp_path / "home", over=over)
    assert names(tmp_path / "home") == {"thesis"}


def test_over_replaces_what_is_there_with_its_log(data: Path, taken: Path) -> None:
    """The write-ahead log of a node that was killed does not get into the new database."""
    kill_with_log(data, "later", [b"four"])
    killed = {each.name: each.read_bytes() for each in data.iterdir()}
    assert put(taken, data, over=True, dry_run=True) == Present(True, 2, 4)
    assert (data / FILE_NAME).read_bytes() == killed[FILE_NAME]
    assert (data / LOCK_NAME).read_bytes() == killed[LOCK_NAME]
    assert put(taken, data, over=True) == Present(True, 2, 4)
    assert names(data) == {FILE_NAME, LOCK_NAME}
    assert stored_messages(data, "words") == WORDS
    with open_session(data) as restored:
        assert [record.name for record in restored.log.list_streams()] == ["words"]


def test_a_database_that_cannot_be_read_is_replaced_too(data: Path, taken: Path) -> None:
    (data / FILE_NAME).write_bytes(b"no database" * 1_000)
    assert put(taken, data, over=True) == Present(found=True)
    assert stored_messages(data, "words") == WORDS


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_damaged_backup_is_not_restored(taken: Path, tmp_path: Path, dry_run: bool) -> None:
    content = bytearray((taken / FILE_NAME).read_bytes())
    content[-1] ^= 1
    (taken / FILE_NAME).write_bytes(content)
    with pytest.raises(BackupError, match="SHA-256 differs"):
        put(taken, tmp_path / "back", dry_run=dry_run)
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_backup_of_damaged_data_is_found_by_reading_it(data: Path, tmp_path: Path, dry_run: bool) -> None:
    with sqlite3.connect(data / FILE_NAME) as connection:
        connection.execute("UPDATE streams SET next_index = 4")
    connection.close()
    take(data, tmp_path / "taken")
    with pytest.raises(DatabaseCorrupt, match="missing"):
        put(tmp_path / "taken", tmp_path / "back", dry_run=dry_run)
    assert not (tmp_path / "back").exists()
    put(tmp_path / "taken", tmp_path / "back", check=False, dry_run=dry_run)
    assert (tmp_path / "back").exists() != dry_run


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"format": 2}, BackupError, "newer program"),
        ({"schema_version": 99}, DatabaseTooNew, "schema version 99"),
        ({"sha256": None}, BackupError, "cannot be read"),
    ],
)
def test_a_manifest_of_another_kind_is_refused(
    taken: Path, tmp_path: Path, change: dict[str, object], error: type[Exception], says: str
) -> None:
    manifest = json.loads((taken / MANIFEST_NAME).read_bytes())
    (taken / MANIFEST_NAME).write_text(json.dumps(manifest | change))
    with pytest.raises(error, match=says):
        put(taken, tmp_path / "back")
    (taken / MANIFEST_NAME).unlink()
    with pytest.raises(BackupError, match="is no backup"):
        put(taken, tmp_path / "back")


def test_the_commands_say_what_they_did(command: CommandLine, data: Path, tmp_path: Path) -> None:
    backup = command("backup", tmp_path / "a", "--data-dir", data, "--verify", "--json").read(promised.BackedUp)
    assert (backup.streams, backup.messages, backup.bytes, backup.verified) == (1, 3, 11, True)
    assert backup.database_bytes == (tmp_path / "a" / FILE_NAME).stat().st_size
    text = command("backup", tmp_path / "b", "--data-dir", data).text
    assert text.startswith(f"1 stream, 3 messages in {tmp_path / 'b'} (")
    arguments = ("restore", tmp_path / "a", "--data-dir", tmp_path / "back")
    dry = command(*arguments, "--dry-run", "--json").read(promised.Restored)
    assert (dry.dry_run, dry.replaced, dry.verified) == (True, False, False)
    assert not (tmp_path / "back").exists()
    text = command(*arguments, "--verify").text
    assert text == f"1 stream, 3 messages restored to {tmp_path / 'back'}, verified\n"
    assert "say --over" in command(*arguments).failed(1)
    code, told = at_terminal(b"no\n", *arguments, "--over")
    assert (code, "nothing was changed" in told) == (1, True)
    over = command(*arguments, "--over", "--json").read(promised.Restored)
    assert (over.replaced, over.replaced_streams, over.replaced_messages) == (True, 1, 3)
    text = command(*arguments, "--over", "--dry-run").text
    assert text == (
        f"1 stream, 3 messages would be restored to {tmp_path / 'back'}, in place of 1 stream, 3 messages\n"
    )


async def test_no_fence_is_given_twice_when_a_backup_is_put_back(tmp_path: Path) -> None:
    """Goal: who got a lease after the backup was taken never meets its fence again. Method: one partition that was
    leased before the backup, one only after it; restored, both come under higher fences, and the old save nothing."""
    taken = tmp_path / "taken"
    await check_no_fence_twice(
        tmp_path / "data", lambda data: take(data, taken), lambda data: put(taken, data, over=True)
    )
