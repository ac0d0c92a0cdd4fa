"""Keeps sets of numbers as ranges, for example the indexes that the pipeline has read from a partition.

The ranges distinguish new messages from known messages, even after the export has merged files. The holes between the
ranges are the rows of gold/index_gaps. This module does no I/O.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

Source: TypeAlias = tuple[str, int, int]
"""A stream, its era (how often it was deleted and created again) and a partition."""


@dataclass(slots=True)
class Span:
    """A range of consecutive numbers, both included, with the storage times of the first and the last message."""

    first: int
    last: int
    first_us: int
    last_us: int


class Intervals:
    """A set of numbers, stored as ranges (`Span`) in ascending order."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self.spans = list(spans)

    def covers(self, number: int) -> bool:
        at = bisect_left(self.spans, number, key=lambda span: span.last)
        return at < len(self.spans) and self.spans[at].first <= number

    def touches(self, first: int, last: int) -> bool:
        at = bisect_left(self.spans, first, key=lambda span: span.last)
        return at < len(self.spans) and self.spans[at].first <= last

    def add(self, span: Span) -> None:
        """Adds a range. A number that ends both this and an earlier range gets the earlier of its two storage times."""
        low = bisect_left(self.spans, span.first - 1, key=lambda each: each.last)
        high = low
        first, last = span.first, span.last
        times = {span.first: span.first_us, span.last: span.last_us}
        if span.first == span.last:
            times[span.first] = min(span.first_us, span.last_us)
        while high < len(self.spans) and self.spans[high].first <= span.last + 1:
            known = self.spans[high]
            for number, time_us in ((known.first, known.first_us), (known.last, known.last_us)):
                times[number] = min(time_us, times.get(number, time_us))
            first, last = min(first, known.first), max(last, known.last)
            high += 1
        self.spans[low:high] = [Span(first, last, times[first], times[last])]

    def gaps(self) -> Iterator[Span]:
        """Yields each hole with its first and last missing number, and the storage times of the messages around it."""
        for below, above in pairwise(self.spans):
            yield Span(below.last + 1, above.first - 1, below.last_us, above.first_us)


def spans_of(numbers: list[int], times_us: list[int]) -> Iterator[Span]:
    """Yields the ranges of consecutive numbers in an ascending list."""
    if numbers and numbers[-1] - numbers[0] + 1 == len(numbers):
        yield Span(numbers[0], numbers[-1], times_us[0], times_us[-1])
        return
    begin = 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] > numbers[at - 1] + 1:
            yield Span(numbers[begin], numbers[at - 1], times_us[begin], times_us[at - 1])
            begin = at
