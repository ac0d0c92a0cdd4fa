"""Goal: with one flipped bit anywhere, a database is refused at the start, or everything is found as before.

Method: a small database whose tables have several pages each; single bits of their pages are flipped; what is looked up
by keys and by indexes is compared, in SQL of the test's own, with what was there. Nothing may run for ever.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest

from block_node.persist.chain_log import ChainLog
from index_service.accesses import Access, IndexRequests
from index_service.lease_machine import StoredLease
from index_service.lease_storage import WriteLeases
from stream_node.care.repair import RepairFailed, plan_repair
from stream_node.node.databases import StoredPlace, write_stored
from stream_storage.contract import Append
from stream_storage.errors import DatabaseCorrupt, StorageError
from stream_storage.seal import seal_of
from stream_storage.sqlite import database
from stream_storage.sqlite.backup import count_stored
from stream_storage.sqlite.database import FILE_NAME, NEEDED, PAGE_BYTES, Database, check_tables
from stream_storage.sqlite.session import SqliteSession
from stream_storage.sqlite.verify import verify
from tests.block_node.persist.block_samples import block_of
from tests.stream_storage.test_seals import nothing
from tests.stream_storage.wal.wal_samples import FRAME_BYTES, change, killed

NOW_US = 1_800_000_000_000_000
STREAMS = 120
KEYS = {
    "streams": ("name", "partition"),
    "saved_indexes": ("client_id", "stream_name", "partition"),
    "lease_fences": ("client_id", "stream_name", "partition"),
    "block_index": ("chain", "number"),
}
FLIPS = 30
"""For each table and for each index. The bits of all tables are too many; 2,000 were tried when this was written."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("filled") / "data"
    database = Database.open(directory)
    session = database.session()
    session.begin()
    streams = [session.log.ensure_stream(f"{number * 7919 % 1000}{'x' * 80}", 0, NOW_US) for number in range(STREAMS)]
    session.log.append([Append(each.stream_id, 0, NOW_US, [b"a", b"b"]) for each in streams])
    positions = [Access((f"{number * 7919 % 1000}{'y' * 80}", "orders", 0), number) for number in range(STREAMS)]
    IndexRequests(positions, 5, nothing).apply(session)
    for number in range(STREAMS):
        leases = [StoredLease(0, number + 1, "me")]
        WriteLeases(f"{number * 7919 % 1000}{'z' * 80}", "orders", leases, 9, nothing).apply(session)
    log = ChainLog("blocks")
    log.open(session)
    for number in range(STREAMS):
        log.store(session, block_of(number), NOW_US + number)
    write_stored(session, StoredPlace(0, 1))
    session.commit()
    session.close()
    database.close()
    return directory


def rows_of(connection: sqlite3.Connection, table: str) -> dict[tuple[object, ...], tuple[object, ...]]:
    names = ", ".join(KEYS[table])
    count = len(KEYS[table])
    rows = connection.execute(f"SELECT {names}, * FROM {table} NOT INDEXED").fetchall()
    return {row[:count]: row[count:] for row in rows}


def flipped(filled: Path, target: Path, table: str) -> list[Callable[[], Path]]:
    """Functions that make copies of the database, each with one flipped bit in the pages of a table or of its indexes.
    Half of the bits are in what leads to the rows."""
    with closing(sqlite3.connect(filled / FILE_NAME)) as connection:
        parts = [table, *(row[1] for row in connection.execute(f"PRAGMA index_list('{table}')"))]
        found = {
            part: connection.execute("SELECT pageno FROM dbstat WHERE name = ?", (part,)).fetchall() for part in parts
        }
    content = (filled / FILE_NAME).read_bytes()
    chosen = random.Random(7)

    def copy(offset: int, bit: int) -> Path:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        damaged = bytearray(content)
        damaged[offset] ^= 1 << bit
        (target / FILE_NAME).write_bytes(damaged)
        return target

    made: list[Callable[[], Path]] = []
    for pages in filter(None, found.values()):
        for number in range(FLIPS):
            page = (chosen.choice(pages)[0] - 1) * PAGE_BYTES
            cells = int.from_bytes(content[page + 3 : page + 5], "big")
            offset = page + chosen.randrange(12 + 2 * cells if number % 2 else PAGE_BYTES)
            made.append(partial(copy, offset, chosen.randrange(8)))
    return made


@pytest.mark.parametrize("table", list(KEYS))
def test_a_flipped_bit_is_refused_at_the_start_or_does_no_harm(filled: Path, tmp_path: Path, table: str) -> None:
    with closing(sqlite3.connect(filled / FILE_NAME)) as connection:
        expected = rows_of(connection, table)
    assert len(expected) >= STREAMS
    keys = " AND ".join(f"{name} = ?" for name in KEYS[table])
    refused = 0
    for damaged in flipped(filled, tmp_path / "data", table):
        try:
            Database.open(damaged()).close()
        except DatabaseCorrupt:
            refused += 1
            continue
        with closing(sqlite3.connect(tmp_path / "data" / FILE_NAME)) as connection:
            found = rows_of(connection, table)
            for key, row in expected.items():
                (looked_up,) = connection.execute(f"SELECT * FROM {table} WHERE {keys}", key).fetchall()
                # Only a value of a row that is found may have changed, which its seal shows at its use.
                assert looked_up == found[key]
                assert looked_up == row or (table not in NEEDED and seal_of(table, looked_up[:-1]) != looked_up[-1])
    assert refused


@pytest.mark.parametrize("table", ["streams", "messages"])
def test_nothing_that_reads_a_damaged_table_goes_on_for_ever(filled: Path, tmp_path: Path, table: str) -> None:
    """Before, `verify` found the same stream again and again on one of a hundred such bits."""

    def progress(streams: int, messages: int) -> None:
        assert streams <= 2 * STREAMS, "it does not end"

    for damaged in flipped(filled, tmp_path / "data", table):
        directory = damaged()
        try:
            session = Database.open(directory, read_only=True).read_session()
        except StorageError:
            continue
        with closing(session):
            with suppress(StorageError):
                verify(session, progress)
            with suppress(StorageError):
                count_stored(session)


def test_a_repair_looks_for_no_messages_that_never_were(tmp_path: Path) -> None:
    """One row of a stream is damaged, and says that there are 2**60 messages; and the log is damaged, too."""

    def damage(session: SqliteSession, commit: int) -> None:
        session.begin()
        session.log.ensure_stream("three", 0, NOW_US)
        session.commit()
        session.connection.execute("UPDATE streams SET next_index = 1 << 60 WHERE name = 'three'")

    directory = killed(tmp_path, 6, meanwhile=damage)
    change(directory, 32 + 3 * FRAME_BYTES + 24 + 100)
    with pytest.raises(RepairFailed, match=r"the row of streams with id .* is not what was written"):
        plan_repair(directory)


def test_the_check_at_the_start_is_bounded(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "PROGRESS_STEPS", 10)
    directory = shutil.copytree(filled, tmp_path / "data")
    with closing(sqlite3.connect(directory / FILE_NAME)) as connection:
        check_tables(connection, 0.0)
        assert connection.execute("SELECT count(*) FROM streams").fetchone() == (STREAMS + 1,)
