"""Goal: every value that decides what a consumer gets is covered by a checksum that `verify` checks.

Method: every column of every table of the schema is changed, one at a time, by SQL; and bytes of the file. The list of
tables comes from the schema, so that a new table without a seal fails here.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Table

import block_manager.commit_store  # noqa: F401 -- tables register themselves
from block_node.backfill.state import load_target, save_target
from block_node.persist.chain_log import ChainLog
from block_node.persist.schema import mark_damaged
from index_service.accesses import Access, IndexRequests
from index_service.lease_machine import StoredLease
from index_service.lease_storage import WriteLeases, load_leases, raise_fences
from index_service.storage import SetPosition
from stream_node.node.databases import StoredPlace, write_stored
from stream_service.extensions import Retention
from stream_service.mirror_rows import FollowerRow, MirrorRow, note_address, note_follower, write_mirror
from stream_service.publisher_rows import MARK, PublisherRow, write_publishers
from stream_service.role_machine import STORED
from stream_service.stored import note_fall, set_retention
from stream_storage.contract import Append, Session
from stream_storage.errors import DatabaseCorrupt
from stream_storage.history import begin_entry
from stream_storage.schema import metadata
from stream_storage.seal import FIRST_FACTOR, NEXT_FACTOR, SEALED, SIZE_FACTOR, seal_of, stream_seal
from stream_storage.sqlite.database import FILE_NAME, Database
from stream_storage.sqlite.rows import connection_of
from stream_storage.sqlite.verify import verify
from tests.block_node.persist.block_samples import block_of
from tests.stream_storage.storage_samples import reading, writing

EXEMPT = {
    "messages": "each has a checksum of its own, which every read checks",
    "block_staged": "parts of blocks that are not verified yet; nothing in it outlives the process",
    "commit_blocks": "each row has a checksum of its own, which every read checks; a library's, not served by the node",
}
NOT_A_SEAL = {("streams", "id"): "checked through the messages, whose checksums begin with it"}
NOW_US = 1_700_000_000_000_000
MARKED = PublisherRow("", None, 3)


def nothing(done: object) -> None:
    """The `on_done` of operations that nobody waits for."""


def fill(session: Session) -> None:
    """Write rows into every table with the operations of a node, and each row more than once where that is possible."""
    session.begin()
    first = session.log.ensure_stream("größe", 0, NOW_US)
    second = session.log.ensure_stream("größe", 1, NOW_US)
    session.log.ensure_stream("empty", 0, NOW_US)
    for at in (0, 2):
        session.log.append(
            [Append(each.stream_id, at, NOW_US, [b"one", b"three"]) for each in (first, second)],
        )
    set_retention(session, second.stream_id, Retention(60, None, 10**6))
    session.log.append([Append(second.stream_id, 4, NOW_US, [b"five"])])
    session.log.truncate_before(first.stream_id, 3)
    note_fall(session, second.stream_id, 4)
    for index in (2, 1, 3):
        IndexRequests([Access(("mailer", "größe", 0), index), Access(("mailer", "größe", 1), None)], 5, nothing).apply(
            session
        )
    SetPosition(("other", "größe", 0), 1, 6, [], 7, nothing).apply(session)
    SetPosition(("other", "größe", 0), 0, 6, [], 7, nothing).apply(session)
    for fence in (5, 6):
        WriteLeases("mailer", "größe", [StoredLease(0, fence, "me"), StoredLease(1, 4, None)], 9, nothing).apply(
            session
        )
    raise_fences(session, 100)
    for entry_id in (7, 8):
        begin_entry(session, second.stream_id, entry_id)
    for role in sorted(STORED):
        write_mirror(session, MirrorRow(second.stream_id, role, "there:1", "größe", True, 9, NOW_US, "aside", 2))
    for address in ("there:1", "there:2"):
        note_follower(session, FollowerRow(second.stream_id, address, "größe", NOW_US))
        note_address(session, second.stream_id, address)
    for sequence in (3, None):
        write_publishers(session, second.stream_id, {b"p": PublisherRow("token:a", sequence, 2), MARK: MARKED}, NOW_US)
    load_target(session, "blocks")
    for newest in (7, 9):
        save_target(session, "blocks", newest)
    log = ChainLog("blocks")
    log.open(session)
    for number in range(4):
        log.store(session, block_of(number), NOW_US + number)
    log.evict(session, 1)
    mark_damaged(session, log.chain, 2)
    write_stored(session, StoredPlace(1, 3))
    session.commit()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("filled")
    database = Database.open(directory)
    session = database.session()
    fill(session)
    session.close()
    database.close()
    return directory


def problems_of(directory: Path) -> tuple[str, ...]:
    session = Database.open(directory, read_only=True).read_session()
    try:
        return verify(session).problems
    finally:
        session.close()


def test_every_table_is_sealed_or_says_why_not() -> None:
    sealed = {table.name for table in metadata.sorted_tables if "seal" in table.columns}
    assert sealed == set(SEALED)
    assert {table.name for table in metadata.sorted_tables} - sealed == EXEMPT.keys()
    for table in metadata.sorted_tables:
        if table.name in sealed:
            assert list(table.columns)[-1].name == "seal"
        elif table.name != "block_staged":
            assert "checksum" in table.columns


def test_what_operations_write_is_sealed(filled: Path) -> None:
    assert problems_of(filled) == ()
    with closing(sqlite3.connect(filled / FILE_NAME)) as connection:
        for name in SEALED:
            assert connection.execute(f"SELECT count(*) FROM {name} WHERE seal <> 0").fetchone()[0] > 0, name


def columns() -> list[tuple[Table, str]]:
    return [
        (table, column.name) for table in metadata.sorted_tables if table.name in SEALED for column in table.columns
    ]


def other_values(connection: sqlite3.Connection, table: Table, column: str) -> Iterator[object]:
    """Values that differ from the stored one a little, much, or in their type."""
    (value,) = connection.execute(f"SELECT {column} FROM {table.name} LIMIT 1 OFFSET 0").fetchone()
    if isinstance(value, int):
        yield from (value + 1, value ^ 1 << 31, value ^ 1 << 52, str(value) + "x")
    elif isinstance(value, bytes):
        yield from (value[:-1] + bytes([(value or b"\0")[-1] ^ 1]), value + b"\0", None)
    elif isinstance(value, str):
        yield from (value[:-1] + chr(ord((value or "a")[-1]) ^ 1), value + " ", value.encode() + b"!")
    else:
        yield from (b"", b"\x01", "", 0)


@pytest.mark.parametrize(("table", "column"), columns(), ids=lambda value: getattr(value, "name", value))
def test_a_changed_value_is_seen(filled: Path, tmp_path: Path, table: Table, column: str) -> None:
    directory = shutil.copytree(filled, tmp_path / "data")
    keys = [each.name for each in table.primary_key]
    with closing(sqlite3.connect(directory / FILE_NAME, isolation_level=None)) as connection:
        row = connection.execute(f"SELECT {', '.join(keys)}, {column} FROM {table.name} LIMIT 1").fetchone()
        where = " AND ".join(f"{key} = ?" for key in keys)
        seen = 0
        for value in other_values(connection, table, column):
            connection.execute("BEGIN")
            try:
                connection.execute(f"UPDATE {table.name} SET {column} = ? WHERE {where}", (value, *row[:-1]))
            except sqlite3.IntegrityError:
                connection.execute("ROLLBACK")
                continue
            connection.execute("COMMIT")
            problems = problems_of(directory)
            if (table.name, column) in NOT_A_SEAL:
                assert problems, value
            else:
                assert any(table.name in problem and "seal" in problem for problem in problems), (value, problems)
            changed = {key: value if key == column else was for key, was in zip(keys, row[:-1], strict=True)}
            connection.execute(f"UPDATE {table.name} SET {column} = ? WHERE {where}", (row[-1], *changed.values()))
            assert problems_of(directory) == ()
            seen += 1
        assert seen >= 2


def test_a_changed_byte_of_the_file_is_seen(copy: Path) -> None:
    """Goal: the same, without SQL. Method: bits of what rows hold, found in the file by their texts; the file is
    vacuumed before, so that nothing in it is left over."""
    with closing(sqlite3.connect(copy / FILE_NAME, isolation_level=None)) as connection:
        connection.execute("VACUUM")
    assert problems_of(copy) == ()
    content = (copy / FILE_NAME).read_bytes()
    texts = (b"mailer", b"other", b"blocks")
    schema_end = content.rfind(b"CREATE ") + 1_000
    rows = [at for at in range(schema_end, len(content)) if content.startswith(texts, at)]
    assert len(rows) >= 8
    for at in rows:
        for offset in (at, at + 2, at + 4):
            changed = bytearray(content)
            changed[offset] ^= 4
            (copy / FILE_NAME).write_bytes(changed)
            assert problems_of(copy), offset


def change(directory: Path, statement: str) -> None:
    with closing(sqlite3.connect(directory / FILE_NAME, isolation_level=None)) as connection:
        assert connection.execute(statement).rowcount >= 1


@pytest.fixture
def copy(filled: Path, tmp_path: Path) -> Path:
    return shutil.copytree(filled, tmp_path / "data")


@pytest.mark.parametrize("column", ["first_index", "next_index", "size_bytes", "partition"])
def test_a_node_does_not_start_on_a_stream_whose_row_is_damaged(copy: Path, column: str) -> None:
    """With a wrong end, an index would be given twice."""
    change(copy, f"UPDATE streams SET {column} = {column} + 5 WHERE name = 'größe' AND partition = 1")
    with pytest.raises(DatabaseCorrupt, match="the row of streams with id"):
        Database.open(copy)


def test_a_damaged_position_is_not_answered_and_can_be_set_anew(copy: Path) -> None:
    key = ("mailer", "größe", 0)
    change(copy, "UPDATE saved_indexes SET idx = 1 WHERE client_id = 'mailer' AND partition = 0")
    database = Database.open(copy)
    with writing(database) as session, pytest.raises(DatabaseCorrupt, match="index set"):
        IndexRequests([Access(key, None)], 8, nothing).apply(session)
    with writing(database) as session:
        SetPosition(key, 3, 8, [], 7, nothing).apply(session)
        asked = IndexRequests([Access(key, None)], 8, nothing)
        asked.apply(session)
        assert asked.indexes == [3]
    database.close()
    assert problems_of(copy) == ()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE lease_fences SET fence = fence - 1",
        "UPDATE lease_fences SET holder = 'you' WHERE holder = 'me'",
        "UPDATE lease_floor SET fence = 1",
    ],
)
def test_a_damaged_fence_is_not_used(copy: Path, statement: str) -> None:
    database = Database.open(copy)
    change(copy, statement)
    with reading(database) as session, pytest.raises(DatabaseCorrupt, match="what was written"):
        load_leases(session, "mailer", "größe")
    database.close()
    with pytest.raises(DatabaseCorrupt, match="what was written"):
        Database.open(copy)


def test_a_save_does_not_pass_a_damaged_fence(copy: Path) -> None:
    database = Database.open(copy)
    change(copy, "UPDATE lease_fences SET fence = 3")
    with writing(database) as session, pytest.raises(DatabaseCorrupt):
        IndexRequests([Access(("mailer", "größe", 0), 9, fence=3)], 8, nothing).apply(session)
    database.close()


def test_a_damaged_retention_is_not_written_over(copy: Path) -> None:
    """Sealing the row anew would hide the damage."""
    database = Database.open(copy)
    with writing(database) as session:
        record = session.log.find_stream("größe", 1)
        assert record is not None
        connection_of(session).execute(
            "UPDATE streams SET size_bytes = size_bytes + 1 WHERE id = ?", (record.stream_id,)
        )
        with pytest.raises(DatabaseCorrupt):
            set_retention(session, record.stream_id, None)
    database.close()


def test_damage_stays_visible_while_the_stream_goes_on(copy: Path) -> None:
    database = Database.open(copy)
    with writing(database) as session:
        record = session.log.find_stream("größe", 1)
        assert record is not None
        connection_of(session).execute(
            "UPDATE streams SET size_bytes = size_bytes + 1 WHERE id = ?", (record.stream_id,)
        )
        session.log.append([Append(record.stream_id, record.next_index, NOW_US, [b"six"])])
        session.log.truncate_before(record.stream_id, 3)
    database.close()
    assert any("row of streams" in problem for problem in problems_of(copy))


numbers = st.integers(0, 2**62)


@given(numbers, numbers, numbers, st.integers(0, 2), st.integers(0, 62))
def test_one_wrong_bit_of_a_number_changes_the_seal(first: int, end: int, size: int, which: int, bit: int) -> None:
    values = [first, end, size]
    right = stream_seal("name", 1, 2, None, *values)
    values[which] ^= 1 << bit
    assert stream_seal("name", 1, 2, None, *values) != right


def test_the_seals_are_as_their_module_describes_them() -> None:
    row = crc32(rb"('table', 'gr\xf6\xdfe', 5, None, b'\x00\xff')")
    assert seal_of("table", ("größe", 5, None, b"\x00\xff")) == row
    fixed = crc32(b"('streams', 'n', 0, 3, None)")
    assert stream_seal("n", 0, 3, None, 4, 5, 6) == (fixed + 4 * FIRST_FACTOR + 5 * NEXT_FACTOR + 6 * SIZE_FACTOR) % (
        2**61 - 1
    )
