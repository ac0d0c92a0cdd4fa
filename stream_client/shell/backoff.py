"""When a lost connection is made again: growing delays with jitter. It keeps no time and draws no numbers itself."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

GROWTH = 1.2
"""A node that was away for some seconds is noticed within half a second, since the next delay is at most a fifth of the
time that it has been away. With doubled delays it would be away twice as long for its clients."""


class Reconnect(msgspec.Struct, frozen=True, kw_only=True):
    """How a lost connection is made again: delays in seconds, each GROWTH times the one before, up to delay_s_max.

    A delay is drawn between its half and its whole, so that many clients do not come back together.

    give_up_s: after so long without a connection that brings anything, everything that waits fails with
    NodeUnreachable, and what is asked later fails at the next attempt; attempts go on. None waits for ever.
    """

    delay_s: float = 0.05
    delay_s_max: float = 5.0
    give_up_s: float | None = None


class Backoff:
    """The attempts since the last connection that brought anything: one that is accepted and brings nothing is none."""

    def __init__(self, reconnect: Reconnect, random: Callable[[], float]) -> None:
        """random: draws from 0 to 1."""
        self._reconnect = reconnect
        self._random = random
        self._delay_s = reconnect.delay_s
        self._lost_at_s: float | None = None

    def lost(self, now_s: float) -> None:
        """There is no connection any more. Safe to repeat."""
        if self._lost_at_s is None:
            self._lost_at_s = now_s

    def next_delay_s(self) -> float:
        """How long to wait before the next attempt."""
        delay_s = self._delay_s * (0.5 + 0.5 * self._random())
        self._delay_s = min(GROWTH * self._delay_s, self._reconnect.delay_s_max)
        return delay_s

    def is_over(self, now_s: float) -> bool:
        """Whether it has been so long that nobody should wait any more."""
        give_up_s = self._reconnect.give_up_s
        return give_up_s is not None and self._lost_at_s is not None and now_s - self._lost_at_s >= give_up_s

    def succeeded(self) -> None:
        """A connection has brought something."""
        self._lost_at_s = None
        self._delay_s = self._reconnect.delay_s
