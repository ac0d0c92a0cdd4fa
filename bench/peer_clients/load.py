"""The load that a client of a peer is given, and the pace of a load that has a rate."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

TICK_S = 0.001
"""The longest sleep between two groups of pushes of a load with a rate, in seconds."""


class Load(NamedTuple):
    """The load of one measurement.

    messages, seconds: the load ends with whichever comes first. window: pushes that may be unconfirmed, or messages a
    page. streams: the number of streams to which pushes go in turn; the names of several streams begin with `stream`.
    rate: pushes that become due in a second, for a load with a rate. timed_every: one push in this many is timed.
    """

    stream: str
    messages: int
    size_bytes: int
    window: int = 1
    streams: int = 1
    seconds: float = 1e9
    rate: float = 0.0
    timed_every: int = 1


class Done(NamedTuple):
    """The result of a load: its messages, its seconds, and the times of single requests in microseconds."""

    messages: int
    seconds: float
    times_us: list[float]


class Clock:
    """Measures one load from its construction on."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self.started_ns = time.perf_counter_ns()
        self.times_us: list[float] = []

    def goes_on(self, messages: int) -> bool:
        """Whether the load has more to do after `messages` messages."""
        passed_s = (time.perf_counter_ns() - self.started_ns) / 1e9
        return messages < self._load.messages and passed_s < self._load.seconds

    def add(self, since_ns: int) -> None:
        """Adds the time that has passed since `since_ns`."""
        self.times_us.append((time.perf_counter_ns() - since_ns) / 1e3)

    def done(self, messages: int) -> Done:
        return Done(messages, (time.perf_counter_ns() - self.started_ns) / 1e9, self.times_us)


class Pace:
    """Says which pushes of a load with a rate are due. The times of pushes count from when they were due, not from when
    the client came to them, so that a client that waits for a slow server does not hide the wait."""

    def __init__(self, load: Load) -> None:
        self._interval_ns = 1e9 / load.rate
        self._messages = min(load.messages, int(load.rate * load.seconds))
        self._started_ns = time.perf_counter_ns()
        self.given = 0

    @property
    def is_over(self) -> bool:
        return self.given >= self._messages

    def due(self) -> range:
        """The numbers of the pushes that have become due since the last call."""
        passed_ns = time.perf_counter_ns() - self._started_ns
        until = min(self._messages, int(passed_ns / self._interval_ns) + 1)
        numbers = range(self.given, until)
        self.given = max(self.given, until)
        return numbers

    def due_ns(self, number: int) -> int:
        """When this push was due, on the performance counter."""
        return self._started_ns + int(number * self._interval_ns)

    def sleep_s(self) -> float:
        """The time until the next push is due, at most TICK_S."""
        left_ns = self.due_ns(self.given) - time.perf_counter_ns()
        return min(TICK_S, max(0.0, left_ns / 1e9))


def batches(messages: int, most: int) -> Iterator[int]:
    """Splits a number of messages into batches of at most `most`."""
    while messages > 0:
        yield min(messages, most)
        messages -= most
