"""The ranges of indexes that were taken from each partition. They tell new messages from known ones, also after the
export has merged files, and the holes between them are the rows of gold/index_gaps. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

Source: TypeAlias = tuple[str, int, int]
"""A stream, an era of the stream and a partition."""


@dataclass(slots=True)
class Span:
    """Consecutive numbers: first to last, both included. first_us, last_us: when their messages were stored, in
    microseconds since 1970."""

    first: int
    last: int
    first_us: int
    last_us: int


class Intervals:
    """Spans of one sequence of numbers, ascending, with a hole between neighbours."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self.spans = list(spans)

    def covers(self, number: int) -> bool:
        """Whether this number was added."""
        at = bisect_left(self.spans, number, key=lambda span: span.last)
        return at < len(self.spans) and self.spans[at].first <= number

    def touches(self, first: int, last: int) -> bool:
        """Whether a number from first to last, both included, was added."""
        at = bisect_left(self.spans, first, key=lambda span: span.last)
        return at < len(self.spans) and self.spans[at].first <= last

    def add(self, span: Span) -> None:
        """Adds numbers. A number that is at the end of a span already keeps its earlier time."""
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
        """Yields the holes: first and last missing number, and the times of the numbers just before and just after."""
        for below, above in pairwise(self.spans):
            yield Span(below.last + 1, above.first - 1, below.last_us, above.first_us)


def spans_of(numbers: list[int], times_us: list[int]) -> Iterator[Span]:
    """Yields the spans of these ascending numbers. times_us: of each number."""
    if numbers and numbers[-1] - numbers[0] + 1 == len(numbers):
        yield Span(numbers[0], numbers[-1], times_us[0], times_us[-1])
        return
    begin = 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] > numbers[at - 1] + 1:
            yield Span(numbers[begin], numbers[at - 1], times_us[begin], times_us[at - 1])
            begin = at
