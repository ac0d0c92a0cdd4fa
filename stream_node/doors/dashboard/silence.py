"""Silence: finds streams that got messages in a steady rhythm and now get none for several times as long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

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
        """Records the streams that got messages since the last sample. Deleted or moved ones (closed) are forgotten."""
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
        found, forgotten = [], []
        for stream, rhythm in self._rhythms.items():
            silent_s = now_s - rhythm.last_s
            if silent_s > FORGET_S:
                forgotten.append(stream)
            elif rhythm.looks >= LOOKS_MIN and silent_s > max(SILENT_S_MIN, PAUSES * rhythm.pause_s):
                found.append(Silent(stream, rhythm.pause_s, silent_s))
        for stream in forgotten:
            del self._rhythms[stream]
        return sorted(found, key=lambda silent: silent.silent_s)
