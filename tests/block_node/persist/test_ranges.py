"""Goal: sets of block numbers are right. Method: against Python's sets, over small numbers, so that ranges touch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from block_node.persist.ranges import BlockRanges, NumberRange

NUMBERS = st.integers(0, 24)
CHANGES = st.lists(st.tuples(st.booleans(), NUMBERS, st.integers(0, 6)), max_size=20)


@given(CHANGES, NUMBERS, NUMBERS)
def test_ranges_are_a_set_of_numbers(changes: list[tuple[bool, int, int]], low: int, high: int) -> None:
    ranges, numbers = BlockRanges(), set[int]()
    for adds, first, more in changes:
        if adds:
            ranges.add(first, first + more)
            numbers |= set(range(first, first + more + 1))
        else:
            ranges.discard(first, first + more)
            numbers -= set(range(first, first + more + 1))
        flat = [number for each in ranges for number in range(each.first, each.last + 1)]
        assert flat == sorted(numbers)
        assert all(one.last + 1 < other.first for one, other in zip(list(ranges), list(ranges)[1:], strict=False))
    assert (ranges.count(), ranges.first, ranges.last) == (
        len(numbers),
        min(numbers, default=None),
        max(numbers, default=None),
    )
    assert ranges == BlockRanges(ranges) == ranges.copy()
    for number in range(34):
        assert (number in ranges) == (number in numbers)
        assert ranges.next_from(number) == min((each for each in numbers if each >= number), default=None)
        end = number
        while end in numbers:
            end += 1
        assert ranges.end_of_run(number) == (end - 1 if end > number else None)
        if number in numbers:
            assert ranges.start_of_run(number) == max(each for each in range(number + 1) if each - 1 not in numbers)
    holes = {number for each in ranges.missing(low, high) for number in range(each.first, each.last + 1)}
    assert holes == set(range(low, high + 1)) - numbers


def test_a_set_prints_its_ranges() -> None:
    assert repr(BlockRanges([(1, 2), (5, 5)])) == "BlockRanges([(1, 2), (5, 5)])"
    assert list(BlockRanges([(5, 5), (1, 2), (3, 4)])) == [NumberRange(1, 5)]
