"""Turns: shares the time of the event loop between connections, so that busy connections do not delay the others.

All connections run in one thread, and the messages of one read are handled in one step. While the event loop is not
busy, no connection waits here. While it is busy, connections take turns: each turn of the loop admits a limited amount
of work, and connections that used little time lately go first. This module reads no sockets.
"""

from __future__ import annotations

import math
from collections import deque

import trio

BUSY_S = 0.03
"""The loop is busy while its recent work is above this, in seconds. Recent work shrinks by BUSY_SHARE of the passing
time."""
BUSY_SHARE = 0.8
LIGHT_S = 0.005
"""A connection with at most this much recent work, in seconds, is light and goes first. Its recent work shrinks by
LIGHT_SHARE of the passing time."""
LIGHT_SHARE = 0.1
TURN_LIGHT_S = 0.006
"""The work of light connections that each turn of the loop admits, in seconds."""
TURN_OTHERS_S = 0.004
"""The work of all other connections (heavy, new or ending) that each turn of the loop admits, in seconds. Each group
has its own share, so neither can exclude the other."""
STEP_S = 0.003
"""The longest step that a connection should make while the loop is busy."""
STEP_QUIET_S = 0.01
"""The longest step that a connection should make while the loop is not busy."""
COST_S = 0.0002
"""The assumed duration of a connection's first step, in seconds. Later steps are expected to take as long as the last
one."""
LIGHT_ABOUT_S = 0.1
"""For this long after a light connection waited for its turn, in seconds, others are expected to come."""
PAUSE_S = 0.001
"""While light connections are expected, the loop sleeps this long in each turn, in seconds. The writing thread, on
which their answers depend, gets the interpreter's lock at once while the loop sleeps, and otherwise only every 5 ms."""
LEAVE_S = 0.0005
"""The assumed duration of ending a connection, in seconds."""
READ_BYTES_MAX = 256 * 1024
READ_BYTES_MIN = 4 * 1024
READ_BYTES_FIRST = 16 * 1024


class Share:
    """The recent work of one connection, and the number of bytes that it may read at a time.

    host: the host of the peer. Hosts take turns with each other, and so do the connections of one host. is_known:
    whether the peer has sent a message. cost_s: how long the last step took, in seconds.
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
        """Returns the recent work of the connection, in seconds."""
        return max(0.0, self._used_s - (now_s - self._at_s) * LIGHT_SHARE) if self._used_s else 0.0

    def note(self, now_s: float, cost_s: float) -> None:
        self._used_s = self.used_s(now_s) + cost_s
        self._at_s = now_s
        self.cost_s = cost_s


class TurnQueue:
    """The connections that wait for their turn. Hosts alternate; connections of one host are in the order of
    arrival."""

    def __init__(self) -> None:
        self._hosts: dict[str, deque[tuple[Share, trio.Event]]] = {}

    def __bool__(self) -> bool:
        return bool(self._hosts)

    def add(self, share: Share) -> trio.Event:
        turn = trio.Event()
        self._hosts.setdefault(share.host, deque()).append((share, turn))
        return turn

    def let_in(self, budget_s: float) -> None:
        """Gives connections their turn, until their steps are expected to take `budget_s` together. Gives at least one
        turn."""
        while self._hosts and budget_s > 0:
            host = next(iter(self._hosts))
            waiting = self._hosts.pop(host)
            share, turn = waiting.popleft()
            turn.set()
            budget_s -= share.cost_s
            if waiting:
                self._hosts[host] = waiting


class Turns:
    """Decides for all connections of one node when each may make its next step.

    Invariant: while connections wait, one task admits a few of them with each turn of the loop.
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
        """Waits until this connection may make its next step. Returns at once while the loop is not busy.

        leaves: the connection is ending. Then it always waits for its turn, because its end is not urgent and thousands
        of connections may end at one moment.
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
        """Records a step that began at `began_s` and ends now. After a long step, the connection reads fewer bytes next
        time."""
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
