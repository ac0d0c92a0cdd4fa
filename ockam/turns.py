"""Shares the time of the event loop between connections, so that a few, or thousands, cannot keep all others waiting.

All connections run in one thread, and what one read brings is worked off in one piece. While there is time for all,
nobody waits here. When the loop is busy, connections take turns: in each turn of the loop only so much work is let in,
and who has used little time lately goes first. It reads no sockets; what a step of work is, its callers know.
"""

from __future__ import annotations

import math
from collections import deque

import trio

BUSY_S = 0.03
"""The loop is busy with more recent work than this; work wears off by BUSY_SHARE of the time that passes."""
BUSY_SHARE = 0.8
LIGHT_S = 0.005
"""A connection with no more recent work than this goes first; its work wears off by LIGHT_SHARE of the time."""
LIGHT_SHARE = 0.1
TURN_LIGHT_S = 0.006
"""How much work of connections that go first is let in with each turn of the loop."""
TURN_OTHERS_S = 0.004
"""The same of all others: those that have used more, are new, or are leaving. So neither can shut the other out."""
STEP_S = 0.003
"""The longest step that a connection should make while the loop is busy."""
STEP_QUIET_S = 0.01
"""The same while it is not."""
COST_S = 0.0002
"""What a step is taken to cost before any was measured."""
LIGHT_ABOUT_S = 0.1
"""Connections that use little are taken to be about for this long after the last of them had its turn."""
PAUSE_S = 0.001
"""While connections that use little are about, the loop rests this long in each turn: the writing thread, which their
answers wait for, gets the interpreter's lock at once then, and else only every 5 ms."""
LEAVE_S = 0.0005
"""What the end of a connection costs, in its several steps together."""
READ_BYTES_MAX = 256 * 1024
READ_BYTES_MIN = 4 * 1024
READ_BYTES_FIRST = 16 * 1024


class Share:
    """What one connection has used lately, and how much it may read at a time.

    host: of the other side. Connections of one host take turns among themselves, hosts take turns with each other.
    """

    __slots__ = ("_at_s", "_used_s", "cost_s", "host", "is_known", "read_bytes")

    def __init__(self, host: str) -> None:
        self.host = host
        self.is_known = False
        self.read_bytes = READ_BYTES_FIRST
        self.cost_s = COST_S
        self._used_s = 0.0
        self._at_s = -math.inf

    def used_s(self, now_s: float) -> float:
        """Its recent work."""
        return max(0.0, self._used_s - (now_s - self._at_s) * LIGHT_SHARE) if self._used_s else 0.0

    def note(self, now_s: float, cost_s: float) -> None:
        self._used_s = self.used_s(now_s) + cost_s
        self._at_s = now_s
        self.cost_s = cost_s


class TurnQueue:
    """Connections that wait for their turn: hosts in turn, and in the order of arrival within a host."""

    def __init__(self) -> None:
        self._hosts: dict[str, deque[tuple[Share, trio.Event]]] = {}

    def __bool__(self) -> bool:
        return bool(self._hosts)

    def add(self, share: Share) -> trio.Event:
        turn = trio.Event()
        self._hosts.setdefault(share.host, deque()).append((share, turn))
        return turn

    def let_in(self, budget_s: float) -> None:
        """Give the next ones their turn, at least one, until their steps are likely to take that long."""
        while self._hosts and budget_s > 0:
            host = next(iter(self._hosts))
            waiting = self._hosts.pop(host)
            share, turn = waiting.popleft()
            turn.set()
            budget_s -= share.cost_s
            if waiting:
                self._hosts[host] = waiting


class Turns:
    """Who may make its next step, for all connections of one node.

    Invariant: while anybody waits one task lets them in, a few with each turn of the loop.
    """

    def __init__(self, nursery: trio.Nursery, *, read_bytes_max: int) -> None:
        self._nursery = nursery
        self._read_bytes_max = read_bytes_max
        self._light, self._others = TurnQueue(), TurnQueue()
        self._used_s = 0.0
        self._at_s = -math.inf
        self._lets_in = False
        self.waited = 0

    def is_busy(self, now_s: float) -> bool:
        return self._lets_in or self._recent_s(now_s) > BUSY_S

    async def wait(self, share: Share, *, leaves: bool = False) -> None:
        """Return when this connection may make its next step: at once while the loop is not busy.

        Who leaves waits for its turn in any case, since nobody waits for it, and thousands may leave at one moment.
        """
        now_s = trio.current_time()
        if leaves:
            share.cost_s = LEAVE_S
        elif not self.is_busy(now_s):
            return
        first = share.is_known and not leaves and share.used_s(now_s) <= LIGHT_S
        turn = (self._light if first else self._others).add(share)
        self.waited += 1
        if not self._lets_in:
            self._lets_in = True
            self._nursery.start_soon(self._let_in)
        await turn.wait()

    def note(self, share: Share, began_s: float) -> None:
        """A step has been made; how much the connection reads next time depends on how long it took."""
        now_s = trio.current_time()
        cost_s = now_s - began_s
        self._used_s = self._recent_s(now_s) + cost_s
        self._at_s = now_s
        share.note(now_s, cost_s)
        if cost_s > (STEP_S if self._lets_in else STEP_QUIET_S):
            share.read_bytes = max(READ_BYTES_MIN, share.read_bytes // 2)
        elif cost_s * 4 < STEP_S:
            share.read_bytes = min(self._read_bytes_max, share.read_bytes * 2)

    def _recent_s(self, now_s: float) -> float:
        return max(0.0, self._used_s - (now_s - self._at_s) * BUSY_SHARE) if self._used_s else 0.0

    async def _let_in(self) -> None:
        try:
            light_at_s = -math.inf
            while self._light or self._others:
                if self._light:
                    light_at_s = trio.current_time()
                self._light.let_in(TURN_LIGHT_S)
                self._others.let_in(TURN_OTHERS_S)
                if trio.current_time() < light_at_s + LIGHT_ABOUT_S:
                    await trio.sleep(PAUSE_S)
                else:
                    await trio.lowlevel.checkpoint()
        finally:
            self._lets_in = False
