"""Goal: nothing confirmed is lost in silence to a damaged write-ahead log, and no end that a kill or a power cut can
leave is refused.

Method: directories as a kill leaves them, one byte changed at a time; last transactions with frames missing.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ockam.files.durable_files import sync
from stream_storage.directory_lock import FILE_NAME as LOCK_NAME
from stream_storage.directory_lock import DirectoryLock, boot_id
from stream_storage.errors import DatabaseCorrupt, StorageError, WalDamaged
from stream_storage.sqlite.database import FILE_NAME, PRAGMAS, Database
from stream_storage.sqlite.session import SqliteSession
from stream_storage.sqlite.wal.check import examined, refuse_damaged
from stream_storage.sqlite.wal.scan_machine import WalState
from tests.stream_storage.wal.wal_samples import (
    FRAME_BYTES,
    WAL_NAME,
    change,
    contents,
    killed,
    push,
    restarted,
    stored_commits,
)

COMMITS = 24


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return killed(tmp_path_factory.mktemp("left"), COMMITS)


@pytest.fixture
def copy(left: Path, tmp_path: Path) -> Path:
    return shutil.copytree(left, tmp_path / "data")


def frames_of(directory: Path) -> int:
    return ((directory / WAL_NAME).stat().st_size - 32) // FRAME_BYTES


def verdict_of(directory: Path, *, rebooted: bool) -> WalState:
    with examined(directory / FILE_NAME, rebooted=rebooted) as log:
        assert log is not None
        return log.verdict


def kept_copies(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.damaged"))


def last_transaction(directory: Path) -> range:
    """The numbers of the log's frames, from 1."""
    content = (directory / WAL_NAME).read_bytes()
    commits = [
        n for n in range(1, frames_of(directory) + 1) if content[32 + (n - 1) * FRAME_BYTES + 4 :][:4] != bytes(4)
    ]
    assert commits[-1] == frames_of(directory)
    return range(commits[-2] + 1, commits[-1] + 1)


def spread(left: Path) -> list[int]:
    """Offsets all over the log: in the header, in heads of frames and in pages; early, in the middle and at the end."""
    size, frames = (left / WAL_NAME).stat().st_size, frames_of(left)
    heads = [32 + frame * FRAME_BYTES + at for frame in (0, 1, frames // 2, frames - 1) for at in (0, 7, 8, 15, 16, 23)]
    pages = [
        32 + frame * FRAME_BYTES + 24 + at for frame in (0, frames // 3, frames - 1) for at in (0, 5, 4_000, 8_191)
    ]
    return [*range(0, 32, 3), *heads, *pages, *(part * size // 24 for part in range(1, 24)), size - 1]


@pytest.mark.slow
@pytest.mark.parametrize("rebooted", [False, True])
def test_one_wrong_byte_anywhere_is_refused_or_does_no_harm(left: Path, tmp_path: Path, rebooted: bool) -> None:
    """After a power cut, only the last transaction may be missing, and the node logs that."""
    outcomes: dict[str, list[int]] = {"refused": [], "harmless": [], "told": []}
    last = (left / WAL_NAME).stat().st_size - len(last_transaction(left)) * FRAME_BYTES
    for offset in spread(left):
        directory = shutil.copytree(left, tmp_path / str(offset))
        change(directory, offset)
        if rebooted:
            restarted(directory)
        before = contents(directory)
        try:
            with capture_logs() as lines:
                commits = stored_commits(directory)
            if commits != COMMITS:
                assert rebooted
                assert (commits, [line["event"] for line in lines]) == (COMMITS - 1, ["wal_end_cut"]), offset
                assert kept_copies(directory)
                assert offset >= last
            outcomes["harmless" if commits == COMMITS else "told"].append(offset)
        except WalDamaged:
            after = contents(directory)
            (kept,) = kept_copies(directory)
            assert after.pop(kept.name) == before[WAL_NAME]
            after[LOCK_NAME] = before[LOCK_NAME]
            assert after == before
            outcomes["refused"].append(offset)
        shutil.rmtree(directory)
    assert len(outcomes["refused"]) > 40
    assert min(outcomes["harmless"]) >= last, "a last transaction can be completed"
    assert len(outcomes["told"]) <= len(outcomes["harmless"])


def test_the_refusal_says_what_stands_behind_and_what_to_do(copy: Path) -> None:
    change(copy, 32 + 40 * FRAME_BYTES + 3_000)
    with pytest.raises(WalDamaged) as refused:
        Database.open(copy)
    damage = refused.value
    assert isinstance(damage, DatabaseCorrupt)
    assert (damage.bad, damage.frames, damage.lost) == (41, frames_of(copy) - 40, 0)
    assert damage.behind is not None
    assert [(each.name, each.partition, each.end) for each in damage.behind] == [("one", 0, 72), ("two", 0, 72)]
    first = damage.behind[0].first
    assert damage.behind[1].first == first
    assert 0 < first < 72
    text = str(damage)
    assert f"one/0 at {first} to 71, two/0 at {first} to 71" in text
    assert f"stream-node repair --data-dir {copy}" in text
    assert kept_copies(copy)[0].name in text
    assert "\n" not in text


def test_what_the_refusal_says_is_what_sqlite_would_have_lost(copy: Path, tmp_path: Path) -> None:
    """SQLite opens a copy of the directory without our check of the log."""
    change(copy, 32 + 40 * FRAME_BYTES + 3_000)
    with closing(sqlite3.connect(shutil.copytree(copy, tmp_path / "other") / FILE_NAME)) as connection:
        (next_index,) = connection.execute("SELECT max(idx) + 1 FROM messages").fetchone()
    with pytest.raises(WalDamaged) as refused:
        Database.open(copy)
    assert refused.value.behind is not None
    assert refused.value.behind[0].first == next_index


def test_a_copy_is_kept_once_and_never_written_over(copy: Path) -> None:
    change(copy, 5_000)
    for _ in range(3):
        with pytest.raises(WalDamaged):
            Database.open(copy)
    assert len(kept_copies(copy)) == 1
    change(copy, 6_000)
    with pytest.raises(WalDamaged):
        Database.open(copy)
    assert len(kept_copies(copy)) == 2


def test_without_room_for_a_copy_the_damage_is_told_all_the_same(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node must report the damage, and not only that there is no room for a copy."""
    change(copy, 5_000)
    before = contents(copy)

    def full(path: Path, pieces: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("stream_storage.sqlite.wal.check._write_synced", full)
    with (
        capture_logs() as lines,
        pytest.raises(WalDamaged, match=r"is damaged: .* nothing was changed; see what"),
    ):
        Database.open(copy)
    assert [line["event"] for line in lines] == ["damaged_log_not_copied"]
    assert {**contents(copy), LOCK_NAME: b""} == {**before, LOCK_NAME: b""}


@pytest.mark.parametrize("emptied", [False, True])
def test_a_log_without_its_database_is_not_thrown_away(copy: Path, emptied: bool) -> None:
    """SQLite would make an empty database, and remove the log with all its commits."""
    database = (copy / FILE_NAME).read_bytes()
    (copy / FILE_NAME).unlink()
    if emptied:
        (copy / FILE_NAME).touch()
    log = (copy / WAL_NAME).read_bytes()
    with pytest.raises(StorageError, match=r"no database to it; put streams.sqlite back .* or move streams.sqlite-wal"):
        Database.open(copy)
    assert (copy / WAL_NAME).read_bytes() == log
    (copy / FILE_NAME).write_bytes(database)
    assert stored_commits(copy) == COMMITS


def test_the_copy_is_synced_before_the_refusal(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    def noted(path: Path) -> None:
        synced.append(path.name)
        sync(path)

    monkeypatch.setattr("ockam.files.durable_files.sync", noted)
    change(copy, 5_000)
    with pytest.raises(WalDamaged):
        Database.open(copy)
    assert copy.name in synced


def test_a_transaction_that_a_power_cut_took_is_told_and_kept(copy: Path) -> None:
    number = last_transaction(copy).start
    at = 32 + (number - 1) * FRAME_BYTES
    change(copy, at + 100, at + 3_000, at + 6_000)
    restarted(copy)
    with capture_logs() as lines:
        assert stored_commits(copy) == COMMITS - 1
    (line,) = [line for line in lines if line["event"] == "wal_end_cut"]
    assert (line["frames"], line["unreadable"], line["log_level"]) == (
        len(last_transaction_of(kept_copies(copy)[0])),
        1,
        "warning",
    )
    assert line["behind"] == ["one/0 at 69 to 71", "two/0 at 69 to 71"]


def last_transaction_of(log: Path) -> range:
    content = log.read_bytes()
    frames = (len(content) - 32) // FRAME_BYTES
    commits = [n for n in range(1, frames + 1) if content[32 + (n - 1) * FRAME_BYTES + 4 :][:4] != bytes(4)]
    return range(commits[-2] + 1, commits[-1] + 1)


def test_the_same_damage_without_a_power_cut_is_refused(copy: Path) -> None:
    if not boot_id():
        pytest.skip("this system does not tell when it was started")
    at = 32 + (last_transaction(copy).start - 1) * FRAME_BYTES
    change(copy, at + 100, at + 3_000, at + 6_000)
    with pytest.raises(WalDamaged):
        Database.open(copy)


def test_a_start_that_fails_does_not_pass_for_the_one_that_wrote(copy: Path) -> None:
    """Goal: a log torn by a power cut is not refused because a start before this one came to nothing."""
    at = 32 + (last_transaction(copy).start - 1) * FRAME_BYTES
    change(copy, at + 100, at + 3_000, at + 6_000)
    restarted(copy)
    for _ in range(2):
        DirectoryLock(copy).release(clean=False)
    assert stored_commits(copy) == COMMITS - 1


def test_nothing_is_left_behind_a_torn_end_that_could_look_like_damage(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: frames of a transaction that was cut off do not stand behind the commits of the next life. Method: a reader
    keeps the log from being emptied at the start; then a kill."""
    number = last_transaction(copy).start
    change(copy, *(32 + (number - 1) * FRAME_BYTES + at for at in (100, 3_000, 6_000)))
    restarted(copy)
    monkeypatch.setitem(PRAGMAS, "busy_timeout", 20)
    reader = Database.open(copy, read_only=True).read_session()
    reader.begin()
    reader.connection.execute("SELECT count(*) FROM messages").fetchone()
    database = Database.open(copy)
    session = database.session()
    session.begin()
    session.log.ensure_stream("after", 0, 1)
    session.commit()
    again = shutil.copytree(copy, copy.with_name("again"))
    reader.close()
    session.close()
    database.close()
    assert verdict_of(again, rebooted=False) in (WalState.SOUND, WalState.TORN)
    assert stored_commits(again) == COMMITS - 1


def test_what_makes_the_log_large_leaves_no_doubt(tmp_path: Path) -> None:
    def extend(session: SqliteSession, commit: int) -> None:
        if commit == 8:
            session.extend_wal(2 * 1024 * 1024)

    directory = killed(tmp_path, 16, meanwhile=extend)
    assert verdict_of(directory, rebooted=False) in (WalState.SOUND, WalState.TORN)
    change(directory, 32 + 20 * FRAME_BYTES + 100)
    with pytest.raises(WalDamaged):
        Database.open(directory)


def test_damage_in_what_has_been_copied_into_the_file_is_refused(tmp_path: Path) -> None:
    """SQLite would mix newer pages of the file with older pages of the log."""

    def checkpoint(session: SqliteSession, commit: int) -> None:
        if commit == 12:
            assert session.checkpoint("PASSIVE").copied_pages > 20

    directory = killed(tmp_path, 16, meanwhile=checkpoint)
    change(directory, 32 + 4 * FRAME_BYTES + 100, 32 + 4 * FRAME_BYTES + 900)
    with pytest.raises(WalDamaged) as refused:
        Database.open(directory)
    assert refused.value.lost == 0


def test_readers_refuse_what_a_start_refuses(copy: Path) -> None:
    before = contents(copy)
    change(copy, 5_000)
    with pytest.raises(WalDamaged, match="nothing was changed; see what"):
        Database.open(copy, read_only=True)
    assert contents(copy).keys() == before.keys()


def test_readers_beside_a_node_do_not_judge_its_log(tmp_path: Path) -> None:
    """A running node has found its log whole, and writes to it while we read."""
    database = Database.open(tmp_path)
    session = database.session()
    for commit in range(10):
        push(session, commit)
    change(tmp_path, 5_000)
    refuse_damaged(database.path)
    Database.open(tmp_path, read_only=True)
    session.close()
    database.close()
