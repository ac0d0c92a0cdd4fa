"""Goal: the reader of the write-ahead log reads what SQLite reads, and judges what SQLite does not tell.

Method: logs that SQLite wrote, cut and changed anywhere; SQLite's own recovery is the second opinion.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_storage.sqlite.database import FILE_NAME
from stream_storage.sqlite.wal.check import examined, rewrite
from stream_storage.sqlite.wal.scan_machine import (
    SPILL_FRAMES_MIN,
    Damage,
    How,
    Read,
    Scan,
    Sums,
    WalReader,
    WalState,
    checksum,
    correct_word,
    judge,
    scan,
)
from tests.stream_storage.wal.wal_samples import FRAME_BYTES, WAL_NAME, frames_that_sqlite_reads, killed
from tests.support.examples import examples


def plain_checksum(data: bytes, seed: Sums, big_endian: bool) -> Sums:
    """The checksum as SQLite's documentation describes it, one word at a time."""
    s0, s1 = seed
    for x0, x1 in struct.iter_unpack(">II" if big_endian else "<II", data):
        s0 = (s0 + x0 + s1) % 2**32
        s1 = (s1 + x1 + s0) % 2**32
    return s0, s1


seeds = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))


@given(st.integers(0, 2_100), seeds, st.booleans(), st.randoms(use_true_random=False))
def test_the_checksum_is_that_of_the_format(pairs: int, seed: Sums, big_endian: bool, random: object) -> None:
    data = random.randbytes(8 * pairs)  # type: ignore[attr-defined]
    assert checksum(data, seed, big_endian) == plain_checksum(data, seed, big_endian)


@given(seeds, st.booleans(), st.integers(0, 1025 * 2 - 1), st.integers(1, 2**32 - 1))
def test_one_wrong_word_anywhere_is_put_right(seed: Sums, big_endian: bool, place: int, change: int) -> None:
    right = os.urandom(8 + 8192)
    wrong = bytearray(right)
    (word,) = struct.unpack_from("<I", right, 4 * place)
    struct.pack_into("<I", wrong, 4 * place, word ^ change)
    found = checksum(bytes(wrong), seed, big_endian)
    possible = correct_word(bytes(wrong), found, plain_checksum(right, seed, big_endian), big_endian)
    assert right in possible
    low = struct.unpack(">I" if big_endian else "<I", wrong[4 * place : 4 * place + 4])[0]
    low ^= struct.unpack(">I" if big_endian else "<I", right[4 * place : 4 * place + 4])[0]
    assert len(possible) == 1 or low % 2**20 == 0, "only an error in the upper bits leaves a doubt"


def test_two_wrong_words_are_not() -> None:
    right = os.urandom(8200)
    wrong = bytearray(right)
    wrong[100] ^= 1
    wrong[5000] ^= 1
    assert (
        correct_word(bytes(wrong), checksum(bytes(wrong), (0, 0), False), checksum(right, (0, 0), False), False) == []
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty commits in a log of which the first ones are in the file already, and which has begun anew once: frames
    of before stand behind its end."""

    def checkpoint(session: object, commit: int) -> None:
        if commit in (20, 30):
            assert not session.checkpoint("PASSIVE").blocked  # type: ignore[attr-defined]

    return killed(tmp_path_factory.mktemp("written"), 40, meanwhile=checkpoint)


def scanned(directory: Path) -> tuple[WalReader, Scan]:
    with examined(directory / FILE_NAME, rebooted=True) as log:
        assert log is not None
        return log.wal, log.found


def test_a_log_as_it_is(written: Path) -> None:
    wal, found = scanned(written)
    assert (found.bad, found.commits, found.damaged, found.header_valid) == (0, (), (), True)
    assert 0 < found.good < found.frames, "frames of before the log began anew stand behind"
    assert judge(found, rebooted=True, in_file=False) is WalState.SOUND
    assert wal.page_bytes == 8192


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_it_reads_as_far_as_sqlite(written: Path, data: st.DataObject) -> None:
    """Cuts and changes anywhere in the log, one or several."""
    content = bytearray((written / WAL_NAME).read_bytes())
    places = st.one_of(
        st.integers(0, len(content) - 1),
        st.integers(0, len(content) // FRAME_BYTES - 1).flatmap(
            lambda frame: st.integers(32 + frame * FRAME_BYTES, 56 + frame * FRAME_BYTES)
        ),
        st.integers(0, 31),
    )
    for place in data.draw(st.lists(places, max_size=3)):
        content[place] ^= data.draw(st.integers(1, 255))
    del content[data.draw(st.one_of(st.just(len(content)), places)) :]
    with tempfile.TemporaryDirectory() as folder:
        directory = shutil.copytree(written, Path(folder) / "copy")
        (directory / WAL_NAME).write_bytes(content)
        if len(content) > 32:
            assert scanned(directory)[1].good == _sqlite_frames(directory)


def _sqlite_frames(directory: Path) -> int:
    """SQLite refuses a version of the format that it does not know."""
    try:
        return frames_that_sqlite_reads(directory)
    except sqlite3.DatabaseError:
        return 0


@pytest.mark.parametrize("big_endian", [False, True])
def test_a_log_written_anew_reads_the_same_in_either_byte_order(
    written: Path, tmp_path: Path, big_endian: bool
) -> None:
    _, found = scanned(written)
    seen = []
    for name in ("as it was", "anew"):
        directory = shutil.copytree(written, tmp_path / name)
        if name == "anew":
            with (directory / WAL_NAME).open("wb") as file:
                # The reader keeps the order in which it found the words; what it writes it can write in the other.
                anew = WalReader(_read_of(written), (written / WAL_NAME).stat().st_size, 8192)
                anew.big_endian = big_endian
                file.writelines(rewrite(anew, found.good, {}))
            assert frames_that_sqlite_reads(directory) == found.good
            assert scanned(shutil.copytree(written, tmp_path / "again"))[1].good == found.good
        with closing(sqlite3.connect(directory / FILE_NAME)) as connection:
            seen.append(connection.execute("SELECT * FROM messages ORDER BY stream_id, idx").fetchall())
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert seen[0] == seen[1]
    assert len(seen[0]) == 240


def _read_of(directory: Path) -> Read:
    content = (directory / WAL_NAME).read_bytes()
    return lambda offset, size: content[offset : offset + size]


def bad(frame: int, how: How, commit: int = 0) -> Damage:
    return Damage(frame, how, 7, commit, None if how in (How.LOST, How.DOUBT) else b"")


@pytest.mark.parametrize(
    ("commits", "end", "damaged", "rebooted", "verdict"),
    [
        # Nothing is committed behind: an end as every kill leaves it.
        ((), 0, (), False, WalState.TORN),
        # The last transaction, all there but for one frame: a power cut can have taken it, a kill cannot.
        ((14,), 14, (bad(11, How.LOST),), True, WalState.CUT),
        ((14,), 14, (bad(11, How.LOST),), False, WalState.DAMAGED),
        ((14,), 14, (bad(11, How.BYTE),), True, WalState.COMPLETED),
        ((14,), 14, (bad(11, How.BYTE),), False, WalState.DAMAGED),
        # A word may fit by accident, and a page is not written twice in a transaction.
        ((14,), 14, (bad(11, How.WORD),), True, WalState.CUT),
        ((14,), 14, (bad(11, How.LATER),), True, WalState.CUT),
        # Its last frame: a kill can have left the head of it without the page.
        ((11,), 11, (bad(11, How.BYTE, 9),), False, WalState.COMPLETED),
        ((11,), 11, (bad(11, How.CHECKSUM, 9),), True, WalState.COMPLETED),
        ((11,), 11, (bad(11, How.DOUBT, 9),), False, WalState.DAMAGED),
        ((11,), 11, (bad(11, How.DOUBT, 9),), True, WalState.CUT),
        # The next transaction began after this one was synced.
        ((14, 18), 18, (bad(11, How.LOST),), True, WalState.DAMAGED),
        ((14, 18), 18, (bad(11, How.BYTE),), True, WalState.DAMAGED),
        # SQLite writes over pages of a transaction that outgrew its cache.
        ((10 + SPILL_FRAMES_MIN,), 10 + SPILL_FRAMES_MIN, (bad(11, How.LOST),), False, WalState.CUT),
        ((10 + SPILL_FRAMES_MIN,), 10 + SPILL_FRAMES_MIN, (bad(11, How.BYTE),), True, WalState.CUT),
    ],
)
def test_what_stands_behind_a_bad_frame_is_judged(
    commits: tuple[int, ...], end: int, damaged: tuple[Damage, ...], rebooted: bool, verdict: WalState
) -> None:
    found = Scan(True, 20 + end, 10, 11, commits, end, damaged)
    assert judge(found, rebooted=rebooted, in_file=False) is verdict


@pytest.mark.parametrize(("in_file", "verdict"), [(True, WalState.TORN), (False, WalState.DAMAGED)])
def test_a_damaged_header_before_commits_is_judged_by_the_file(in_file: bool, verdict: WalState) -> None:
    found = Scan(False, 20, 0, 1, (4,), 4, ())
    assert judge(found, rebooted=True, in_file=in_file) is verdict


def test_an_empty_or_short_log_is_no_log(written: Path, tmp_path: Path) -> None:
    for size in (0, 1, 31, 32, 33, 32 + FRAME_BYTES - 1):
        content = (written / WAL_NAME).read_bytes()[:size]
        wal = WalReader(lambda offset, n, content=content: content[offset : offset + n], size, 8192)  # type: ignore[misc]
        found = scan(wal, lambda number: None)
        assert (found.frames, found.good, found.commits) == (0, 0, ())
