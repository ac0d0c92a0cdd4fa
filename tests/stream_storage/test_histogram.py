"""Goal: a histogram has each value in the bucket that Prometheus means: above the bound before, at most its own bound.

Method: values at, just below and just above each bound, against a count by comparison.
"""

from __future__ import annotations

import math

from stream_storage.histogram import COUNTS, SECONDS, Histogram


def test_values_are_in_their_buckets() -> None:
    for bounds in (SECONDS, COUNTS):
        values = [
            each for bound in bounds for each in (bound, math.nextafter(bound, 0), math.nextafter(bound, math.inf))
        ]
        histogram = Histogram(bounds)
        for value in values:
            histogram.add(value)
        below = [sum(value <= bound for value in values) for bound in (*bounds, math.inf)]
        assert [sum(histogram.counts[: at + 1]) for at in range(len(below))] == below
        assert math.isclose(histogram.total, math.fsum(values))


def test_a_weight_counts_a_value_several_times() -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.add(1.5, 3)
    assert (histogram.counts, histogram.total) == ([0, 3, 0], 4.5)
