"""Decides when a lost connection is made again: growing delays with jitter. Time and randomness are arguments."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

GROWTH = 1.2
"""With this growth the next delay is at most a fifth of the time that the node has been away, so that clients notice a
node that was away for some seconds within half a second. With doubled delays the outage would be twice as long."""


class Reconnect(msgspec.Struct, frozen=True, kw_only=True):
    """How a lost connection is made again.

    delay_s: the first delay. Each delay is GROWTH times the one before, up to delay_s_max, and a random part of up to
    half of it is left out, so that many clients do not come back together.

    give_up_s: when no connection has brought anything for this long, every waiting request fails with NodeUnreachable,
    and each later request fails at the next attempt. Attempts go on. None: requests wait for ever.
    """

    delay_s: float = 0.05
    delay_s_max: float = 5.0
    give_up_s: float | None = None


class Backoff:
    """Counts the attempts since the last connection that brought anything.

    A connection that is accepted and brings nothing is one more failed attempt.
    """

    def __init__(self, reconnect: Reconnect, random: Callable[[], float]) -> None:
        """random: draws from 0 to 1."""
        self._reconnect = reconnect
        self._random = random
        self._delay_s = reconnect.delay_s
        self._lost_at_s: float | None = None

    def lost(self, now_s: float) -> None:
        """Note that there is no connection. Safe to repeat."""
        if self._lost_at_s is None:
            self._lost_at_s = now_s

    def next_delay_s(self) -> float:
        """How long to wait before the next attempt."""
        delay_s = self._delay_s * (0.5 + 0.5 * self._random())
        self._delay_s = min(GROWTH * self._delay_s, self._reconnect.delay_s_max)
        return delay_s

    def is_over(self, now_s: float) -> bool:
        """Whether `give_up_s` has passed, so that waiting requests are to fail."""
        give_up_s = self._reconnect.give_up_s
        return give_up_s is not None and self._lost_at_s is not None and now_s - self._lost_at_s >= give_up_s

    def succeeded(self) -> None:
        """Note that a connection has brought something; the delays begin anew."""
        self._lost_at_s = None
        self._delay_s = self._reconnect.delay_s
