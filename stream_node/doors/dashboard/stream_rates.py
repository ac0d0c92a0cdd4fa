"""StreamRates: the number of messages per second that each stream has got lately."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

LOOKS = 6
"""The number of samples that a rate is computed from."""


class StreamRates:
    """The numbers of messages that streams got between the latest samples. A stream that got none takes no memory."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=LOOKS)

    def look(self, growth: Mapping[str, int], now_s: float) -> None:
        """Records the number of messages that streams got since the last sample. now_s: of a clock that is never set
        back."""
        self._looks.append((now_s, growth))

    def known(self) -> dict[str, float] | None:
        """Returns the messages per second of each stream that got messages; None if the rates are not known yet."""
        if len(self._looks) < 2 or self._looks[-1][0] <= self._looks[0][0]:
            return None
        # The messages of the first sample came before it, so they belong to no interval.
        seconds = self._looks[-1][0] - self._looks[0][0]
        found: dict[str, float] = {}
        for _, growth in list(self._looks)[1:]:
            for stream, messages in growth.items():
                found[stream] = found.get(stream, 0.0) + messages / seconds
        return found
