"""The contract of `stream_storage.contract.Log` about streams, on every implementation."""

from __future__ import annotations

import pytest

from stream_storage.contract import Append, StreamRecord
from stream_storage.errors import IndexConflict, UnknownStreamId
from tests.stream_storage.storage_samples import EVERYTHING, Source, make_stream, reading, stored_data, writing


def test_ensure_stream_is_safe_to_repeat(source: Source) -> None:
    with writing(source) as session:
        made = session.log.ensure_stream("a", 3, 17)
        again = session.log.ensure_stream("a", 3, 18)
    assert made == again == StreamRecord(made.stream_id, "a", 3, 0, 0, 0, 17)


def test_streams_are_found_by_name_and_partition_and_by_id(source: Source) -> None:
    with writing(source) as session:
        made = session.log.ensure_stream("a", 0, 1)
        session.log.ensure_stream("a", 1, 1)
    with reading(source) as session:
        assert session.log.find_stream("a", 0) == session.log.get_stream(made.stream_id) == made
        assert session.log.find_stream("a", 2) is None
        assert session.log.find_stream("", 0) is None
        with pytest.raises(UnknownStreamId) as caught:
            session.log.get_stream(99)
    assert caught.value.stream_id == 99


@pytest.mark.parametrize("name", ["", "ä\0\U0010ffff", "x" * 1000, "a%_'\"b"])
def test_any_text_is_a_name(source: Source, name: str) -> None:
    stream_id = make_stream(source, [b"1"], name)
    with reading(source) as session:
        assert session.log.get_stream(stream_id).name == name
        assert [record.name for record in session.log.list_streams(name)] == [name]


def test_streams_are_listed_by_name_then_partition(source: Source) -> None:
    keys = [
        ("b", 0),
        ("a", 10),
        ("a", 2),
        ("\ud7ff", 0),
        ("\ue000", 0),
        ("", 0),
        ("ab", 0),
        ("\U0010ffff", 1),
    ]
    with writing(source) as session:
        for name, partition in keys:
            session.log.ensure_stream(name, partition, 1)
        listed = [(record.name, record.partition) for record in session.log.list_streams()]
    assert listed == sorted(keys)


@pytest.mark.parametrize("prefix", ["", "a", "ab", "b", "\ud7ff", "\U0010ffff", "a\U0010ffff", "zz"])
def test_a_prefix_selects_the_names_that_begin_with_it(source: Source, prefix: str) -> None:
    names = [
        "",
        "a",
        "a\U0010ffff",
        "a\U0010ffffb",
        "ab",
        "abc",
        "b",
        "\ud7ff",
        "\ud7ffx",
        "\ue000",
        "\U0010ffff",
    ]
    with writing(source) as session:
        for name in names:
            session.log.ensure_stream(name, 0, 1)
        listed = [record.name for record in session.log.list_streams(prefix)]
    assert listed == sorted(name for name in names if name.startswith(prefix))


def test_a_list_goes_on_after_where_it_ended(source: Source) -> None:
    keys = sorted((name, partition) for name in ("a", "b", "ba") for partition in range(3))
    with writing(source) as session:
        for name, partition in keys:
            session.log.ensure_stream(name, partition, 1)
    found: list[tuple[str, int]] = []
    after: tuple[str, int] | None = None
    with reading(source) as session:
        while page := session.log.list_streams(after=after, limit=2):
            after = (page[-1].name, page[-1].partition)
            found += [(record.name, record.partition) for record in page]
        assert [(r.name, r.partition) for r in session.log.list_streams("b", ("b", 1), EVERYTHING)] == keys[5:]
        assert session.log.list_streams("a", ("b", 0)) == []
        assert [r.name for r in session.log.list_streams("b", ("a", 0), 1)] == ["b"]
        assert session.log.list_streams(limit=0) == []
    assert found == keys


def test_truncation_keeps_the_end(source: Source) -> None:
    stream_id = make_stream(source, [b"%d" % number for number in range(20)])
    with writing(source) as session:
        assert session.log.truncate_before(stream_id, 0) == 0
        assert session.log.truncate_before(stream_id, 12) == 12
        assert session.log.truncate_before(stream_id, 5) == 0
    with reading(source) as session:
        record = session.log.get_stream(stream_id)
        assert (record.first_index, record.next_index, record.size_bytes) == (12, 20, 16)
        assert [row[0] for row in session.log.read(stream_id, 0, 3, 100)] == [12, 13, 14]
        assert session.log.read(stream_id, 14, 1, 100) == [(14, b"14", 1000, None, None)]
    with writing(source) as session:
        assert session.log.truncate_before(stream_id, EVERYTHING) == 8
        record = session.log.get_stream(stream_id)
        assert (record.first_index, record.next_index, record.size_bytes) == (20, 20, 0)
        assert session.log.read(stream_id, 0, 10, 100) == []
        with pytest.raises(IndexConflict):
            session.log.append([Append(stream_id, 0, 5, [b"again"])])
    with writing(source) as session:
        session.log.append([Append(stream_id, 20, 5, [b"on"])])
        assert session.log.read(stream_id, 0, 10, 100) == [(20, b"on", 5, None, None)]
        with pytest.raises(UnknownStreamId):
            session.log.truncate_before(stream_id + 1, 0)


def test_a_deleted_stream_is_gone_and_its_id_is_never_used_again(source: Source) -> None:
    kept = make_stream(source, [b"kept"], "kept")
    deleted = make_stream(source, [b"a", b"b"], "deleted")
    with writing(source) as session:
        session.log.delete_stream(deleted)
        with pytest.raises(UnknownStreamId):
            session.log.delete_stream(deleted)
    with writing(source) as session:
        assert session.log.find_stream("deleted", 0) is None
        made = session.log.ensure_stream("deleted", 0, 5)
        assert made.stream_id not in (kept, deleted)
        assert made.next_index == 0
        with pytest.raises(UnknownStreamId):
            session.log.append([Append(deleted, 2, 5, [b"c"])])
    assert stored_data(source, kept) == [b"kept"]


def test_a_stream_without_messages_begins_where_it_is_told(source: Source) -> None:
    with writing(source) as session:
        stream_id = session.log.ensure_stream("a", 0, 1).stream_id
        session.log.begin_at(stream_id, 7)
        session.log.append([Append(stream_id, 7, 1, [b"x", b"y"])])
    with reading(source) as session:
        record = session.log.get_stream(stream_id)
        assert (record.first_index, record.next_index, record.size_bytes) == (7, 9, 2)
        assert [row[:2] for row in session.log.read(stream_id, 0, 9, EVERYTHING)] == [(7, b"x"), (8, b"y")]
    with writing(source) as session:
        for index in (0, 9, 20):
            with pytest.raises(IndexConflict):
                session.log.begin_at(stream_id, index)
        session.log.truncate_before(stream_id, 9)
        with pytest.raises(IndexConflict):
            session.log.begin_at(stream_id, 3)
        with pytest.raises(UnknownStreamId):
            session.log.begin_at(99, 3)
