"""The metrics of mirrors: how many there are in each condition, and how far each stream is behind its source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from stream_node.doors.metrics.family import WHOLE, Values
from stream_node.doors.metrics.snapshot import Snapshot
from stream_node.fleet.mirror.protocol import PRIMARIES, MirrorCondition, MirrorState

STREAMS_NAMED_MAX = 100
"""The largest number of streams that the metrics name: the greatest lag first, and of equal ones the longest."""


def _conditions(snapshot: Snapshot) -> Values:
    found = Counter(each.condition for each in snapshot.statistics.services.mirrors)
    return {condition.name.lower(): found[condition] for condition in MirrorCondition}


def _by_stream(join: Callable[[list[MirrorState]], float]) -> Callable[[Snapshot], Values]:
    """Returns a function that joins the states of all partitions of each stream into one value."""

    def values(snapshot: Snapshot) -> Values:
        streams: dict[str, list[MirrorState]] = {}
        for each in snapshot.statistics.services.mirrors:
            if each.condition not in PRIMARIES:
                streams.setdefault(each.stream_name, []).append(each)
        named = sorted(streams, key=lambda name: (-_lag(streams[name]), -_lag_s(streams[name]), name))
        return {name: join(streams[name]) for name in named[:STREAMS_NAMED_MAX]}

    return values


def _lag(states: list[MirrorState]) -> float:
    return sum(each.lag for each in states)


def _lag_s(states: list[MirrorState]) -> float:
    return max(each.lag_us for each in states) / 1e6


MIRROR_METRICS = (
    WHOLE.gauge("mirrors", _conditions, "Partitions that are mirrors, or fence their former source.", "condition"),
    WHOLE.gauge(
        "mirror_lag_messages",
        _by_stream(_lag),
        "Messages that a mirror lacked when it last heard of its source.",
        "stream",
    ),
    WHOLE.gauge(
        "mirror_lag_seconds",
        _by_stream(_lag_s),
        "For how long a mirror has lacked messages of its source, or has not reached it.",
        "stream",
    ),
)
