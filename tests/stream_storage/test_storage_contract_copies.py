"""The contract of `stream_storage.contract.Log` about copies of other streams, and of `stream_storage.history`, on
every implementation.

Method: what a copy reads is compared with a list that the test keeps, and sizes with the sum of the stored data. A
database on disk is verified after each test, so every seal and checksum is made anew by the verifier.
"""

from __future__ import annotations

import random

import pytest

from stream_storage.contract import Record, find_falls, timed_appends
from stream_storage.errors import IndexConflict, UnknownStreamId
from stream_storage.history import (
    ENTRIES_MAX,
    HistoryEntry,
    begin_entries,
    begin_entry,
    ensure_history,
    find_parting,
    forget_history,
    list_history,
    set_history,
    shared_history,
)
from tests.stream_storage.storage_samples import EVERYTHING, Source, make_stream, reading, writing


def records_from(first_index: int, count: int, chance: random.Random) -> list[Record]:
    """Messages of every shape: with and without key and headers, some with the time of the one before."""
    time_us, records = 1_000, []
    for index in range(first_index, first_index + count):
        time_us += chance.choice((0, 0, 1, 7, -3))
        beside = [chance.choice((None, b"", b"beside %d" % index)) for _ in range(2)]
        records.append((index, chance.randbytes(chance.randrange(40)), time_us, beside[0], beside[1]))
    return records


@pytest.mark.parametrize("count", [1, 2, 63, 200])
def test_messages_with_a_time_each_are_stored_as_they_are(source: Source, count: int) -> None:
    records = records_from(500, count, random.Random(count))
    with writing(source) as session:
        stream_id = session.log.ensure_stream("copy", 0, 1).stream_id
        session.log.begin_at(stream_id, 500)
        session.log.append(timed_appends(stream_id, records))
    with reading(source) as session:
        assert session.log.read(stream_id, 0, EVERYTHING, EVERYTHING) == records
        record = session.log.get_stream(stream_id)
        assert (record.first_index, record.next_index) == (500, 500 + count)
        assert record.size_bytes == sum(len(each[1]) for each in records)


def test_messages_with_a_time_each_are_stored_together_or_not_at_all(source: Source) -> None:
    stream_id = make_stream(source, [b"here"])
    wrong = records_from(5, 4, random.Random(5))
    with writing(source) as session:
        session.savepoint()
        with pytest.raises(IndexConflict):
            session.log.append(timed_appends(stream_id, wrong))
        session.rollback_to()
    with reading(source) as session:
        assert [row[1] for row in session.log.read(stream_id, 0, EVERYTHING, EVERYTHING)] == [b"here"]


def test_places_where_times_fall_are_found() -> None:
    times = [5, 5, 4, 9, 8, 8]
    records: list[Record] = [(10 + at, b"", time_us, None, None) for at, time_us in enumerate(times)]
    assert find_falls(records, 6) == [10, 12, 14]
    assert find_falls(records, 5) == [12, 14]
    assert find_falls([], 5) == []


def test_a_stream_without_messages_skips_forward_only(source: Source) -> None:
    stream_id = make_stream(source, [b"a", b"b"])
    with writing(source) as session:
        for index in (0, 2, 9):
            with pytest.raises(IndexConflict):
                session.log.skip_to(stream_id, index)
        session.log.truncate_before(stream_id, 2)
        with pytest.raises(IndexConflict):
            session.log.skip_to(stream_id, 1)
        session.log.skip_to(stream_id, 7)
        session.log.append(timed_appends(stream_id, [(7, b"c", 3, None, None)]))
        with pytest.raises(UnknownStreamId):
            session.log.skip_to(99, 7)
    with reading(source) as session:
        assert session.log.read(stream_id, 0, 9, EVERYTHING) == [(7, b"c", 3, None, None)]
        record = session.log.get_stream(stream_id)
        assert (record.first_index, record.next_index, record.size_bytes) == (7, 8, 1)


@pytest.mark.parametrize(("first_index", "index"), [(0, 3), (0, 0), (2, 3), (4, 1), (0, 5), (0, 9), (5, 2)])
def test_a_tail_is_cut_and_its_indexes_are_given_again(source: Source, first_index: int, index: int) -> None:
    stored = [b"%d" % number * (number + 1) for number in range(5)]
    stream_id = make_stream(source, stored)
    with writing(source) as session:
        session.log.truncate_before(stream_id, first_index)
    left = list(range(first_index, min(index, 5)))
    with writing(source) as session:
        deleted = session.log.cut_from(stream_id, index)
        assert deleted == 5 - first_index - len(left)
        end = min(index, 5)
        record = session.log.get_stream(stream_id)
        assert (record.first_index, record.next_index) == (min(first_index, end), end)
        assert record.size_bytes == sum(len(stored[at]) for at in left)
        session.log.append(timed_appends(stream_id, [(end, b"anew", 9, None, None)]))
    with reading(source) as session:
        found = session.log.read(stream_id, 0, EVERYTHING, EVERYTHING)
        assert [row[:2] for row in found] == [(at, stored[at]) for at in left] + [(end, b"anew")]


def test_a_cut_that_is_undone_has_cut_nothing(source: Source) -> None:
    stream_id = make_stream(source, [b"a", b"b", b"c"])
    with writing(source) as session:
        session.savepoint()
        assert session.log.cut_from(stream_id, 1) == 2
        session.rollback_to()
        assert session.log.get_stream(stream_id).next_index == 3
        with pytest.raises(UnknownStreamId):
            session.log.cut_from(99, 0)
    with reading(source) as session:
        assert [row[1] for row in session.log.read(stream_id, 0, 9, EVERYTHING)] == [b"a", b"b", b"c"]


def test_a_history_is_made_once_and_grows(source: Source) -> None:
    stream_id, other_id = make_stream(source, [b"a", b"b"]), make_stream(source, [b"c"], "other")
    ids = iter(range(1, 9))
    with writing(source) as session:
        assert list_history(session, stream_id) == ()
        assert ensure_history(session, stream_id, lambda: next(ids)) == (HistoryEntry(1, 0),)
        assert ensure_history(session, stream_id, lambda: next(ids)) == (HistoryEntry(1, 0),)
    with writing(source) as session:
        assert begin_entry(session, stream_id, 70) == (HistoryEntry(1, 0), HistoryEntry(70, 2))
        begin_entries(session, lambda: 90)
        with pytest.raises(UnknownStreamId):
            begin_entry(session, 99, 3)
    with reading(source) as session:
        assert list_history(session, stream_id) == (HistoryEntry(1, 0), HistoryEntry(70, 2), HistoryEntry(90, 2))
        assert list_history(session, other_id) == (), "nobody has asked for it"
    with writing(source) as session:
        forget_history(session, stream_id)
        assert list_history(session, stream_id) == ()


def test_a_new_entry_replaces_those_beyond_the_end(source: Source) -> None:
    stream_id = make_stream(source, [b"a", b"b"])
    with writing(source) as session:
        set_history(session, stream_id, [HistoryEntry(1, 0), HistoryEntry(2, 2), HistoryEntry(3, 9)])
        assert begin_entry(session, stream_id, 4) == (HistoryEntry(1, 0), HistoryEntry(2, 2), HistoryEntry(4, 2))


def test_a_history_has_a_bound(source: Source) -> None:
    stream_id = make_stream(source, [b"a"])
    with writing(source) as session:
        set_history(session, stream_id, [HistoryEntry(at + 1, at) for at in range(ENTRIES_MAX + 2)])
        found = list_history(session, stream_id)
        assert (len(found), found[0], found[-1]) == (ENTRIES_MAX, HistoryEntry(3, 2), HistoryEntry(1002, 1001))


A, B, C, D = (HistoryEntry(entry_id, index) for entry_id, index in ((1, 0), (2, 10), (3, 10), (4, 20)))


@pytest.mark.parametrize(
    ("ours", "theirs", "parting", "shared"),
    [
        ((A,), (A,), None, (A,)),
        ((A,), (A, B), 10, (A,)),
        ((A, B), (A,), 10, (A,)),
        ((A, B), (A, C), 10, (A,)),
        ((A, B, D), (A, B), 20, (A, B)),
        ((A, B, D), (A, C), 10, (A,)),
        ((A,), (C,), 0, ()),
        ((), (A,), 0, ()),
        ((A,), (), 0, ()),
        # The oldest entries of one side are gone, as those below its first index.
        ((B, D), (A, B), 20, (B,)),
        ((A, B), (B, D), 20, (A, B)),
    ],
)
def test_histories_part_where_the_first_of_both_goes_on_alone(
    ours: tuple[HistoryEntry, ...],
    theirs: tuple[HistoryEntry, ...],
    parting: int | None,
    shared: tuple[HistoryEntry, ...],
) -> None:
    assert find_parting(ours, theirs) == find_parting(theirs, ours) == parting
    assert shared_history(ours, theirs) == shared


def test_copies_agree_below_their_parting_and_nowhere_more_by_luck() -> None:
    """Random copies, promotions and pushes of three copies: below the parting all messages are equal, and a copy that
    has another message at an index has it at or beyond the parting."""
    for seed in range(300):
        chance = random.Random(seed)
        ids = iter(range(1, 10**6))
        copies: list[tuple[list[int], tuple[HistoryEntry, ...]]] = [([], (HistoryEntry(next(ids), 0),))] * 3
        for _ in range(12):
            to, of = chance.sample(range(3), 2)
            messages, history = copies[to]
            match chance.randrange(3):
                case 0:  # A promotion, or a restore.
                    known = tuple(entry for entry in history if entry.first_index <= len(messages))
                    copies[to] = (messages, (*known, HistoryEntry(next(ids), len(messages))))
                case 1:  # Pushes to one that has just begun an entry of its own.
                    known = tuple(entry for entry in history if entry.first_index <= len(messages))
                    history = (*known, HistoryEntry(next(ids), len(messages)))
                    copies[to] = (messages + [next(ids) for _ in range(chance.randrange(4))], history)
                case 2:  # A copy follows another as far as it may, or not at all.
                    source, theirs = copies[of]
                    parting = find_parting(history, theirs)
                    if parting is None or len(messages) <= parting:
                        end = chance.randint(len(messages), max(len(messages), len(source)))
                        copied = messages + source[len(messages) : end]
                        copies[to] = (copied, tuple(e for e in theirs if e.first_index <= len(copied)))
            for ours, their in ((0, 1), (0, 2), (1, 2)):
                (left, one), (right, two) = copies[ours], copies[their]
                parting = find_parting(one, two)
                both = min(len(left), len(right))
                differ = next((at for at in range(both) if left[at] != right[at]), both)
                if parting is not None:
                    assert differ >= min(parting, both), seed
                else:
                    assert differ == both, seed
