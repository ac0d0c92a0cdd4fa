"""Silence: finds streams that got messages in a steady rhythm and get none any more. The caller gives it the times
and the numbers of messages.

A stream to which somebody pushes now and then is never called silent: the rhythm is the longest pause between pushes
that the node has seen, and a pause must be several times longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

LOOKS_MIN = 10
"""The number of looks with new messages after which a stream has a rhythm."""
PAUSES = 3.0
"""A stream is silent when it gets no message for this many times its longest pause."""
SILENT_S_MIN = 5.0
"""The shortest silence that is shown, in seconds."""
FORGET_S = 3600.0
"""After a silence of this many seconds, the stream has no rhythm any more."""


class Silent(NamedTuple):
    """A silent stream. pause_s: its longest pause before the silence. silent_s: how long it is silent, in seconds."""

    stream: str
    pause_s: float
    silent_s: float


class _Rhythm:
    __slots__ = ("last_s", "looks", "pause_s", "written")

    def __init__(self, written: int, now_s: float) -> None:
        self.written = written
        self.last_s = now_s
        self.looks = 0
        self.pause_s = 0.0


class Silence:
    """The rhythms of all streams of one node."""

    def __init__(self) -> None:
        self._rhythms: dict[str, _Rhythm] = {}

    def look(self, written: Mapping[str, int], now_s: float) -> None:
        """Records the number of messages that were ever written to each stream. now_s: the time of a clock that is
        never set back, in seconds."""
        for gone in self._rhythms.keys() - written.keys():
            del self._rhythms[gone]
        for stream, count in written.items():
            rhythm = self._rhythms.get(stream)
            if rhythm is None:
                self._rhythms[stream] = _Rhythm(count, now_s)
            elif count != rhythm.written:
                # The pause before the first message says nothing: the stream may have been unused for days.
                if rhythm.looks:
                    rhythm.pause_s = max(rhythm.pause_s, now_s - rhythm.last_s)
                rhythm.written, rhythm.last_s = count, now_s
                rhythm.looks += 1
            elif rhythm.looks and now_s - rhythm.last_s > FORGET_S:
                rhythm.looks, rhythm.pause_s = 0, 0.0

    def find(self, now_s: float) -> list[Silent]:
        """Returns the silent streams, the one with the latest silence first."""
        found = []
        for stream, rhythm in self._rhythms.items():
            silent_s = now_s - rhythm.last_s
            if rhythm.looks >= LOOKS_MIN and silent_s > max(SILENT_S_MIN, PAUSES * rhythm.pause_s):
                found.append(Silent(stream, rhythm.pause_s, silent_s))
        return sorted(found, key=lambda silent: silent.silent_s)
