"""The contract of `stream_storage.contract.Log` about messages, on every implementation."""

from __future__ import annotations

import itertools

import pytest

from stream_storage.contract import Append, Record
from stream_storage.errors import IndexConflict, UnknownStreamId
from stream_storage.sqlite.log import RUN_ROWS_MIN
from tests.stream_storage.storage_samples import EVERYTHING, Source, make_stream, reading, stored_data, writing


def test_messages_come_back_as_they_were_given(source: Source) -> None:
    stream_id = make_stream(source)
    with writing(source) as session:
        session.log.append(
            [
                Append(stream_id, 0, 5, [b"", b"\0", bytes(range(256))]),
                Append(stream_id, 3, 6, [b"k", b"l"], keys=[b"key", None]),
                Append(stream_id, 5, 7, [b"h", b"i"], headers=[b"", b"header"]),
                Append(stream_id, 7, 8, [b"b"], [b""], [b"both"]),
            ]
        )
    expected: list[Record] = [
        (0, b"", 5, None, None),
        (1, b"\0", 5, None, None),
        (2, bytes(range(256)), 5, None, None),
        (3, b"k", 6, b"key", None),
        (4, b"l", 6, None, None),
        (5, b"h", 7, None, b""),
        (6, b"i", 7, None, b"header"),
        (7, b"b", 8, b"", b"both"),
    ]
    with reading(source) as session:
        assert session.log.read(stream_id, 0, 100, 10_000) == expected
        assert session.log.get_stream(stream_id).size_bytes == 262


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 16, 31, 511, 512, 513, 1025, 3000])
def test_any_count_of_messages_is_stored(source: Source, count: int) -> None:
    data = [b"%d" % number for number in range(count)]
    assert stored_data(source, make_stream(source, data)) == data


@pytest.mark.parametrize("sizes", [(1, 100), (200, 40_000), (1, 40_000)], ids=str)
def test_any_sizes_are_stored_at_any_index(source: Source, sizes: tuple[int, int]) -> None:
    """Goal: no number is too large for the column or parameter that takes it. Method: small and large totals at small
    and large indexes, of one stream and of two in one append, with and without keys."""
    with writing(source) as session:
        ids = [session.log.ensure_stream("s", partition, 1).stream_id for partition in range(2)]
        session.log.begin_at(ids[1], 2**40)
        for index, size in enumerate(sizes * 3):
            appends = [
                Append(stream_id, first + index * 100, 2**50, [bytes(size)] * 100, [b"k"] * 100 if index % 2 else None)
                for stream_id, first in zip(ids, (0, 2**40), strict=True)
            ]
            session.log.append(appends)
    with reading(source) as session:
        for stream_id in ids:
            found = session.log.get_stream(stream_id)
            assert found.size_bytes == 300 * sum(sizes)
            assert len(session.log.read(stream_id, 0, 1_000, EVERYTHING)) == 600


def test_messages_of_many_streams_in_one_append(source: Source) -> None:
    with writing(source) as session:
        ids = [session.log.ensure_stream("s", partition, 1).stream_id for partition in range(700)]
        session.log.append([Append(stream_id, 0, 9, [b"%d" % stream_id]) for stream_id in ids])
        session.log.append([Append(stream_id, 1, 9, [b"x", b"y"][: stream_id % 3]) for stream_id in ids])
    with reading(source) as session:
        for stream_id in ids:
            records = session.log.read(stream_id, 0, 10, 1000)
            assert [record[1] for record in records] == [b"%d" % stream_id, b"x", b"y"][: 1 + stream_id % 3]


def test_runs_of_any_lengths_go_into_one_append_in_any_order(source: Source) -> None:
    """Goal: what goes into statements of its own and what shares them is stored alike. Method: lengths around the bound
    between the two, several runs of each stream, some with keys, mixed; each message says where it belongs."""
    lengths = [0, 1, 2, RUN_ROWS_MIN - 1, RUN_ROWS_MIN, RUN_ROWS_MIN + 1, 300]
    ends: dict[int, int] = {}
    appends: list[Append] = []
    with writing(source) as session:
        ids = [session.log.ensure_stream("s", partition, 1).stream_id for partition in range(5)]
        for number, (length, stream_id) in enumerate(itertools.product(lengths * 2, ids)):
            first = ends.get(stream_id, 0)
            ends[stream_id] = first + length
            data = [b"%d of %d" % (first + place, stream_id) for place in range(length)]
            keys = [b"%d" % number] * length if number % 4 == 3 else None
            appends.append(Append(stream_id, first, 10 + number, data, keys))
        session.log.append(appends)
    for stream_id in ids:
        with reading(source) as session:
            records = session.log.read(stream_id, 0, EVERYTHING, EVERYTHING)
        expected = [
            (append.first_index + place, data, append.time_us, append.keys[place] if append.keys else None, None)
            for append in appends
            if append.stream_id == stream_id
            for place, data in enumerate(append.data)
        ]
        assert records == expected


def test_an_append_of_nothing_changes_nothing(source: Source) -> None:
    stream_id = make_stream(source, [b"a"])
    with writing(source) as session:
        session.log.append([])
        session.log.append([Append(stream_id, 1, 5, [])])
        assert session.log.get_stream(stream_id).next_index == 1
        with pytest.raises(IndexConflict):
            session.log.append([Append(stream_id, 2, 5, [])])


@pytest.mark.parametrize("first_index", [0, 1, 2, 4, 5, 2**40])
def test_an_append_elsewhere_than_at_the_end_is_refused(source: Source, first_index: int) -> None:
    stream_id = make_stream(source, [b"a", b"b", b"c"])
    session = source.session()
    session.begin()
    with pytest.raises(IndexConflict) as caught:
        session.log.append([Append(stream_id, first_index, 5, [b"x"])])
    session.rollback()
    session.close()
    error = caught.value
    assert (error.stream_id, error.expected, error.found) == (stream_id, 3, first_index)
    assert stored_data(source, stream_id) == [b"a", b"b", b"c"]


def test_the_stream_that_conflicts_is_named_among_many(source: Source) -> None:
    ids = [make_stream(source, [b"a", b"b"], name) for name in ("one", "two", "three")]
    session = source.session()
    session.begin()
    with pytest.raises(IndexConflict) as caught:
        session.log.append([Append(i, 1 if i == ids[1] else 2, 5, [b"x"]) for i in ids])
    session.rollback()
    session.close()
    assert (caught.value.stream_id, caught.value.expected, caught.value.found) == (ids[1], 2, 1)


def test_a_gap_between_appends_of_one_call_is_refused(source: Source) -> None:
    stream_id = make_stream(source)
    session = source.session()
    session.begin()
    with pytest.raises(IndexConflict) as caught:
        session.log.append([Append(stream_id, 0, 5, [b"x"]), Append(stream_id, 2, 5, [b"y"])])
    session.rollback()
    session.close()
    assert (caught.value.expected, caught.value.found) == (1, 2)


def test_an_append_to_an_unknown_stream_is_refused(source: Source) -> None:
    stream_id = make_stream(source)
    session = source.session()
    session.begin()
    with pytest.raises(UnknownStreamId):
        session.log.append([Append(stream_id, 0, 5, [b"x"]), Append(stream_id + 7, 0, 5, [b"x"])])
    session.rollback()
    session.close()


@pytest.mark.parametrize(
    ("index", "limit", "bytes_max", "first_bytes_max", "expected"),
    [
        (0, 10, 100, None, range(6)),
        (2, 10, 100, None, range(2, 6)),
        (5, 10, 100, None, [5]),
        (6, 10, 100, None, []),
        (2**63 - 1, 10, 100, None, []),
        (2**63, 10, 100, None, []),
        (2**64 - 1, 2**64 - 1, 2**64 - 1, None, []),
        (0, 0, 100, None, []),
        (0, 2, 100, None, [0, 1]),
        (1, 2**64 - 1, 2**64 - 1, None, range(1, 6)),
        (0, 10, 30, None, [0, 1, 2]),
        (0, 10, 29, None, [0, 1]),
        (0, 10, 10, None, [0]),
        (0, 10, 9, None, [0]),
        (0, 10, 0, None, [0]),
        (0, 10, 9, 10, [0]),
        (0, 10, 9, 9, []),
        (0, 10, 100, 9, []),
        (6, 10, 0, 0, []),
    ],
)
def test_a_page_is_bounded(
    source: Source,
    index: int,
    limit: int,
    bytes_max: int,
    first_bytes_max: int | None,
    expected: range | list[int],
) -> None:
    stream_id = make_stream(source, [b"0123456789"] * 6)
    with reading(source) as session:
        page = session.log.read(stream_id, index, limit, bytes_max, first_bytes_max=first_bytes_max)
    assert [record[0] for record in page] == list(expected)


def test_the_first_message_that_fits_is_found_behind_larger_ones(source: Source) -> None:
    stream_id = make_stream(source, [b"x" * size for size in (10, 5000, 70_000, 20, 30)])
    with reading(source) as session:
        find = session.log.find_fitting
        assert [find(stream_id, index, 100) for index in range(6)] == [0, 3, 3, 3, 4, None]
        assert [find(stream_id, 1, bytes_max) for bytes_max in (0, 19, 20, 5000, 70_000)] == [None, None, 3, 1, 1]
        assert find(stream_id, 2**64 - 1, 100) is None


def test_a_large_message_ends_the_page_before_it(source: Source) -> None:
    sizes = [10] * 40 + [5000] + [10] * 40
    stream_id = make_stream(source, [b"x" * size for size in sizes])
    with reading(source) as session:
        assert len(session.log.read(stream_id, 0, 1000, 1000)) == 40
        assert [record[0] for record in session.log.read(stream_id, 40, 1000, 1000)] == [40]
        assert len(session.log.read(stream_id, 40, 1000, 5200)) == 21
        assert len(session.log.read(stream_id, 41, 1000, 1000)) == 40


def test_messages_without_data_fill_no_page(source: Source) -> None:
    stream_id = make_stream(source, [b""] * 3000)
    with reading(source) as session:
        assert len(session.log.read(stream_id, 0, 5000, 0)) == 3000


def test_pages_one_after_another_are_the_stream(source: Source) -> None:
    with writing(source) as session:
        stream_id = session.log.ensure_stream("s", 0, 1).stream_id
        for number in range(60):
            data = [b"%d" % number * (number % 7)] * (number % 50)
            session.log.append([Append(stream_id, session.log.get_stream(stream_id).next_index, number, data)])
    with reading(source) as session:
        whole = session.log.read(stream_id, 0, EVERYTHING, EVERYTHING)
        for limit, bytes_max in ((1, 0), (7, 50), (EVERYTHING, 100), (100, 200)):
            found: list[Record] = []
            while page := session.log.read(stream_id, len(found), limit, bytes_max):
                assert len(page) <= limit
                assert len(page) == 1 or sum(len(record[1]) for record in page) <= bytes_max
                found += page
            assert found == whole
    assert [record[0] for record in whole] == list(range(len(whole)))


def test_a_page_of_an_unknown_stream_is_refused(source: Source) -> None:
    with reading(source) as session, pytest.raises(UnknownStreamId):
        session.log.read(1, 0, 10, 10)
