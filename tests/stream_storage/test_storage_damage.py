"""Damages a database: a page with damage raises an error that names the message, and verification finds it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_storage import checksum
from stream_storage.contract import Append
from stream_storage.errors import DatabaseCorrupt
from stream_storage.sqlite import verify as verification
from stream_storage.sqlite.database import FILE_NAME, PAGE_BYTES, Database
from stream_storage.sqlite.schema import APPLICATION_ID
from stream_storage.sqlite.verify import VerifyReport, verify
from tests.stream_storage.storage_samples import make_stream, reading, writing

ROWS = 40
ROW_BYTES = 30


@pytest.fixture(params=["joined", "by rows", "timed", "attributed", "blobs"])
def damaged(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """A database with streams 1 and 2 of 40 messages each, for each way in which pages are read."""
    if request.param == "by rows":
        monkeypatch.setattr("stream_storage.sqlite.log.can_join", lambda connection: False)
    if request.param == "blobs":
        monkeypatch.setattr("stream_storage.sqlite.page.BLOB_BYTES_MIN", 1)
    database = Database.open(tmp_path)
    for name in ("one", "two"):
        stream_id = make_stream(database, [], name)
        with writing(database) as session:
            for index in range(ROWS):
                keys = [b"key"] if request.param == "attributed" else None
                time_us = index if request.param == "timed" else 7
                session.log.append([Append(stream_id, index, time_us, [b"%030d" % index], keys)])
    yield database
    database.close()


def change(database: Database, statement: str) -> None:
    connection = sqlite3.connect(database.path)
    connection.execute(statement)
    connection.commit()
    connection.close()


def report_of(database: Database) -> VerifyReport:
    with reading(database) as session:
        return verify(session)


WHERE = "WHERE stream_id = 1 AND idx = 17"


@pytest.mark.parametrize(
    "statement",
    [
        f"UPDATE messages SET data = zeroblob({ROW_BYTES}) {WHERE}",
        f"UPDATE messages SET data = x'00' {WHERE}",
        f"UPDATE messages SET data = 5 {WHERE}",
        f"UPDATE messages SET checksum = checksum + 1 {WHERE}",
        f"UPDATE messages SET checksum = 'many' {WHERE}",
        f"UPDATE messages SET time_us = time_us + 1 {WHERE}",
        f"UPDATE messages SET time_us = time_us + 4294967296 {WHERE}",
        f"UPDATE messages SET time_us = 'noon' {WHERE}",
        f"UPDATE messages SET key = x'01' {WHERE}",
        f"UPDATE messages SET headers = x'' {WHERE}",
        f"UPDATE messages SET headers = 'text' {WHERE}",
    ],
)
def test_a_changed_message_is_named(damaged: Database, statement: str) -> None:
    change(damaged, statement)
    with reading(damaged) as session:
        for index, limit in ((0, 100), (17, 1), (10, 8), (0, 18)):
            with pytest.raises(DatabaseCorrupt, match=r"message 17 of stream 1 .*restore a backup") as caught:
                session.log.read(1, index, limit, 10_000)
            assert not caught.value.fatal
        assert len(session.log.read(1, 0, 17, 10_000)) == 17
        assert len(session.log.read(1, 18, 100, 10_000)) == 22
        assert len(session.log.read(2, 0, 100, 10_000)) == ROWS
    report = report_of(damaged)
    assert "message 17 of stream 1 is not what was written (its checksum differs)" in report.problems
    assert report.messages == 2 * ROWS


@pytest.mark.parametrize(
    ("statement", "index", "limit", "missing"),
    [
        (f"DELETE FROM messages {WHERE}", 0, 100, 17),
        (f"DELETE FROM messages {WHERE}", 17, 1, 17),
        (f"DELETE FROM messages {WHERE}", 17, 100, 17),
        ("DELETE FROM messages WHERE stream_id = 1 AND idx IN (0, 1)", 0, 100, 0),
        ("DELETE FROM messages WHERE stream_id = 1 AND idx = 39", 0, 100, 39),
        ("DELETE FROM messages WHERE stream_id = 1 AND idx >= 20", 30, 100, 30),
        ("DELETE FROM messages WHERE stream_id = 1", 0, 100, 0),
        ("UPDATE streams SET next_index = 50 WHERE id = 1", 45, 1, 45),
    ],
)
def test_a_missing_message_is_named(damaged: Database, statement: str, index: int, limit: int, missing: int) -> None:
    change(damaged, statement)
    with (
        reading(damaged) as session,
        pytest.raises(DatabaseCorrupt, match=f"message {missing} of stream 1 is missing"),
    ):
        session.log.read(1, index, limit, 10_000)
    report = report_of(damaged)
    assert any(problem.startswith("stream 1 (one/0)") and "missing" in problem for problem in report.problems)


def test_messages_beyond_the_bounds_of_their_stream_are_found(damaged: Database) -> None:
    change(damaged, "UPDATE streams SET first_index = 5, next_index = 35 WHERE id = 1")
    with reading(damaged) as session:
        for index in (0, 3, 30):
            with pytest.raises(DatabaseCorrupt, match=r"stream 1 has messages outside 5\.\.34"):
                session.log.read(1, index, 100, 10_000)
        assert len(session.log.read(1, 5, 20, 10_000)) == 20
    problems = " ".join(report_of(damaged).problems)
    assert "message 0 is stored where 5 belongs" in problems
    assert "stored up to 39, but its next index is 35" in problems


def test_messages_that_changed_places_are_found(damaged: Database) -> None:
    change(damaged, "UPDATE messages SET idx = CASE idx WHEN 3 THEN -4 WHEN 4 THEN 3 END WHERE idx IN (3, 4)")
    change(damaged, "UPDATE messages SET idx = 4 WHERE idx = -4")
    with (
        reading(damaged) as session,
        pytest.raises(DatabaseCorrupt, match="message 3 of stream 1 is not what"),
    ):
        session.log.read(1, 0, 100, 10_000)
    assert report_of(damaged).problem_count == 4


def test_messages_of_streams_that_changed_places_are_found(damaged: Database) -> None:
    change(damaged, "UPDATE messages SET stream_id = -stream_id")
    change(damaged, "UPDATE messages SET stream_id = 3 + stream_id")
    assert report_of(damaged).problem_count == 2 * ROWS


def test_verification_finds_what_pages_do_not_look_at(damaged: Database) -> None:
    change(damaged, "UPDATE streams SET size_bytes = size_bytes + 1 WHERE id = 1")
    change(damaged, "INSERT INTO messages (stream_id, idx, time_us, checksum, data) VALUES (9, 0, 0, 0, x'')")
    change(damaged, "UPDATE streams SET first_index = 9, next_index = 5 WHERE id = 2")
    change(damaged, "PRAGMA application_id = 5")
    change(damaged, "ALTER TABLE streams RENAME COLUMN attributes TO others")
    problems = report_of(damaged).problems
    for text in (
        "stream 1 (one/0) holds 1200 bytes, its row says 1201",
        "1 messages belong to stream 9, which does not exist",
        "stream 2 (two/0) goes from 9 to 5",
        f"the file has application_id 5, not {APPLICATION_ID}",
        "table streams has no column attributes",
    ):
        assert text in problems


def test_a_row_of_the_table_of_streams_that_cannot_be_read_is_a_problem(damaged: Database) -> None:
    change(damaged, "UPDATE streams SET next_index = x'ff' WHERE id = 1")
    change(damaged, "UPDATE streams SET name = CAST(x'ff' AS TEXT) WHERE id = 2")
    problems = report_of(damaged).problems
    assert [problem.split(":")[0] for problem in problems] == [
        "stream 1 cannot be read to its end",
        "stream 2 cannot be read to its end",
        "the row of streams with id 1 is not what was written (its seal differs)",
        "table streams cannot be read to its end",
    ]


def test_damage_to_the_file_is_a_problem(tmp_path: Path) -> None:
    database = Database.open(tmp_path)
    messages = [os.urandom(100) for _ in range(2_000)]
    make_stream(database, messages)
    database.close()
    path = tmp_path / FILE_NAME
    content = bytearray(path.read_bytes())
    # A page of messages: which tables the others have depends on the packages that are imported.
    begin = content.index(messages[1_000]) // PAGE_BYTES * PAGE_BYTES
    content[begin : begin + PAGE_BYTES] = bytes(PAGE_BYTES)
    path.write_bytes(content)
    database = Database.open(tmp_path)
    report = report_of(database)
    database.close()
    assert not report.sound
    assert any(problem.startswith("the file") for problem in report.problems)


def test_a_report_of_much_damage_is_bounded(damaged: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "PROBLEMS_MAX", 7)
    change(damaged, "UPDATE messages SET data = x''")
    report = report_of(damaged)
    assert len(report.problems) == 7
    assert report.problem_count >= 2 * ROWS


def test_verification_tells_its_progress_and_sums_up(damaged: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "PROGRESS_MESSAGES", 25)
    told: list[tuple[int, int]] = []
    with reading(damaged) as session:
        report = verify(session, lambda streams, messages: told.append((streams, messages)))
        assert not session.in_transaction
    assert told == [(0, 25), (1, 40), (1, 50), (1, 75), (2, 80)]
    assert report.sound
    assert (report.streams, report.messages, report.size_bytes) == (2, 2 * ROWS, 2 * ROWS * ROW_BYTES)


def test_the_checksum_is_as_its_module_describes_it() -> None:
    seed = (7 * 2654435761 + 1_700_000_000_000_000) % 4294967291 + 12
    expected = crc32(b"\x03\0\0\0key" + b"\xff\xff\xff\xff" + b"data", seed % 2**32)
    base = checksum.seed_base(7, 1_700_000_000_000_000)
    assert checksum.checksum_full(base, 12, b"data", b"key", None) == expected


@given(
    st.integers(1, 2**40),
    st.integers(0, 2**40),
    st.lists(st.tuples(st.binary(max_size=20), st.integers(0, 2**52))),
)
def test_the_ways_to_compute_a_checksum_agree(stream_id: int, first: int, rows: list[tuple[bytes, int]]) -> None:
    data, times = [row[0] for row in rows], [row[1] for row in rows]
    bases = [checksum.seed_base(stream_id, time_us) for time_us in times]
    single = [checksum.checksum_plain(base, first + n, data[n]) for n, base in enumerate(bases)]
    assert single == checksum.checksums_plain_timed(stream_id, first, times, data)
    assert single == [checksum.checksum_full(base, first + n, data[n], None, None) for n, base in enumerate(bases)]
    if rows:
        at_once = checksum.checksums_plain(bases[0], first, data)
        assert at_once == checksum.checksums_plain_timed(stream_id, first, times[:1] * len(data), data)


@given(
    st.integers(1, 2**31),
    st.integers(0, 2**52),
    st.integers(0, 2**31),
    st.binary(max_size=30),
    st.integers(0, 51),
)
def test_one_wrong_bit_anywhere_changes_the_checksum(
    stream_id: int, time_us: int, index: int, data: bytes, bit: int
) -> None:
    right = checksum.checksum_plain(checksum.seed_base(stream_id, time_us), index, data)
    flipped = 1 << bit
    assert checksum.checksum_plain(checksum.seed_base(stream_id, time_us ^ flipped), index, data) != right
    small = 1 << bit % 31
    assert checksum.checksum_plain(checksum.seed_base(stream_id ^ small, time_us), index, data) != right
    assert checksum.checksum_plain(checksum.seed_base(stream_id, time_us), index ^ small, data) != right
