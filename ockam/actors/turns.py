"""Turns: shares the time of the event loop between connections, so that busy connections do not delay the others.

All connections run in one thread. A step of a connection handles all messages of one read. While the event loop is not
busy, no connection waits here. While the loop is busy, each turn of the loop (one pass over the ready tasks) lets only
some connections make a step. Connections that used little time lately go first. This module reads no sockets.
"""

from __future__ import annotations

import math
from collections import deque

import trio

BUSY_S = 0.03
"""The event loop counts as busy while its recent work exceeds this many seconds. Recent work is the time that
connections have used, minus BUSY_SHARE of the time that has passed.
"""
BUSY_SHARE = 0.8

LIGHT_S = 0.005
"""A connection with at most this many seconds of recent work is light, and light connections go first. Recent work is
the time that the connection has used, minus LIGHT_SHARE of the time that has passed.
"""
LIGHT_SHARE = 0.1
TURN_LIGHT_S = 0.006
"""The estimated time, in seconds, that light connections may use in one turn of the event loop. A light connection has
used little time lately."""
TURN_OTHERS_S = 0.004
"""The estimated time, in seconds, that all other connections (heavy, new or ending) may use in one turn of the event
loop. Light connections have a time of their own (TURN_LIGHT_S), so neither group can block the other.
"""
STEP_S = 0.003
"""The longest time, in seconds, for which a connection should use the event loop without a pause while the loop is
busy.

A connection that uses the loop for longer reads fewer bytes at a time afterwards.
"""
STEP_QUIET_S = 0.01
"""The longest time, in seconds, for which a connection should use the event loop without a pause while the loop is not
busy.

A connection that uses the loop for longer reads fewer bytes at a time afterwards.
"""
COST_S = 0.0002
"""The expected time to handle the first bytes that a connection reads, in seconds. Later reads are expected to take as
long as the last one."""
LIGHT_ABOUT_S = 0.1
"""After a light connection (one that used little time lately) has waited, other light connections are expected for this
many seconds."""
PAUSE_S = 0.001
"""The time for which the event loop sleeps in each turn while light connections are expected (LIGHT_ABOUT_S), in
seconds. Their answers depend on the thread that writes to the database. This thread gets the interpreter's lock at once
while the loop sleeps, and otherwise only every 5 ms."""
LEAVE_S = 0.0005
"""The expected time to end a connection, in seconds."""
READ_BYTES_MAX = 256 * 1024
READ_BYTES_MIN = 4 * 1024
READ_BYTES_FIRST = 16 * 1024


class Share:
    """The time that one connection has used lately, and the number of bytes that it may read at a time.

    host: the identity or the host of the peer (`usage.party_key`); connections of different hosts alternate.
    is_known: whether the peer has sent a message.
    cost_s: the time that the connection's last step (handling one read) took, in seconds.
    read_bytes: the number of bytes that the connection may read at a time.
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
        """Returns the recent work in seconds: the used time of the connection, minus LIGHT_SHARE of the passed time."""
        return max(0.0, self._used_s - (now_s - self._at_s) * LIGHT_SHARE) if self._used_s else 0.0

    def note(self, now_s: float, cost_s: float) -> None:
        self._used_s = self.used_s(now_s) + cost_s
        self._at_s = now_s
        self.cost_s = cost_s


class TurnQueue:
    """A queue of connections that wait for the event loop.

    Hosts alternate; connections of one host keep their order.
    """

    def __init__(self) -> None:
        self._hosts: dict[str, deque[tuple[Share, trio.Event]]] = {}

    def __bool__(self) -> bool:
        return bool(self._hosts)

    def add(self, share: Share) -> trio.Event:
        turn = trio.Event()
        self._hosts.setdefault(share.host, deque()).append((share, turn))
        return turn

    def let_in(self, budget_s: float) -> None:
        """Lets waiting connections continue, until their next steps are expected to take `budget_s` seconds together.

        Lets at least one connection continue if `budget_s` is positive."""
        while self._hosts and budget_s > 0:
            host = next(iter(self._hosts))
            waiting = self._hosts.pop(host)
            share, turn = waiting.popleft()
            turn.set()
            budget_s -= share.cost_s
            if waiting:
                self._hosts[host] = waiting


class Turns:
    """Decides for all connections of one node when each may use the event loop again.

    Invariant: while connections wait, one task lets a few of them continue in each turn of the loop.
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
        """Waits until this connection may handle its next bytes. Returns at once while the event loop is not busy.

        leaves: True if the connection is ending. Such a connection always waits, because its end is not urgent and
        thousands of connections can end at one moment.
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
        """Records that the connection has used the event loop from `began_s` until now.

        If this was a long time, the connection reads fewer bytes at once from now on; if it was short, it reads more.
        """
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
