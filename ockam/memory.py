"""How much memory the peers of a node may make it hold together. It reads no sockets and keeps no time.

Counted here: what connections remember of headers, answers that peers have not taken, and pulls that wait for a message
or until their peer has taken earlier answers.
Unfinished frames have a bound of their own (`partial_frames`), and so have mailboxes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext

import msgspec

MEMORY_BYTES_MAX = 128 * 1024 * 1024
"""Of all peers together: an eighth of a machine with 1 GiB, and room for two of the slowest consumers."""
SHARE_BYTES_MIN = 64 * 1024
"""Unread answers of one connection that are never held against it."""


class MemoryStatistics(msgspec.Struct, frozen=True):
    """Bytes held now, by kind, and the bound. The three counters are since the start: headers forgotten, pulls answered
    early and connections closed, because the bound was passed."""

    size_bytes: int
    bytes_max: int
    header_bytes: int
    unread_bytes: int
    parked_bytes: int
    forgotten: int
    given_up: int
    closed: int


class Holdings:
    """What one connection makes the node hold.

    forget: gives the memory of headers back. close: ends the connection.
    has_ended: the connection is gone or about to go. Nothing is counted from then on, and nobody waits for answers.
    Invariant: `size_bytes` is the sum of `header_bytes`, `unread_bytes` and `parked_bytes`, and part of the memory's.
    """

    __slots__ = (
        "_close",
        "_forget",
        "_memory",
        "_parked",
        "_watchers",
        "has_ended",
        "header_bytes",
        "parked_bytes",
        "size_bytes",
        "unread_bytes",
    )

    def __init__(self, memory: PeerMemory, forget: Callable[[], None], close: Callable[[], None]) -> None:
        self._memory = memory
        self._forget = forget
        self._close = close
        self._parked: dict[Hashable, tuple[int, Callable[[bool], None]]] = {}
        self._watchers: dict[Hashable, Callable[[bool], None]] = {}
        self.has_ended = False
        self.header_bytes = self.unread_bytes = self.parked_bytes = self.size_bytes = 0

    def note(self, header_bytes: int, unread_bytes: int) -> None:
        """The headers remembered and the answers unread take this much now."""
        if self.has_ended:
            return
        memory = self._memory
        memory.header_bytes += header_bytes - self.header_bytes
        memory.unread_bytes += unread_bytes - self.unread_bytes
        if (unread_bytes > 0) != (self.unread_bytes > 0):
            memory.behind += 1 if unread_bytes else -1
        self.header_bytes, self.unread_bytes = header_bytes, unread_bytes
        self._sum()

    def park(self, pull: Hashable, size_bytes: int, give_up: Callable[[bool], None]) -> None:
        """A pull waits for a message. give_up: ends that, with an answer or without; it must call `unpark`."""
        if self.has_ended:
            return
        self._parked[pull] = size_bytes, give_up
        self._memory.parked_bytes += size_bytes
        self.parked_bytes += size_bytes
        self._sum()

    def unpark(self, pull: Hashable) -> None:
        """It waits no longer. Safe to repeat."""
        size_bytes = self._parked.pop(pull, (0, None))[0]
        self._memory.parked_bytes -= size_bytes
        self.parked_bytes -= size_bytes
        self._sum()

    def watch(self, watcher: Hashable, tell: Callable[[bool], None]) -> None:
        """Have `tell` called with False each time the peer has taken answers, and with True when the connection ends.

        For a worker that keeps pulls back until then. At the end it must give back what it told `note_waiting`, and
        `unwatch`.
        """
        self._watchers[watcher] = tell

    def unwatch(self, watcher: Hashable) -> None:
        """Safe to repeat."""
        self._watchers.pop(watcher, None)

    def note_waiting(self, change_bytes: int) -> None:
        """The pulls that are kept back take so much more now, or less. They count as parked, and give way to nobody
        while their connection lasts."""
        self._memory.parked_bytes += change_bytes
        self.parked_bytes += change_bytes
        self._sum()

    def tell_taken(self) -> None:
        """The peer has taken answers, and is no longer behind."""
        if self._watchers:
            for tell in list(self._watchers.values()):
                tell(False)

    def end(self) -> None:
        """The connection is gone, and all that it made the node hold. Safe to repeat."""
        self._give_up_parked(answers=False)
        for tell in list(self._watchers.values()):
            tell(True)
        self.note(0, 0)
        self.has_ended = True

    def _sum(self) -> None:
        before, self.size_bytes = self.size_bytes, self.header_bytes + self.unread_bytes + self.parked_bytes
        memory = self._memory
        if not self.size_bytes:
            memory.holders.pop(self, None)
        elif not before:
            memory.holders[self] = None
        if self.size_bytes > before and memory.size_bytes > memory.bytes_max:
            memory.make_room()

    def _give_up_parked(self, *, answers: bool) -> int:
        parked = list(self._parked.values())
        for _, give_up in parked:
            give_up(answers)
        return len(parked)

    def yield_painless(self) -> tuple[bool, int]:
        """Give back what costs the peer nothing but time: whether headers were forgotten, how many pulls are answered
        early."""
        forgets = self.header_bytes > 0
        if forgets:
            self._forget()
            self.note(0, self.unread_bytes)
        return forgets, self._give_up_parked(answers=True)

    def yield_all(self) -> None:
        """End the connection, whose peer does not take its answers."""
        self._close()
        self.end()


class PeerMemory:
    """The sum over all connections of a node, and who yields when it passes the bound.

    The connection that holds most yields first: it forgets headers and its long polls are answered, both of which lose
    nothing. Where the rest (unread answers, and the pulls that wait behind them) still passes the bound, the
    connections that hold most are closed as slow consumers. Before it comes to that, from half of the bound on,
    connections are only read, and get answers, while their unread answers are below `share_bytes`.
    Invariant: after every change `size_bytes` is at most `bytes_max`, but for what is being sent meanwhile. `behind` is
    how many connections have unread answers, `holders` are those that hold anything.
    """

    def __init__(
        self, bytes_max: int = MEMORY_BYTES_MAX, batch: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        """batch: in which what is answered is sent together."""
        self._batch = batch
        self.bytes_max = bytes_max
        self.header_bytes = self.unread_bytes = self.parked_bytes = 0
        self.behind = 0
        self.holders: dict[Holdings, None] = {}
        self._forgotten = self._given_up = self._closed = 0
        self._making_room = False

    @property
    def size_bytes(self) -> int:
        return self.header_bytes + self.unread_bytes + self.parked_bytes

    def share_bytes(self, most_bytes: int) -> int:
        """How many unread answers a connection may have before it is held up: `most_bytes` while there is plenty."""
        if self.unread_bytes * 2 <= self.bytes_max:
            return most_bytes
        return min(most_bytes, max(SHARE_BYTES_MIN, self.bytes_max // (2 * max(1, self.behind))))

    def make_room(self) -> None:
        """Bring the sum down to seven eighths of the bound, so that this is not done for every message."""
        if self._making_room:
            return
        self._making_room = True
        try:
            with self._batch():
                self._make_room()
        finally:
            self._making_room = False

    def _make_room(self) -> None:
        target_bytes = self.bytes_max - self.bytes_max // 8
        by_size = sorted(self.holders, key=lambda holdings: holdings.size_bytes, reverse=True)
        for holdings in by_size:
            if self.size_bytes <= target_bytes:
                return
            forgets, given_up = holdings.yield_painless()
            self._forgotten += forgets
            self._given_up += given_up
        for holdings in sorted(by_size, key=lambda holdings: holdings.size_bytes, reverse=True):
            if self.size_bytes <= target_bytes:
                return
            self._closed += 1
            holdings.yield_all()

    def statistics(self) -> MemoryStatistics:
        kinds = self.header_bytes, self.unread_bytes, self.parked_bytes
        return MemoryStatistics(self.size_bytes, self.bytes_max, *kinds, self._forgotten, self._given_up, self._closed)


UNCOUNTED = Holdings(PeerMemory(1 << 62), lambda: None, lambda: None)
"""For messages that came through no connection."""
