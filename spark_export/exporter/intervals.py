"""Sets of indexes as lists of intervals (start, exclusive end), so that millions of indexes can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

Interval: TypeAlias = tuple[int, int]


def merge(intervals: Iterable[Interval]) -> tuple[list[Interval], list[Interval]]:
    """Returns the union of the intervals, joined where they touch, and the overlaps, which can overlap each other."""
    union: list[Interval] = []
    repeated: list[Interval] = []
    for start, end in sorted(each for each in intervals if each[0] < each[1]):
        if union and start <= union[-1][1]:
            last_start, last_end = union[-1]
            if start < last_end:
                repeated.append((start, min(end, last_end)))
            union[-1] = (last_start, max(end, last_end))
        else:
            union.append((start, end))
    return union, repeated


def subtract(kept: Sequence[Interval], taken: Sequence[Interval]) -> list[Interval]:
    """Returns the indexes of `kept` that are not in `taken`. Both are ordered and without overlaps."""
    return [each for one in kept for each in _without(one, taken)]


def _without(one: Interval, taken: Sequence[Interval]) -> Iterator[Interval]:
    start, end = one
    for taken_start, taken_end in taken:
        if taken_end <= start:
            continue
        if taken_start >= end:
            break
        if start < taken_start:
            yield start, taken_start
        start = max(start, taken_end)
    if start < end:
        yield start, end


def total(intervals: Iterable[Interval]) -> int:
    return sum(end - start for start, end in intervals)
