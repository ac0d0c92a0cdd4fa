"""A restore that is interrupted leaves one database or the other, and nothing that harms the next one."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import structlog

from stream_node.care.restore import Present
from stream_node.node.clock_note import FILE_NAME as CLOCK_NAME
from stream_storage.directory_lock import FILE_NAME as LOCK_NAME
from stream_storage.errors import StorageBusy, StorageError
from stream_storage.sqlite.database import FILE_NAME, Database
from stream_storage.sqlite.schema import SCHEMA_VERSION
from tests.stream_storage.test_migration import rows_of, unpacked
from tests.stream_storage.test_seals import problems_of
from tests.support.backups import WORDS, kill_with_log, names, put, store, stored_streams, take
from tests.support.data_dir import stored_messages


@pytest.fixture
def data(tmp_path: Path) -> Path:
    store(tmp_path / "data", "words", WORDS)
    return tmp_path / "data"


@pytest.fixture
def taken(data: Path, tmp_path: Path) -> Path:
    take(data, tmp_path / "taken", check=True)
    return tmp_path / "taken"


def test_an_interrupted_replacement_leaves_the_old_database_or_the_new_one(
    data: Path, taken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: nothing is in between, whatever of the old database is only in its write-ahead log.

    Method: the directory as it is before each name that this process removes or moves, which is what a kill leaves.
    `tests/power` does the same for power cuts.
    """
    store(data, "since", [b"then"])
    kill_with_log(data, "later", [b"four", b"five"])
    snapshots: list[Path] = []

    def watched(call: Callable[..., None]) -> Callable[..., None]:
        def watching(path: Path, *more: Path) -> None:
            if str(path).startswith(str(data)):
                snapshots.append(Path(shutil.copytree(data, tmp_path / f"before {len(snapshots)}")))
            call(path, *more)

        return watching

    with monkeypatch.context() as watching:
        for name in ("unlink", "replace"):
            watching.setattr(os, name, watched(getattr(os, name)))
        put(taken, data, over=True)
    found = [stored_streams(snapshot) for snapshot in (*snapshots, data)]
    old, new = {"words": 3, "since": 1, "later": 2}, {"words": 3}
    assert len(snapshots) > 1
    assert found[0] == old
    assert found[-1] == new
    assert all(each in (old, new) for each in found), found


@pytest.mark.parametrize("check", [False, True])
def test_what_an_interrupted_restore_left_is_not_mixed_into_the_next(
    data: Path, taken: Path, tmp_path: Path, check: bool
) -> None:
    """Goal: the log of a copy that was not finished does not get into the one that is, nor take its fences away."""
    store(tmp_path / "other", "others", [b"x" * 3_000] * 40)
    kill_with_log(tmp_path / "other", "others", [b"y" * 3_000] * 40)
    for suffix in ("", "-wal", "-shm"):
        shutil.copy(tmp_path / "other" / f"{FILE_NAME}{suffix}", data / f"{FILE_NAME}.part{suffix}")
    put(taken, data, over=True, check=check)
    assert names(data) == {FILE_NAME, LOCK_NAME}
    assert stored_streams(data) == {"words": 3}
    with closing(sqlite3.connect(data / FILE_NAME)) as connection:
        assert connection.execute("SELECT count(*) FROM lease_floor").fetchone() == (1,)


def test_after_an_interrupted_restore_a_node_starts_with_the_old_database(data: Path, tmp_path: Path) -> None:
    (data / f"{FILE_NAME}.part").write_bytes(b"half")
    (data / f"{FILE_NAME}.part-wal").write_bytes(b"half")
    with structlog.testing.capture_logs() as lines:
        assert stored_messages(data, "words") == WORDS
    assert [line["event"] for line in lines] == ["restore_was_interrupted"]
    assert names(data) == {FILE_NAME, LOCK_NAME}


def test_after_an_interrupted_restore_into_a_new_directory_no_empty_node_starts(taken: Path, tmp_path: Path) -> None:
    """Its indexes would begin anew; the restore can be repeated, without saying --over."""
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / f"{FILE_NAME}.part").write_bytes(b"half")
    with pytest.raises(StorageError, match=r"interrupted .*restore once more, or remove streams.sqlite.part"):
        Database.open(tmp_path / "new")
    assert not (tmp_path / "new" / FILE_NAME).exists()
    assert put(taken, tmp_path / "new") == Present(found=False)
    assert stored_messages(tmp_path / "new", "words") == WORDS


def test_a_database_that_another_program_reads_is_not_replaced(
    data: Path, taken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log could not be copied into its file, so that it would not be whole if the restore were interrupted."""
    monkeypatch.setattr("stream_node.care.restore.BUSY_TIMEOUT_MS", 10)
    kill_with_log(data, "later", [b"four"])
    with closing(sqlite3.connect(data / FILE_NAME, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM messages").fetchone()
        with pytest.raises(StorageBusy, match="end that program"):
            put(taken, data, over=True)
        reader.execute("COMMIT")
    assert stored_streams(data) == {"words": 3, "later": 1}
    put(taken, data, over=True)
    assert stored_streams(data) == {"words": 3}


def test_what_a_node_notes_beside_its_database_is_no_reason_to_refuse(taken: Path, tmp_path: Path) -> None:
    """Whoever has removed a broken database has the lock file and the noted time left."""
    target = tmp_path / "emptied"
    target.mkdir()
    (target / LOCK_NAME).touch()
    (target / CLOCK_NAME).write_text("{}")
    put(taken, target)
    assert stored_streams(target) == {"words": 3}


def test_a_backup_of_an_older_version_is_restored_with_every_value_and_brought_up_to_date(tmp_path: Path) -> None:
    old = unpacked(tmp_path / "old")
    before = rows_of(old)
    manifest = take(old, tmp_path / "taken", check=True)
    assert manifest.schema_version == 1
    assert rows_of(tmp_path / "taken") == before, "a backup is what was there"
    store(tmp_path / "data", "since", [b"then"])
    for target in (tmp_path / "new", tmp_path / "data"):
        put(tmp_path / "taken", target, over=True, check=True)
        with closing(sqlite3.connect(target / FILE_NAME)) as connection:
            assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        assert problems_of(target) == ()
        after = rows_of(target)
        # A restore raises the fences, and changes nothing else.
        raised = {"lease_fences", "lease_floor"}
        assert {name: rows for name, rows in after.items() if name in before.keys() - raised} == {
            name: rows for name, rows in before.items() if name not in raised
        }
