"""Patience: how long each consumer may make no progress before it is called stuck. It reads nothing.
A consumer that reads a batch each hour is in no trouble while an hour's messages wait. So the node learns how long
messages usually wait for a consumer (its habit), and the setting `consumer_stuck_after` overrides the habit."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from stream_node.cli.values import UsageError, parse_duration

WAITS = 3.0
"""A consumer is stuck when a message has waited for it this many times as long as messages usually wait."""
STUCK_S_MIN = 5.0
"""The shortest wait after which a consumer is stuck."""
UNKNOWN_S = 900.0
"""The wait after which a consumer is stuck if its habit is not known yet."""
STEPS_MIN = 3
"""The number of samples with progress after which the habit of a consumer is known."""
FADING = 0.995
"""Each sample with progress multiplies the longest wait by this factor, so that a long pause is forgotten in time."""
CONSUMERS_MAX = 10_000
"""The largest number of consumers whose habits are retained. The other consumers have no habit."""
NEVER = "never"

ConsumerKey: TypeAlias = tuple[str, str]


def parse_stuck_after(text: str) -> tuple[re.Pattern[str], float]:
    """Parses CONSUMER=TIME or CONSUMER@STREAM=TIME, an entry of `consumer_stuck_after`. Raises UsageError.
    Returns the pattern of the texts CONSUMER@STREAM to which the entry applies, and their limit in seconds."""
    names, equals, limit = text.rpartition("=")
    if not equals or not names:
        raise UsageError(f"{text!r} is not CONSUMER=TIME or CONSUMER@STREAM=TIME, such as nightly*=1d or old=never")
    wanted = names if "@" in names else f"{names}@*"
    pattern = re.compile(".*".join(map(re.escape, wanted.split("*"))), re.DOTALL)
    return pattern, math.inf if limit == NEVER else parse_duration(limit)


class _Habit:
    """The usual wait of messages for one consumer, learned from samples of its progress."""

    __slots__ = ("saved_us", "since_us", "steps", "usual_s")

    def __init__(self, saved_us: int) -> None:
        self.saved_us = saved_us
        self.since_us: int | None = None  # at the last sample, the time since which a message waited for it
        self.usual_s = 0.0  # the longest usual wait
        self.steps = 0  # the number of samples with progress

    def limit_s(self) -> float:
        usual_s = max(STUCK_S_MIN, WAITS * self.usual_s)
        return usual_s if self.steps >= STEPS_MIN else max(UNKNOWN_S, usual_s)

    def look(self, saved_us: int, since_us: int | None) -> None:
        has_progress, self.saved_us = saved_us != self.saved_us, saved_us
        if has_progress:
            self.steps += 1
            self.usual_s *= FADING
        # A wait ends when the message that waited for longest waits no more: progress in other partitions ends no wait.
        # Once the habit is known, a wait beyond the limit counts as the limit. So the node learns that a consumer has
        # become slower, but one long outage raises the limit only a little.
        if has_progress and self.since_us is not None and (since_us is None or since_us > self.since_us):
            waited_s = (saved_us - self.since_us) / 1e6
            self.usual_s = max(self.usual_s, min(waited_s, self.limit_s()) if self.steps > STEPS_MIN else waited_s)
        self.since_us = since_us


class Patience:
    def __init__(self) -> None:
        self._habits: dict[ConsumerKey, _Habit] = {}
        self._texts: Sequence[str] = ()
        self._entries: list[tuple[re.Pattern[str], float]] = []

    def look(self, saved: Iterable[tuple[str, str, int]], waiting: Mapping[ConsumerKey, int]) -> None:
        """Learns the habits of consumers from a sample. Times are in microseconds since 1970. saved: each consumer, its
        stream, and the time of its last progress. waiting: by consumer, since when a message waits for it."""
        before, self._habits = self._habits, {}
        for client_id, stream, saved_us in saved:
            key = client_id, stream
            if len(self._habits) == CONSUMERS_MAX:
                break
            habit = self._habits[key] = before.get(key) or _Habit(saved_us)
            habit.look(saved_us, waiting.get(key))

    def limit_s(self, client_id: str, stream: str, settings: Sequence[str]) -> float:
        """Returns after how many seconds without progress a consumer is stuck; infinity if it never is.
        settings: the valid entries of `consumer_stuck_after`; the first that matches counts."""
        if settings != self._texts:
            self._texts, self._entries = settings, [parse_stuck_after(each) for each in settings]
        for pattern, limit_s in self._entries:
            if pattern.fullmatch(f"{client_id}@{stream}"):
                return limit_s
        habit = self._habits.get((client_id, stream))
        return UNKNOWN_S if habit is None else habit.limit_s()
