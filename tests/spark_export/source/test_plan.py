"""Goal: every index is in one range or is reported lost. Method: the pure planning, with properties."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_export.errors import OptionError
from spark_export.source.plan import (
    CREATED,
    EARLIEST,
    LATEST,
    Place,
    QueryPosition,
    ReadRange,
    StreamEnds,
    by_place,
    from_offsets,
    limited,
    ranges_between,
    resolve,
    split,
    to_offsets,
)

INDEX = st.integers(0, 1_000)


def ends_of(*bounds: tuple[int, int], stream: str = "s") -> dict[Place, StreamEnds]:
    return by_place(StreamEnds(stream, number, first, end, 0, 5) for number, (first, end) in enumerate(bounds))


def at(*indexes: int, created_us: int = 0) -> dict[Place, QueryPosition]:
    """Positions in the partitions of `s`."""
    return {("s", number): QueryPosition(index, created_us) for number, index in enumerate(indexes)}


@given(st.lists(st.tuples(INDEX, INDEX), max_size=5), st.integers(1, 300), st.none() | st.integers(1, 40))
def test_pieces_are_the_range(bounds: list[tuple[int, int]], most: int, least: int | None) -> None:
    """Goal: splitting loses and doubles nothing, and keeps to its bounds. Method: indexes before and after."""
    ranges = [ReadRange("s", number, low, low + size) for number, (low, size) in enumerate(bounds)]
    pieces = split(ranges, most, least)
    indexes = [(piece.partition, index) for piece in pieces for index in range(piece.start, piece.end)]
    assert indexes == [(each.partition, index) for each in ranges for index in range(each.start, each.end)]
    assert all(0 < piece.count <= most for piece in pieces)
    if least is not None:
        assert len(pieces) >= min(least, len(indexes))


@given(INDEX, INDEX, INDEX, INDEX)
def test_what_is_asked_is_planned_or_lost(first: int, stored: int, start: int, wanted: int) -> None:
    """Goal: no index disappears in silence. Method: any bounds of a stream against any offsets."""
    ends = ends_of((first, first + stored))
    ranges, losses = ranges_between(at(start), at(start + wanted), ends)
    planned = {index for each in ranges for index in range(each.start, each.end)}
    lost = {index for each in losses for index in range(each.range.start, each.range.end)}
    assert planned | lost == set(range(start, start + wanted))
    assert not planned & lost
    assert planned <= set(range(first, first + stored))


def test_a_partition_that_came_later_is_read_from_its_beginning() -> None:
    """Goal: what retention took of it before the first look is a loss, as in Kafka's source."""
    ends = ends_of((0, 4), (3, 9))
    ranges, losses = ranges_between(at(4), at(4, 9), ends)
    assert [(each.partition, each.start, each.end) for each in ranges] == [(1, 3, 9)]
    assert [(loss.range.start, loss.range.end) for loss in losses] == [(0, 3)]


def test_a_stream_that_went_back_is_a_loss() -> None:
    """Goal: a stream made again under its name, or restored, is noticed. Method: an end before the saved offset."""
    _, losses = ranges_between(at(40), at(7), ends_of((0, 7)))
    assert "deleted and made again" in str(losses[0])


def test_a_stream_made_again_is_a_loss_and_read_from_its_beginning() -> None:
    """Goal: what the old one had behind the offset is reported, though nobody knows what it was; also where the new one
    has grown past it. Method: creation times that differ; those of `ends_of` are 5."""
    for index in (0, 3, 40, 60):
        ends = ends_of((0, index))
        ranges, losses = ranges_between(at(40, created_us=4), at(index, created_us=5), ends)
        assert [(each.start, each.end, each.created_us) for each in ranges] == ([(0, index, 5)] if index else [])
        assert [str(each) for each in losses] == [
            "s/0 from index 40 on: the stream was deleted and made again; "
            "nobody can say how many messages after this index it had"
        ]
        assert limited(at(40, created_us=4), at(index, created_us=5), 2) == at(min(index, 2), created_us=5)


def test_a_stream_that_vanished_is_a_loss_only_where_something_was_left_to_read() -> None:
    """Goal: a finished stream may go."""
    assert ranges_between(at(4), at(4), {}) == ([], [])
    _, losses = ranges_between(at(4), at(6), {})
    assert "no longer exists" in str(losses[0])


@given(st.lists(INDEX, min_size=1, max_size=8), st.integers(1, 500))
def test_a_limit_is_shared_by_size(sizes: list[int], most: int) -> None:
    """Goal: no partition starves, and the limit holds up to one message a partition. Method: the shares."""
    start, end = at(*[10] * len(sizes)), at(*[10 + size for size in sizes])
    cut = limited(start, end, most)
    taken = [cut["s", number].index - 10 for number in range(len(sizes))]
    assert all((0 < got <= size) if size else got == 0 for got, size in zip(taken, sizes, strict=True))
    assert sum(taken) <= max(most, 0) + len(sizes)
    if sum(sizes) <= most:
        assert cut == end


def test_offset_keys_are_in_the_order_of_numbers() -> None:
    """Trap 5 of the PySpark 4.3 facts: offsets are compared as JSON text, so the order of keys must never change.

    Method: eleven partitions put in backwards; "10" must follow "9", as the numbers do.
    """
    numbers = range(11)
    reached = {("b", 0): QueryPosition(1)} | {
        ("a", number): QueryPosition(number, 70 + number) for number in reversed(numbers)
    }
    offsets = to_offsets(reached)
    indexes, created = ({str(number): base + number for number in numbers} for base in (0, 70))
    assert json.dumps(offsets) == json.dumps({"a": {**indexes, CREATED: created}, "b": {"0": 1}})
    assert from_offsets(json.loads(json.dumps(offsets))) == reached


def test_offsets_name_every_partition() -> None:
    """Goal: an offset that is missing, or for something else, is an error as in Kafka's source."""
    ends = ends_of((2, 9), (0, 5))
    assert resolve({"s": {0: EARLIEST, 1: LATEST}}, ends, "o") == {("s", 0): 2, ("s", 1): 5}
    with pytest.raises(OptionError, match="no offset for s/1"):
        resolve({"s": {0: 3}}, ends, "o")
    with pytest.raises(OptionError, match="names s/2"):
        resolve({"s": {0: 3, 1: 3, 2: 3}}, ends, "o")
