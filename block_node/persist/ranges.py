"""Sets of block numbers, kept as ranges: the blocks that are stored, readable or missing. Adding a number takes
constant time at the end of a set."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class NumberRange(NamedTuple):
    """A range of block numbers. Both ends are included."""

    first: int
    last: int


class BlockRanges:
    """A set of block numbers, kept as ranges.

    Invariant: the ranges are in ascending order and not empty. Between two ranges, at least one number is missing.
    """

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in ranges:
            self.add(first, last)

    def __iter__(self) -> Iterator[NumberRange]:
        return map(NumberRange, self._firsts, self._lasts)

    def __reversed__(self) -> Iterator[NumberRange]:
        return map(NumberRange, reversed(self._firsts), reversed(self._lasts))

    def __len__(self) -> int:
        return len(self._firsts)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self._lasts[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockRanges) and list(self) == list(other)

    def __repr__(self) -> str:
        return f"BlockRanges({[tuple(each) for each in self]})"

    @property
    def first(self) -> int | None:
        return self._firsts[0] if self._firsts else None

    @property
    def last(self) -> int | None:
        return self._lasts[-1] if self._lasts else None

    def count(self) -> int:
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def copy(self) -> BlockRanges:
        made = BlockRanges()
        made._firsts, made._lasts = self._firsts.copy(), self._lasts.copy()
        return made

    def end_of_run(self, number: int) -> int | None:
        """Returns the last number of the range that contains `number`, or None."""
        at = bisect_right(self._firsts, number) - 1
        return self._lasts[at] if at >= 0 and number <= self._lasts[at] else None

    def start_of_run(self, number: int) -> int:
        return self._firsts[bisect_right(self._firsts, number) - 1]

    def next_from(self, number: int) -> int | None:
        at = bisect_left(self._lasts, number)
        return max(number, self._firsts[at]) if at < len(self._firsts) else None

    def missing(self, first: int, last: int) -> list[NumberRange]:
        holes = []
        for at in range(bisect_left(self._lasts, first), len(self._firsts)):
            if self._firsts[at] > last:
                break
            if self._firsts[at] > first:
                holes.append(NumberRange(first, self._firsts[at] - 1))
            first = self._lasts[at] + 1
        if first <= last:
            holes.append(NumberRange(first, last))
        return holes

    def add(self, first: int, last: int | None = None) -> None:
        last = first if last is None else last
        assert 0 <= first <= last, f"no range of block numbers: {first} to {last}"
        # Blocks usually come in order.
        if self._lasts and first == self._lasts[-1] + 1:
            self._lasts[-1] = last
            return
        # All ranges that overlap or touch the new one become one.
        start = bisect_left(self._lasts, first - 1)
        end = bisect_right(self._firsts, last + 1)
        if start < end:
            first = min(first, self._firsts[start])
            last = max(last, self._lasts[end - 1])
        self._firsts[start:end] = [first]
        self._lasts[start:end] = [last]

    def discard(self, first: int, last: int | None = None) -> None:
        last = first if last is None else last
        start = bisect_left(self._lasts, first)
        end = bisect_right(self._firsts, last)
        if start >= end:
            return
        # The first and the last range that overlap may keep a part.
        left = []
        if self._firsts[start] < first:
            left.append((self._firsts[start], first - 1))
        if self._lasts[end - 1] > last:
            left.append((last + 1, self._lasts[end - 1]))
        self._firsts[start:end] = [each[0] for each in left]
        self._lasts[start:end] = [each[1] for each in left]
