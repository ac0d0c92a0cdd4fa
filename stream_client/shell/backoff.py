"""Decides when to replace a lost connection: after growing, random delays. Time and randomness are arguments."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

GROWTH = 1.2
"""The ratio of a delay to the previous one. A delay is then about a fifth of the time since the first attempt: after an
outage of three seconds, clients notice the node's return about half a second later."""


class Reconnect(msgspec.Struct, frozen=True, kw_only=True):
    """The settings for replacing a lost connection.

    delay_s: the delay before the first attempt, in seconds. Each later delay is 1.2 times the previous one. Each delay
        is shortened by a random part, at most half, so that many clients do not reconnect at the same moment.
    delay_s_max: the longest delay, in seconds.
    give_up_s: when the node has sent no byte for this many seconds while requests wait for it, every waiting request
        fails with NodeUnreachable, also if the connection is still open. Without a connection, each later request fails
        at the next failed attempt. The client checks every two seconds, and the attempts continue. None: only the
        `answer_timeout_s` of `connect` limits how long requests wait.
    """

    delay_s: float = 0.05
    delay_s_max: float = 5.0
    give_up_s: float | None = None


class Backoff:
    """Computes the delay before each attempt to connect, and decides when waiting requests must fail. A connection that
    is accepted but brings no bytes counts as a failed attempt."""

    def __init__(self, reconnect: Reconnect, random: Callable[[], float]) -> None:
        """random: a function that returns a random number between 0 and 1."""
        self._reconnect = reconnect
        self._random = random
        self._delay_s = reconnect.delay_s
        self._lost_at_s: float | None = None
        self._received_bytes = 0

    def lost(self, now_s: float) -> None:
        """Records when the connection was lost. Later calls change nothing until `succeeded` or `watch` resets it."""
        if self._lost_at_s is None:
            self._lost_at_s = now_s

    def watch(self, now_s: float, received_bytes: int, *, awaits: bool) -> bool:
        """Records at a check for late answers how many bytes the client has received in all, and whether a request
        waits whose answer is due (`awaits`). Returns whether waiting requests must fail (`is_over`)."""
        if received_bytes > self._received_bytes or not awaits:
            self._received_bytes = received_bytes
            self._lost_at_s = None
            return False
        # A connection over which nothing comes counts as lost from the first check at which requests wait.
        self.lost(now_s)
        return self.is_over(now_s)

    def next_delay_s(self) -> float:
        """Returns the seconds to wait before the next attempt to connect, and raises the bound of later delays."""
        delay_s = self._delay_s * (0.5 + 0.5 * self._random())
        self._delay_s = min(GROWTH * self._delay_s, self._reconnect.delay_s_max)
        return delay_s

    def is_over(self, now_s: float) -> bool:
        give_up_s = self._reconnect.give_up_s
        return give_up_s is not None and self._lost_at_s is not None and now_s - self._lost_at_s >= give_up_s

    def succeeded(self) -> None:
        """Records that a connection has brought bytes. The next delay is the shortest one again."""
        self._lost_at_s = None
        self._delay_s = self._reconnect.delay_s
