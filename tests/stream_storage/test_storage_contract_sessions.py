"""The contract of `stream_storage.contract.Session`, on every implementation."""

from __future__ import annotations

import pytest
from sqlalchemy import String, bindparam, column, func, literal, select, text
from sqlalchemy.types import NullType

from index_service.lease_storage import (
    WRITE_FENCE,
    fence_row,
    forget_leases,
    lease_fences,
    load_leases,
    raise_floor,
)
from stream_storage.contract import Append
from stream_storage.errors import StorageReadOnly
from stream_storage.seal import seal_of
from stream_storage.statement import compiled, greatest, upsert
from tests.stream_storage.storage_samples import Source, make_stream, reading, stored_data, writing


def test_what_is_not_committed_is_seen_by_its_own_session_only(source: Source) -> None:
    stream_id = make_stream(source, [b"a"])
    writer, reader = source.session(), source.read_session()
    writer.begin()
    writer.log.append([Append(stream_id, 1, 5, [b"b"])])
    writer.log.ensure_stream("new", 0, 1)
    assert len(writer.log.read(stream_id, 0, 10, 100)) == 2
    assert len(reader.log.read(stream_id, 0, 10, 100)) == 1
    assert reader.log.get_stream(stream_id).next_index == 1
    assert reader.log.find_stream("new", 0) is None
    writer.commit()
    assert len(reader.log.read(stream_id, 0, 10, 100)) == 2
    writer.close()
    reader.close()


def test_one_statement_for_many_rows_is_as_one_after_the_other(source: Source) -> None:
    """Goal: an upsert that changes a row twice, and a search for the same row twice. Method: keys with zero bytes and
    letters of two bytes, values that are absent; more rows than one request has."""
    names = ["", "a\0b", "é"]
    rows = [
        (names[number % 3], "s", number % 5, number, f"holder {number}" if number % 2 else None)
        for number in range(6_000)
    ]
    last = {row[:3]: row[3:] for row in rows}
    with writing(source) as session:
        session.execute_many(_SET_LEASE, [(*row, 9, seal_of("lease_fences", (*row, 9))) for row in rows])
    with reading(source) as session:
        keys = [*last, ("nobody", "s", 0), *last]
        assert [None if row is None else tuple(row) for row in session.find_many(_GET_LEASE, keys)] == [
            last.get(key) for key in keys
        ]
        assert session.find_many(_GET_LEASE, []) == []


def test_deleted_fences_leave_the_floor_above_them(source: Source) -> None:
    """A row with a holder stays, and so does one whose fence is above the highest that may become the floor."""
    rows = [(0, 3, None), (1, 7, "holder"), (2, 5, None), (3, 1_000, None)]
    with writing(source) as session:
        session.execute_many(WRITE_FENCE, [fence_row(("c", "s", at), fence, who, 9) for at, fence, who in rows])
        session.execute_many(WRITE_FENCE, [fence_row(("c", "t", 0), 6, None, 9)])
        forget_leases(session, "c", "s", 100)
        raise_floor(session, 4)
    with reading(source) as session:
        kept = load_leases(session, "c", "s")
        assert [(row.partition, row.fence) for row in kept.rows] == [(1, 7), (3, 1_000)]
        assert kept.floor == 5
        assert len(load_leases(session, "c", "t").rows) == 1


_insert = upsert(lease_fences)
_SET_LEASE = compiled(
    _insert.on_conflict_do_update(
        index_elements=["client_id", "stream_name", "partition"],
        set_={column: _insert.excluded[column] for column in ("fence", "holder", "seal")},
    ),
    *("client_id", "stream_name", "partition", "fence", "holder", "ttl_ms", "seal"),
)
_GET_LEASE = compiled(
    select(lease_fences.c.fence, lease_fences.c.holder).where(
        lease_fences.c.client_id == bindparam("client_id"),
        lease_fences.c.stream_name == bindparam("stream_name"),
        lease_fences.c.partition == bindparam("partition"),
    ),
    *("client_id", "stream_name", "partition"),
)


def test_a_reading_transaction_sees_one_state(source: Source) -> None:
    stream_id = make_stream(source, [b"a", b"b"])
    writer, reader = source.session(), source.read_session()
    reader.begin()
    before = reader.log.read(stream_id, 0, 10, 100)
    writer.begin()
    writer.log.append([Append(stream_id, 2, 5, [b"c"])])
    writer.log.truncate_before(stream_id, 1)
    writer.commit()
    assert reader.log.read(stream_id, 0, 10, 100) == before
    assert reader.log.get_stream(stream_id).next_index == 2
    reader.commit()
    assert [row[0] for row in reader.log.read(stream_id, 0, 10, 100)] == [1, 2]
    writer.close()
    reader.close()


def test_a_rolled_back_transaction_leaves_nothing(source: Source) -> None:
    stream_id = make_stream(source, [b"a"])
    session = source.session()
    session.begin()
    session.log.append([Append(stream_id, 1, 5, [b"b", b"c"])])
    session.log.truncate_before(stream_id, 1)
    session.log.ensure_stream("new", 0, 1)
    assert session.in_transaction
    session.rollback()
    session.rollback()
    assert not session.in_transaction
    assert session.log.find_stream("new", 0) is None
    session.begin()
    session.log.append([Append(stream_id, 1, 6, [b"d"])])
    session.commit()
    session.close()
    assert stored_data(source, stream_id) == [b"a", b"d"]


def test_closing_a_session_undoes_its_transaction(source: Source) -> None:
    stream_id = make_stream(source, [b"a"])
    session = source.session()
    session.begin()
    session.log.append([Append(stream_id, 1, 5, [b"b"])])
    session.close()
    session.close()
    assert stored_data(source, stream_id) == [b"a"]


def test_a_part_of_a_transaction_can_be_undone_alone(source: Source) -> None:
    stream_id = make_stream(source)
    with writing(source) as session:
        session.log.append([Append(stream_id, 0, 5, [b"a"])])
        session.savepoint()
        session.log.append([Append(stream_id, 1, 5, [b"undone", b"undone"])])
        session.savepoint()
        session.log.truncate_before(stream_id, 2)
        session.release()
        session.rollback_to()
        session.savepoint()
        session.log.append([Append(stream_id, 1, 5, [b"b"])])
        session.release()
    assert stored_data(source, stream_id) == [b"a", b"b"]


def test_tables_of_other_packages_share_the_transaction(source: Source) -> None:
    session = source.session()
    session.execute(compiled(text("CREATE TABLE other (value INTEGER)")))
    session.begin()
    session.execute(compiled(text("INSERT INTO other VALUES (1)")))
    session.commit()
    session.begin()
    session.execute(compiled(text("INSERT INTO other VALUES (2)")))
    session.savepoint()
    session.execute(compiled(text("INSERT INTO other VALUES (3)")))
    session.rollback_to()
    assert session.execute(compiled(text("SELECT value FROM other"))).fetchall() == [(1,), (2,)]
    session.rollback()
    assert session.execute(compiled(text("SELECT value FROM other"))).fetchall() == [(1,)]
    session.close()


def test_a_reading_session_cannot_write(source: Source) -> None:
    stream_id = make_stream(source, [b"a"])
    with reading(source) as session:
        session.begin()
        with pytest.raises(StorageReadOnly):
            session.log.ensure_stream("new", 0, 1)
        with pytest.raises(StorageReadOnly):
            session.log.append([Append(stream_id, 1, 5, [b"x"])])
        with pytest.raises(StorageReadOnly):
            session.log.truncate_before(stream_id, 1)
        with pytest.raises(StorageReadOnly):
            session.log.delete_stream(stream_id)
        session.rollback()


def test_writing_needs_a_transaction(source: Source) -> None:
    session = source.session()
    with pytest.raises(AssertionError, match="transaction"):
        session.log.ensure_stream("a", 0, 1)
    session.close()


def test_only_one_session_writes(source: Source) -> None:
    session = source.session()
    with pytest.raises(AssertionError, match="open already"):
        source.session()
    session.close()
    source.session().close()


def test_a_program_with_a_node_inside_keeps_its_own_functions() -> None:
    """Claim: `func.greatest` of other code in the process is that of SQLAlchemy, not the one with SQLite's name."""
    theirs = func.greatest(column("name", String), "b")
    assert not isinstance(theirs, greatest)
    assert isinstance(theirs.type, NullType)
    assert compiled(select(greatest(literal(1), literal(2)))).startswith("SELECT max(")
