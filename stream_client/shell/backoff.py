"""Decides when to replace a lost connection: after growing delays with jitter. Time and randomness are arguments."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

GROWTH = 1.2
"""With this growth the next delay is at most a fifth of the time that the node has been away, so that clients notice a
node that was away for some seconds within half a second. With doubled delays the outage would be twice as long."""


class Reconnect(msgspec.Struct, frozen=True, kw_only=True):
    """The settings for replacing a lost connection.

    delay_s: the delay before the first attempt. Each later delay is GROWTH times the one before, up to delay_s_max.
    Each delay is shortened by a random part, at most half of it, so that many clients do not return at the same moment.

    give_up_s: when no connection has brought a byte for this long, every waiting request fails with NodeUnreachable,
    and each later request fails at the next failed attempt. The attempts themselves go on. None: requests wait for
    ever.
    """

    delay_s: float = 0.05
    delay_s_max: float = 5.0
    give_up_s: float | None = None


class Backoff:
    """Computes the delay before each attempt to connect, and decides when waiting requests must fail.

    A connection that is accepted but brings no bytes counts as a failed attempt.
    """

    def __init__(self, reconnect: Reconnect, random: Callable[[], float]) -> None:
        """random: a function that returns a random number between 0 and 1."""
        self._reconnect = reconnect
        self._random = random
        self._delay_s = reconnect.delay_s
        self._lost_at_s: float | None = None

    def lost(self, now_s: float) -> None:
        """Note the time at which there was no connection any more. Safe to repeat."""
        if self._lost_at_s is None:
            self._lost_at_s = now_s

    def next_delay_s(self) -> float:
        """Return how many seconds to wait before the next attempt, and make the following delay longer."""
        delay_s = self._delay_s * (0.5 + 0.5 * self._random())
        self._delay_s = min(GROWTH * self._delay_s, self._reconnect.delay_s_max)
        return delay_s

    def is_over(self, now_s: float) -> bool:
        """Whether `give_up_s` has passed without a connection, so that waiting requests must fail."""
        give_up_s = self._reconnect.give_up_s
        return give_up_s is not None and self._lost_at_s is not None and now_s - self._lost_at_s >= give_up_s

    def succeeded(self) -> None:
        """Note that a connection has brought bytes, so that the delays begin again with the shortest."""
        self._lost_at_s = None
        self._delay_s = self._reconnect.delay_s
