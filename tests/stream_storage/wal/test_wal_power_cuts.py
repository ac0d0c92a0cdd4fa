"""Goal: no end that a kill or a power cut can leave of a write-ahead log is refused, and none costs a commit before it.

Method: logs cut short, and last transactions with any of their sectors missing, which hold what stood there before.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from stream_storage.contract import Append
from stream_storage.sqlite.database import Database
from stream_storage.sqlite.session import SqliteSession
from stream_storage.sqlite.wal.scan_machine import WalState
from tests.stream_storage.wal.test_wal_damage import COMMITS, kept_copies, last_transaction, verdict_of
from tests.stream_storage.wal.wal_samples import (
    FRAME_BYTES,
    WAL_NAME,
    change,
    frames_that_sqlite_reads,
    killed,
    push,
    restarted,
    stored_commits,
)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return killed(tmp_path_factory.mktemp("left"), COMMITS)


def test_every_cut_of_the_log_opens(left: Path, tmp_path: Path) -> None:
    size = (left / WAL_NAME).stat().st_size
    found = []
    for cut in sorted({*range(0, size, 40_009), *(size - n for n in (1, 24, 8_192, FRAME_BYTES, FRAME_BYTES + 1))}):
        directory = shutil.copytree(left, tmp_path / str(cut))
        (directory / WAL_NAME).write_bytes((left / WAL_NAME).read_bytes()[:cut])
        found.append(stored_commits(directory))
        assert kept_copies(directory) == []
        shutil.rmtree(directory)
    assert found == sorted(found)
    assert found[-1] == COMMITS - 1


@pytest.mark.parametrize("extended", [False, True])
def test_any_part_of_the_last_transaction_may_be_missing_after_a_power_cut(
    left: Path, tmp_path: Path, extended: bool
) -> None:
    """Frames, halves of frames or single sectors were not written: old bytes or zeros stand there."""
    transaction = last_transaction(left)
    content = (left / WAL_NAME).read_bytes()
    dice = random.Random(7)
    start = 32 + (transaction.start - 1) * FRAME_BYTES
    older = dice.randbytes(len(content) - start)
    for number in range(40):
        torn = bytearray(content)
        before = older if number % 2 else bytes(len(older))
        for sector in range(start, len(content), 512):
            if dice.random() < (0.5 if number % 4 < 2 else 0.05):
                end = min(sector + 512, len(content))
                torn[sector:end] = before[sector - start : end - start]
        directory = shutil.copytree(left, tmp_path / str(number))
        (directory / WAL_NAME).write_bytes(torn + bytes(20 * FRAME_BYTES if extended else 0))
        restarted(directory)
        assert stored_commits(directory) in (COMMITS - 1, COMMITS)
        shutil.rmtree(directory)


@pytest.mark.slow
def test_what_an_older_log_left_is_no_part_of_a_torn_transaction(tmp_path: Path) -> None:
    """Between the new sectors stand whole transactions of the log before, whose checksums fit one behind the other."""
    database = Database.open(tmp_path / "living")
    session = database.session()
    for commit in range(16):
        push(session, commit)
    assert session.checkpoint("PASSIVE").wal_pages > 40
    older = (tmp_path / "living" / WAL_NAME).read_bytes()
    push(session, 16)
    start = 32 + frames_that_sqlite_reads(shutil.copytree(tmp_path / "living", tmp_path / "before")) * FRAME_BYTES
    session.begin()
    session.log.append([Append(session.log.ensure_stream("large", 0, 1).stream_id, 0, 1, [bytes(8_000)] * 20)])
    session.commit()
    left = shutil.copytree(tmp_path / "living", tmp_path / "killed")
    session.close()
    database.close()
    content = (left / WAL_NAME).read_bytes()
    end = 32 + frames_that_sqlite_reads(shutil.copytree(left, tmp_path / "after")) * FRAME_BYTES
    assert len(older) == len(content) > end > start + 20 * FRAME_BYTES
    dice = random.Random(7)
    for number in range(40):
        torn = bytearray(content)
        for sector in range(start - start % 512, end, 512):
            if dice.random() < (0.9 if number % 2 else 0.3):
                torn[max(sector, start) : sector + 512] = older[max(sector, start) : sector + 512]
        directory = shutil.copytree(left, tmp_path / str(number))
        (directory / WAL_NAME).write_bytes(torn)
        restarted(directory)
        assert stored_commits(directory) == 17
        shutil.rmtree(directory)


def test_a_header_torn_when_the_log_began_anew_is_not_damage(tmp_path: Path) -> None:
    """A power cut while the log begins anew: all its pages were copied and synced before its header is overwritten."""
    old = bytearray()

    def checkpoint(session: SqliteSession, commit: int) -> None:
        if commit == 16:
            assert session.checkpoint("PASSIVE").wal_pages > 20
            old.extend((tmp_path / "living" / WAL_NAME).read_bytes())

    directory = killed(tmp_path, 17, meanwhile=checkpoint)
    new = (directory / WAL_NAME).read_bytes()[:32]
    assert new != old[:32]
    seen = set()
    for kept in range(13, 32):
        (directory / WAL_NAME).write_bytes(new[:kept] + old[kept:])
        seen.add(verdict_of(directory, rebooted=True))
    # As long as only equal bytes were written over it is the old header, of a log that is all in the file.
    assert seen == {WalState.TORN, WalState.SOUND}
    # The same header before frames that are in the log alone is damage.
    only = killed(tmp_path / "only", 16)
    change(only, 17)
    assert verdict_of(only, rebooted=True) is WalState.DAMAGED
