"""Turns: shares the time of the event loop between connections, so that busy connections do not delay the others.

A step of a connection handles all messages of one read. While the event loop is busy, each turn of the loop lets only
some connections make a step, first those that used little time lately."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

import trio

BUSY_S = 0.03
"""The event loop is busy while its recent work (used time minus BUSY_SHARE of the passed time) exceeds this."""
BUSY_SHARE = 0.8

LIGHT_S = 0.005
"""A connection with at most this much recent work (used time minus LIGHT_SHARE of the passed time) goes first."""
LIGHT_SHARE = 0.1
TURN_LIGHT_S = 0.006
"""The estimated time that light connections may use in one turn of the loop. All others may use TURN_OTHERS_S."""
TURN_OTHERS_S = 0.004
STEP_S = 0.003
"""The longest step of a connection while the loop is busy. After a longer one, it reads less at a time."""
STEP_QUIET_S = 0.01
COST_S = 0.0002
"""The expected time of a connection's first step. Later steps are expected to take as long as the last one."""
LIGHT_ABOUT_S = 0.1
"""For this many seconds after a light connection has waited or worked, further light ones are expected."""
PAUSE_S = 0.001
"""While light connections are expected, the loop sleeps this long in each turn. The thread that writes to the database
then gets the interpreter's lock at once, and otherwise only every 5 ms."""
LEAVE_S = 0.0005
READ_BYTES_MAX = 256 * 1024
READ_BYTES_MIN = 4 * 1024
READ_BYTES_FIRST = 16 * 1024


class Share:
    """The recent work of one connection, and the number of bytes that it may read at a time.

    host: the identity or the host of the peer (`usage.party_key`); connections of different hosts alternate.
    is_known: whether the peer has sent a message. cost_s: the time of the connection's last step."""

    __slots__ = ("_at_s", "_used_s", "cost_s", "host", "is_known", "read_bytes")

    def __init__(self, host: str) -> None:
        self.host = host
        self.is_known = False
        self.read_bytes = READ_BYTES_FIRST
        self.cost_s = COST_S
        self._used_s = 0.0
        self._at_s = -math.inf

    def used_s(self, now_s: float) -> float:
        return max(0.0, self._used_s - (now_s - self._at_s) * LIGHT_SHARE) if self._used_s else 0.0

    def note(self, now_s: float, cost_s: float) -> None:
        self._used_s = self.used_s(now_s) + cost_s
        self._at_s = now_s
        self.cost_s = cost_s


class TurnQueue:
    """Connections that wait for the event loop. Hosts alternate; those of one host stay in order."""

    def __init__(self) -> None:
        self._hosts: dict[str, deque[tuple[Share, Callable[[], None]]]] = {}

    def __bool__(self) -> bool:
        return bool(self._hosts)

    def add(self, share: Share, go_on: Callable[[], None]) -> None:
        """Adds a connection. go_on: called when the connection may use the event loop."""
        waiting = self._hosts.get(share.host)
        if waiting is None:
            waiting = self._hosts[share.host] = deque()
        waiting.append((share, go_on))

    def let_in(self, budget_s: float) -> None:
        """Lets waiting connections continue, at least one, until their expected time reaches `budget_s`."""
        while self._hosts and budget_s > 0:
            budget_s -= self.let_one_in().cost_s

    def let_one_in(self) -> Share:
        host = next(iter(self._hosts))
        waiting = self._hosts.pop(host)
        share, go_on = waiting.popleft()
        go_on()
        if waiting:
            self._hosts[host] = waiting
        return share


class Turns:
    """Decides when each connection of a node may use the event loop again.

    Invariant: while connections wait, one task lets a few of them continue in each turn of the loop."""

    def __init__(self, nursery: trio.Nursery, *, read_bytes_max: int) -> None:
        self._nursery = nursery
        self._read_bytes_max = read_bytes_max
        self._light, self._others = TurnQueue(), TurnQueue()
        self._used_s = 0.0
        self._at_s = -math.inf
        self._lets_in = False
        self._light_at_s = -math.inf
        self.waited = 0

    def is_busy(self, now_s: float) -> bool:
        return self._lets_in or self._recent_s(now_s) > BUSY_S

    async def wait(self, share: Share, *, leaves: bool = False) -> None:
        """Waits until this connection may handle its next bytes. Returns at once while the event loop is not busy.

        leaves: whether the connection is ending. Such a connection always waits: thousands can end at one moment."""
        now_s = trio.current_time()
        if leaves:
            share.cost_s = LEAVE_S
        elif not self.is_busy(now_s):
            return
        # A light connection goes first, but not a new one: connecting again must bring no advantage.
        first = share.is_known and not leaves and share.used_s(now_s) <= LIGHT_S
        turn = trio.Event()
        (self._light if first else self._others).add(share, turn.set)
        self.waited += 1
        if not self._lets_in:
            self._lets_in = True
            self._nursery.start_soon(self._let_in)
        await turn.wait()

    def note(self, share: Share, began_s: float) -> None:
        """Records that the connection has used the event loop from `began_s` until now."""
        self.note_together([share], began_s)
        cost_s = share.cost_s
        # One long step delays all other connections, so the next ones are smaller. Short steps may grow again.
        if cost_s > (STEP_S if self._lets_in else STEP_QUIET_S):
            share.read_bytes = max(READ_BYTES_MIN, share.read_bytes // 2)
        elif cost_s * 4 < STEP_S:
            share.read_bytes = min(self._read_bytes_max, share.read_bytes * 2)

    def note_together(self, shares: Sequence[Share], began_s: float) -> None:
        """Records that these connections have used the event loop from `began_s` until now, in equal parts."""
        now_s = trio.current_time()
        self._used_s = self._recent_s(now_s) + now_s - began_s
        self._at_s = now_s
        for share in shares:
            share.note(now_s, (now_s - began_s) / len(shares))
            if share.is_known and share.used_s(now_s) <= LIGHT_S:
                self._light_at_s = now_s

    def pause_s(self) -> float:
        """Returns how long endless work inside the node pauses in each turn of the loop, so that light connections do
        not wait for it: PAUSE_S, or 0 if there was no light connection lately."""
        return PAUSE_S if trio.current_time() < self._light_at_s + LIGHT_ABOUT_S else 0.0

    def _recent_s(self, now_s: float) -> float:
        return max(0.0, self._used_s - (now_s - self._at_s) * BUSY_SHARE) if self._used_s else 0.0

    async def _let_in(self) -> None:
        try:
            light_at_s = -math.inf
            while self._light or self._others:
                # Each pass takes one turn of the event loop, and gives both groups their share of the turn's time.
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
