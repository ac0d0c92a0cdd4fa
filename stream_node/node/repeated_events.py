"""RepeatedEvents: counts repeated warnings and errors, and reports them at growing intervals. It writes nothing itself.
A source that is down, or a client that repeats a wrong request, causes the same line at each try. The first one is
written at once. While the event goes on, a line has its count after one second, then after two, up to once in an
hour."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Hashable, Mapping, MutableMapping
from typing import Any

import structlog

FIRST_S, LONGEST_S = 1.0, 3_600.0
"""The shortest and the longest time between two lines about one event. Each is twice the one before."""
QUIET_S = 600.0
"""An event that has not come for this long is a new one."""
EVENTS_MAX = 1_000
"""The largest number of different events that are remembered. Further ones are written each time."""
LEVELS = frozenset({"warning", "error", "critical"})
NUMBERED = frozenset({"partition", "index", "block"})
"""The fields whose numbers name the subject of an event. Other numbers are amounts, and differ each time."""
_DIGITS = re.compile(r"\d+")


class _Event:
    __slots__ = ("count", "interval_s", "latest", "level", "until_s")

    def __init__(self, level: str, now_s: float) -> None:
        self.level = level
        self.interval_s = FIRST_S
        self.until_s = now_s + FIRST_S
        self.count = 0
        self.latest: dict[str, Any] = {}

    def take(self, now_s: float) -> int:
        """Returns the number of events that were not written, and begins to count anew."""
        count, self.count = self.count, 0
        self.interval_s = min(2 * self.interval_s, LONGEST_S)
        self.until_s = now_s + self.interval_s
        return count


class RepeatedEvents:
    """A processor of structlog that drops and counts events. Threads share it."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._events: dict[Hashable, _Event] = {}

    def __call__(self, logger: object, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if level not in LEVELS or "repeated" in event:
            return event
        key, now_s = _key_of(event), self._now_s()
        with self._lock:
            known = self._events.get(key)
            if known is None:
                if len(self._events) < EVENTS_MAX:
                    self._events[key] = _Event(level, now_s)
                return event
            if now_s < known.until_s:
                known.count += 1
                known.latest = dict(event)
                raise structlog.DropEvent
            count = known.take(now_s)
        return {**event, "repeated": count + 1} if count else event

    def tell(self, logger: Any, *, is_end: bool = False) -> None:
        """Writes the events that were counted for long enough; all of them at the end. The caller calls this every
        second."""
        now_s, due = self._now_s(), []
        with self._lock:
            for key, event in list(self._events.items()):
                if event.count and (is_end or now_s >= event.until_s):
                    due.append((event.level, {**event.latest, "repeated": event.take(now_s)}))
                elif not event.count and now_s >= event.until_s + QUIET_S:
                    del self._events[key]
        for level, fields in due:
            getattr(logger, level)(fields.pop("event"), **fields)


def _key_of(event: Mapping[str, Any]) -> Hashable:
    """Returns the part that equal events share: their texts, without the port of a peer and the numbers of a reason."""
    return tuple(
        (name, _DIGITS.sub("0", value) if name == "reason" else value.rpartition(":")[0] if name == "peer" else value)
        for name, value in event.items()
        if isinstance(value, str) or name in NUMBERED
    )
