"""History: samples of the counters of a node in the last quarter of an hour, with their rates and latencies."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from operator import sub
from typing import NamedTuple

from stream_node.node.parts import NodeParts
from stream_storage.histogram import SECONDS

INTERVAL_S = 2.0
SAMPLES_MAX = 450
"""The number of retained samples: a quarter of an hour."""


class Sample(NamedTuple):
    """The counters at one time, in seconds since 1970. confirms, commits: the buckets of their `Histogram`."""

    time_s: float
    pushes: int
    pulled: int
    push_bytes: int
    pulled_bytes: int
    confirms: tuple[int, ...]
    commits: tuple[int, ...]


class Point(NamedTuple):
    """The rates and latency quantiles between two samples; a quantile is None without events. time_s: the end."""

    time_s: float
    pushes_s: float
    pulled_s: float
    push_bytes_s: float
    pulled_bytes_s: float
    confirm_p50_ms: float | None
    confirm_p99_ms: float | None
    commit_p99_ms: float | None


def take_sample(parts: NodeParts, time_s: float) -> Sample:
    counters = parts.services.directory.counters
    return Sample(
        # The pages get times in milliseconds and ask for what came later. An exact time would be later than itself.
        round(time_s, 3),
        counters.pushes,
        counters.pulled,
        counters.push_bytes,
        counters.pulled_bytes,
        tuple(counters.confirm_seconds.counts),
        tuple(parts.runner.histograms.commit_seconds.counts),
    )


class History:
    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    def add(self, sample: Sample) -> None:
        self._samples.append(sample)

    def points(self, after_s: float = 0.0) -> list[Point]:
        pairs = itertools.pairwise(self._samples)
        return [_point(before, now) for before, now in pairs if now.time_s > after_s]

    def latest(self) -> Point | None:
        return _point(self._samples[-2], self._samples[-1]) if len(self._samples) > 1 else None


def _point(before: Sample, now: Sample) -> Point:
    # The wall clock can be set back between two samples.
    seconds = max(now.time_s - before.time_s, 0.001)
    confirms = list(map(sub, now.confirms, before.confirms))
    commits = list(map(sub, now.commits, before.commits))
    return Point(
        time_s=now.time_s,
        pushes_s=(now.pushes - before.pushes) / seconds,
        pulled_s=(now.pulled - before.pulled) / seconds,
        push_bytes_s=(now.push_bytes - before.push_bytes) / seconds,
        pulled_bytes_s=(now.pulled_bytes - before.pulled_bytes) / seconds,
        confirm_p50_ms=quantile_ms(confirms, 0.5),
        confirm_p99_ms=quantile_ms(confirms, 0.99),
        commit_p99_ms=quantile_ms(commits, 0.99),
    )


def quantile_ms(counts: Sequence[int], share: float, bounds: Sequence[float] = SECONDS) -> float | None:
    """Returns the time below which this share of events lies, as Prometheus estimates it; None without events.
    counts: the events of each bucket, taken as spread evenly in it. In the last bucket, all are at its lower bound."""
    total = sum(counts)
    if not total:
        return None
    wanted, below = share * total, 0
    for number, count in enumerate(counts):
        if count and below + count >= wanted:
            if number == len(bounds):
                break
            lower = bounds[number - 1] if number else 0.0
            return 1000 * (lower + (bounds[number] - lower) * (wanted - below) / count)
        below += count
    return 1000 * bounds[-1]


LOOKS = 6
"""The number of samples that a rate is computed from."""


class StreamRates:
    """The numbers of messages that streams got between the latest samples. A stream that got none takes no memory."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=LOOKS)

    def look(self, growth: Mapping[str, int], now_s: float) -> None:
        """Records the messages per stream since the last sample. now_s: of a clock that is never set back."""
        self._looks.append((now_s, growth))

    def known(self) -> dict[str, float] | None:
        """Returns the messages per second of each stream that got messages; None if the rates are not known yet."""
        if len(self._looks) < 2 or self._looks[-1][0] <= self._looks[0][0]:
            return None
        # The messages of the first sample came before it, so they belong to no interval.
        seconds = self._looks[-1][0] - self._looks[0][0]
        found = Counter[str]()
        for _, growth in list(self._looks)[1:]:
            found.update(growth)
        return {stream: messages / seconds for stream, messages in found.items()}
