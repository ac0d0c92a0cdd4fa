"""StreamRates: the number of messages per second that each stream has got lately."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

LOOKS = 6
"""The number of looks that a rate is computed from."""


class StreamRates:
    """The numbers of messages ever written to each stream, at the latest looks."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=LOOKS)

    def look(self, written: Mapping[str, int], now_s: float) -> None:
        """Records the number of messages that were ever written to each stream. now_s: the time of a clock that is
        never set back, in seconds."""
        self._looks.append((now_s, written))

    def forget(self) -> None:
        """Forgets all looks, so that no rate is known."""
        self._looks.clear()

    def find(self, stream: str) -> float | None:
        """Returns the messages per second of a stream, or None if it is not known."""
        if len(self._looks) < 2:
            return None
        (before_s, before), (now_s, now) = self._looks[0], self._looks[-1]
        if stream not in before or stream not in now or now_s <= before_s:
            return None
        # A stream that was deleted and made again begins anew.
        return max(0, now[stream] - before[stream]) / (now_s - before_s)
