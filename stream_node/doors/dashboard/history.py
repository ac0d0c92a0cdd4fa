"""The records of the dashboard's task from the last quarter of an hour: samples of the counters (History), rates of
streams (StreamRates), streams without their usual messages (Silence), and mirrors in trouble (MirrorWatch)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from operator import sub
from typing import NamedTuple

import msgspec

from stream_node.care.trouble import Texts, Trouble, TroubleKind
from stream_node.doors.dashboard.rendering import duration, link
from stream_node.fleet.mirror.protocol import MirrorCondition, MirrorState
from stream_node.node.parts import NodeParts
from stream_storage.histogram import SECONDS

INTERVAL_S = 2.0
SAMPLES_MAX = 450
"""The number of retained samples: a quarter of an hour."""


class Sample(NamedTuple):
    """The counters at one time. confirms, commits: the counts in the buckets of a latency `Histogram`."""

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
        # The pages get times in milliseconds, and ask for later points. A point with an exact time would come twice.
        round(time_s, 3),
        counters.pushes,
        counters.pulled,
        counters.push_bytes,
        counters.pulled_bytes,
        tuple(counters.confirm_seconds.counts),
        tuple(parts.runner.writer.commit_seconds.counts),
    )


class History:
    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    def add(self, sample: Sample) -> None:
        self._samples.append(sample)

    def points(self, after_s: float = 0.0) -> list[Point]:
        return [_point(before, now) for before, now in pairwise(self._samples) if now.time_s > after_s]

    def latest(self) -> Point | None:
        return _point(self._samples[-2], self._samples[-1]) if len(self._samples) > 1 else None


def _point(before: Sample, now: Sample) -> Point:
    # The wall clock can be set back between two samples.
    seconds = max(now.time_s - before.time_s, 0.001)
    pushes_s, pulled_s, push_bytes_s, pulled_bytes_s = (
        (after - earlier) / seconds for earlier, after in zip(before[1:5], now[1:5], strict=True)
    )
    confirms, commits = list(map(sub, now.confirms, before.confirms)), list(map(sub, now.commits, before.commits))
    latency_ms = quantile_ms(confirms, 0.5), quantile_ms(confirms, 0.99), quantile_ms(commits, 0.99)
    return Point(now.time_s, pushes_s, pulled_s, push_bytes_s, pulled_bytes_s, *latency_ms)


def quantile_ms(counts: Sequence[int], share: float, bounds: Sequence[float] = SECONDS) -> float | None:
    """Returns the time below which this share of events lies, as Prometheus estimates it; None without events.
    counts: the events of each bucket, taken as spread evenly in it. The last bucket counts as its lower bound."""
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


class StreamRates:
    """The numbers of messages that streams got between the latest samples. A stream that got none takes no memory."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=LOOKS)

    def look(self, growth: Mapping[str, int], now_s: float) -> None:
        """Records the messages per stream since the last sample. now_s: the time of a clock that is never set back."""
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


LOOKS_MIN = 10
"""The number of samples with new messages after which a stream has a rhythm."""
PAUSES = 3.0
"""A stream is silent when it gets no message for this many times its longest pause."""
SILENT_S_MIN = 5.0
FORGET_S = 3600.0


class Silent(NamedTuple):
    """A silent stream. pause_s: its longest pause before the silence. silent_s: how long it is silent."""

    stream: str
    pause_s: float
    silent_s: float


class _Rhythm(msgspec.Struct):
    last_s: float
    looks: int = 1
    pause_s: float = 0.0


class Silence:
    def __init__(self) -> None:
        self._rhythms: dict[str, _Rhythm] = {}

    def look(self, grown: Iterable[str], closed: Iterable[str], now_s: float) -> None:
        """Records the streams that got messages since the last sample. closed: deleted or moved streams to forget."""
        for stream in grown:
            rhythm = self._rhythms.get(stream)
            if rhythm is None:
                # The pause before the first message says nothing: the stream may have been unused for days.
                self._rhythms[stream] = _Rhythm(now_s)
            else:
                rhythm.pause_s = max(rhythm.pause_s, now_s - rhythm.last_s)
                rhythm.last_s = now_s
                rhythm.looks += 1
        for stream in closed:
            self._rhythms.pop(stream, None)

    def find(self, now_s: float) -> list[Silent]:
        """Returns the silent streams, the latest silence first. Forgets the streams that were silent for too long."""
        self._rhythms = {name: each for name, each in self._rhythms.items() if now_s - each.last_s <= FORGET_S}
        found = [
            Silent(stream, rhythm.pause_s, now_s - rhythm.last_s)
            for stream, rhythm in self._rhythms.items()
            if rhythm.looks >= LOOKS_MIN and now_s - rhythm.last_s > max(SILENT_S_MIN, PAUSES * rhythm.pause_s)
        ]
        return sorted(found, key=lambda silent: silent.silent_s)


LASTS_S_MIN = 30.0
"""How long a mirror may not follow, or a promotion may take, before that is a trouble."""
KINDS: dict[MirrorCondition, TroubleKind] = {
    MirrorCondition.CIRCLE: "mirror_circle",
    MirrorCondition.UNFENCED: "mirror_unfenced",
    MirrorCondition.PROMOTING: "mirror_promoting",
    MirrorCondition.PARTED: "mirror_parted",
    MirrorCondition.UNREACHABLE: "mirror_not_following",
    MirrorCondition.FAILED: "mirror_not_following",
}
"""The conditions that are troubles, the worst first."""
MAY_PASS: frozenset[TroubleKind] = frozenset({"mirror_promoting", "mirror_not_following"})
"""The troubles that may pass by themselves, and so must last LASTS_S_MIN seconds."""


class _Since(NamedTuple):
    kind: TroubleKind
    since_s: float
    state: MirrorState


class MirrorWatch:
    def __init__(self) -> None:
        self._found: dict[tuple[str, int], _Since] = {}

    def look(self, states: Sequence[MirrorState], now_s: float) -> None:
        before, self._found = self._found, {}
        for state in states:
            kind = KINDS.get(state.condition)
            if kind is None:
                continue
            identity = (state.stream_name, state.partition)
            known = before.get(identity)
            since_s = known.since_s if known is not None and known.kind == kind else now_s
            self._found[identity] = _Since(kind, since_s, state)

    def find(self, now_s: float) -> list[Trouble]:
        """Returns the troubles of mirrors, one for each kind and stream, the worst first."""
        worst = list(KINDS.values())
        longest: dict[tuple[TroubleKind, str], _Since] = {}
        # Of the partitions of a stream, the one that is in trouble for the longest time stands for all.
        for each in sorted(self._found.values(), key=lambda each: (worst.index(each.kind), each.since_s)):
            if each.kind not in MAY_PASS or now_s - each.since_s >= LASTS_S_MIN:
                longest.setdefault((each.kind, each.state.stream_name), each)
        return [
            Trouble(kind, subject=(name,), lasts_s=now_s - each.since_s, about=each, write=_texts)
            for (kind, name), each in longest.items()
        ]


def _texts(found: _Since, lasts_s: float) -> Texts:
    state, (title, remedy) = found.state, _TEXTS[found.kind]
    reason = f": {state.reason}" if state.reason else ""
    values = {"name": state.stream_name, "source": state.source, "lasts": duration(lasts_s), "reason": reason}
    return title.format_map(values), remedy.format_map(values), link("/mirrors"), "The mirrors"


_TEXTS: dict[TroubleKind, tuple[str, str]] = {
    "mirror_circle": (
        "Nobody takes pushes for {name}: this node and {source} follow each other",
        "Promote the stream on one of both.",
    ),
    "mirror_unfenced": (
        "Two nodes may take pushes for {name}, this one and its former source {source}{reason}",
        "Decide which one is right, and make the other one its mirror (stream-node mirror add --force). If that cannot "
        "be a mirror, stop its publishers, and remove the mirror here.",
    ),
    "mirror_promoting": (
        "The promotion of {name} has taken {lasts}, and the stream takes no pushes here meanwhile{reason}",
        "Look whether the source {source} runs and can be reached from this node; the promotion goes on by itself "
        "then. If the source is lost, promote without it.",
    ),
    "mirror_parted": (
        "{name} does not follow {source}{reason}",
        "Look at both streams, and decide which one is right. The other one follows it after stream-node mirror add "
        "--force, which keeps its messages aside.",
    ),
    "mirror_not_following": (
        "{name} has not followed {source} for {lasts}{reason}",
        "Look whether the source runs, can be reached from this node, and gives it the rights; the mirror goes on by "
        "itself then. If the source is lost, promote the mirror without it.",
    ),
}
