"""PeerMemory: limits the memory that a node uses for all its peers together.

It counts remembered headers (header), answers that peers have not taken yet (unread), and waiting requests (parked).
Unfinished frames and mailboxes have limits of their own."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext

import msgspec

from ockam.quotas.usage import UNLIMITED, Usage

MEMORY_BYTES_MAX = 128 * 1024 * 1024
"""The default limit: an eighth of a computer with 1 GiB, and twice the largest backlog of one connection."""
SHARE_BYTES_MIN = 64 * 1024


class MemoryStatistics(msgspec.Struct, frozen=True):
    """The memory for all peers by kind, and how memory was freed since the start: connections whose headers were
    forgotten, pulls that were answered early (given_up), and slow consumers that were closed."""

    size_bytes: int
    bytes_max: int
    header_bytes: int
    unread_bytes: int
    parked_bytes: int
    forgotten: int
    given_up: int
    closed: int


class Holdings:
    """The memory that the node uses for one connection.

    forget: frees the memory of the connection's headers. close: ends the connection.
    has_ended: whether the connection has ended or is ending. Afterwards, nothing is counted or answered.
    asks_no_more: whether the peer has closed its side, or the connection has ended: no more requests will come.

    Invariant: `size_bytes` is the sum of `header_bytes`, `unread_bytes` and `parked_bytes`. Each of these numbers is
    included in the attribute of the same name of `PeerMemory`. The usage of the identity also holds `size_bytes`."""

    __slots__ = (
        "_memory",
        "_parked",
        "_requesters",
        "_usage",
        "_watchers",
        "asks_no_more",
        "close",
        "forget",
        "has_ended",
        "header_bytes",
        "parked_bytes",
        "size_bytes",
        "unread_bytes",
    )

    def __init__(self, memory: PeerMemory, forget: Callable[[], None], close: Callable[[], None]) -> None:
        self._memory = memory
        self.forget = forget
        self.close = close
        self._usage = UNLIMITED
        self._parked: dict[Hashable, tuple[int, Callable[[bool], None]]] = {}
        self._watchers: dict[Hashable, Callable[[bool], None]] = {}
        self._requesters: dict[Hashable, Callable[[], None]] = {}
        self.has_ended = self.asks_no_more = False
        self.header_bytes = self.unread_bytes = self.parked_bytes = self.size_bytes = 0

    def beside(self, forget: Callable[[], None], close: Callable[[], None]) -> Holdings:
        """Returns new `Holdings` in the same memory, for something beside the connection, such as a secure channel."""
        holdings = Holdings(self._memory, forget, close)
        holdings.count_for(self._usage)
        return holdings

    def count_for(self, usage: Usage) -> None:
        self._usage.hold(-self.size_bytes)
        self._usage = usage
        usage.hold(self.size_bytes)

    def note(self, header_bytes: int, unread_bytes: int) -> None:
        if self.has_ended:
            return
        memory = self._memory
        memory.header_bytes += header_bytes - self.header_bytes
        memory.unread_bytes += unread_bytes - self.unread_bytes
        # `behind` is the number of connections with unread answers, so only a change from or to 0 matters.
        if (unread_bytes > 0) != (self.unread_bytes > 0):
            memory.behind += 1 if unread_bytes else -1
        has_shrunk = unread_bytes < self.unread_bytes
        self.header_bytes, self.unread_bytes = header_bytes, unread_bytes
        self._sum()
        if has_shrunk and memory.rooms:
            memory.grant_rooms()

    def park(self, pull: Hashable, size_bytes: int, give_up: Callable[[bool], None]) -> None:
        """Counts the memory of a waiting pull. give_up: ends the wait and calls `unpark`; with True, to free memory, it
        also answers the pull; with False, the connection has ended."""
        if self.has_ended:
            return
        self._parked[pull] = size_bytes, give_up
        self._memory.parked_bytes += size_bytes
        self.parked_bytes += size_bytes
        self._sum()

    def unpark(self, pull: Hashable) -> None:
        size_bytes = self._parked.pop(pull, (0, None))[0]
        self._memory.parked_bytes -= size_bytes
        self.parked_bytes -= size_bytes
        self._sum()

    def watch(self, watcher: Hashable, tell: Callable[[bool], None]) -> None:
        """Registers a callback: `tell(False)` when the peer has taken answers, so that its delayed pulls may go on;
        `tell(True)` when the connection ends: then call `note_waiting` and `unwatch`."""
        self._watchers[watcher] = tell

    def watch_requests(self, watcher: Hashable, tell: Callable[[], None]) -> None:
        """Registers a callback for when the peer can send no more requests. It may still take answers."""
        self._requesters[watcher] = tell

    def unwatch(self, watcher: Hashable) -> None:
        self._watchers.pop(watcher, None)
        self._requesters.pop(watcher, None)

    def note_waiting(self, change_bytes: int) -> None:
        """Adds to the memory of the pulls that a worker delays; a negative number subtracts. Unlike parked pulls, these
        pulls are not ended to free memory."""
        self._memory.parked_bytes += change_bytes
        self.parked_bytes += change_bytes
        self._sum()

    def reserve(self, size_bytes: int, backlog_bytes_max: int, tell: Callable[[], None]) -> Room:
        """Asks for room for one large answer to the peer, of at most this size.

        backlog_bytes_max: the room comes only while the peer has at most this many bytes of unread answers.
        tell: called once when the room has come, perhaps at once, or in the middle of a send."""
        room = Room(self._memory, self, size_bytes, backlog_bytes_max, tell)
        self._memory.rooms[room] = None
        self._memory.grant_rooms()
        return room

    def report_taken(self) -> None:
        if self._watchers:
            for tell in list(self._watchers.values()):
                tell(False)

    def end_requests(self) -> None:
        self.asks_no_more = True
        for tell in list(self._requesters.values()):
            tell()

    def end(self) -> None:
        self.end_requests()
        self.give_up_parked(answers=False)
        for tell in list(self._watchers.values()):
            tell(True)
        self.note(0, 0)
        self.has_ended = True

    def _sum(self) -> None:
        # Only connections with counted memory are in `holders`. The limit is checked only when the memory has grown.
        before, self.size_bytes = self.size_bytes, self.header_bytes + self.unread_bytes + self.parked_bytes
        self._usage.hold(self.size_bytes - before)
        memory = self._memory
        if not self.size_bytes:
            memory.holders.pop(self, None)
        elif not before:
            memory.holders[self] = None
        if self.size_bytes > before and memory.size_bytes > memory.bytes_max:
            memory.make_room()

    def give_up_parked(self, *, answers: bool) -> int:
        parked = list(self._parked.values())
        for _, give_up in parked:
            give_up(answers)
        return len(parked)


class Room(msgspec.Struct, eq=False):
    """The room for one large answer, from before its messages are read until they count as unread.

    has_come: whether it may be used. is_late: whether it has waited so long that others delay it no more."""

    memory: PeerMemory
    holdings: Holdings
    size_bytes: int
    backlog_bytes_max: int
    tell: Callable[[], None]
    has_come: bool = False
    is_late: bool = False

    def insist(self) -> None:
        self.is_late = True
        self.memory.grant_rooms()

    def end(self) -> None:
        if self.memory.rooms.pop(self, self) is None:
            self.memory.grant_rooms()


class PeerMemory:
    """The memory for all connections of a node, kept below a limit.

    While all unread answers use more than half of the limit, a connection is read and gets answers only while its own
    unread answers are at most `share_bytes`. When the limit is exceeded, the connections free memory, the largest
    first, without loss of data. If that does not free enough, the largest are closed as slow consumers.

    Invariant: after every change `size_bytes` is at most `bytes_max`, apart from bytes that are being sent at the time.
    `behind` is the number of connections with unread answers. `holders` are the connections with any counted memory.
    `rooms` are the rooms for large answers that are used or waited for, in the order in which they were asked for."""

    def __init__(
        self, bytes_max: int = MEMORY_BYTES_MAX, batch: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        """batch: returns a context manager. The answers to pulls that are ended early, to free memory, are sent
        together at its end (`ockam.actors.node.Node.batch`)."""
        self._batch = batch
        self.bytes_max = bytes_max
        self.header_bytes = self.unread_bytes = self.parked_bytes = 0
        self.behind = 0
        self.holders: dict[Holdings, None] = {}
        self.rooms: dict[Room, None] = {}
        self._forgotten = self._given_up = self._closed = 0
        self._making_room = False

    @property
    def size_bytes(self) -> int:
        return self.header_bytes + self.unread_bytes + self.parked_bytes

    def share_bytes(self, most_bytes: int) -> int:
        """Returns the bytes of unread answers above which a connection is slowed down, at most `most_bytes`."""
        # Unread answers up to half of the limit slow nobody down. Above, each connection has a share of this half.
        if self.unread_bytes * 2 <= self.bytes_max:
            return most_bytes
        return min(most_bytes, max(SHARE_BYTES_MIN, self.bytes_max // (2 * max(1, self.behind))))

    def grant_rooms(self) -> None:
        """Grants the rooms that were asked for, oldest first, while they and all unread answers are in the limit."""
        # Rooms that were granted and not used yet count like unread answers.
        granted = [room for room in self.rooms if room.has_come]
        reserved_bytes = sum(room.size_bytes for room in granted)
        busy = {room.holdings for room in granted}
        for room in list(self.rooms):
            # A connection has one room at a time, and gets none while it does not take its answers.
            holdings = room.holdings
            if room.has_come or holdings in busy or holdings.unread_bytes > room.backlog_bytes_max:
                continue
            # A room alone is granted in any case if no answer is unread, or if it is late: else a large answer might
            # never fit.
            is_alone = not reserved_bytes and (room.is_late or not self.unread_bytes)
            reserved_bytes += room.size_bytes
            if self.unread_bytes + reserved_bytes > self.bytes_max and not is_alone:
                return
            busy.add(holdings)
            room.has_come = True
            room.tell()

    def change_limit(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        if self.size_bytes > bytes_max:
            self.make_room()
        self.grant_rooms()

    def make_room(self) -> None:
        """Frees memory down to seven eighths of the limit; else nearly every message would call it again."""
        # A pull that is answered early adds to the unread answers, which calls this method again.
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
        # First the steps that lose no data.
        by_size = sorted(self.holders, key=lambda holdings: holdings.size_bytes, reverse=True)
        for holdings in by_size:
            if self.size_bytes <= target_bytes:
                return
            if holdings.header_bytes:
                holdings.forget()
                holdings.note(0, holdings.unread_bytes)
                self._forgotten += 1
            self._given_up += holdings.give_up_parked(answers=True)
        # Then the connections of peers that do not take their answers are closed.
        for holdings in sorted(by_size, key=lambda holdings: holdings.size_bytes, reverse=True):
            if self.size_bytes <= target_bytes:
                return
            self._closed += 1
            holdings.close()
            holdings.end()

    def statistics(self) -> MemoryStatistics:
        kinds = self.header_bytes, self.unread_bytes, self.parked_bytes
        return MemoryStatistics(self.size_bytes, self.bytes_max, *kinds, self._forgotten, self._given_up, self._closed)


UNCOUNTED = Holdings(PeerMemory(1 << 62), lambda: None, lambda: None)
"""The `Holdings` for messages of this node's own workers, which have no limit."""
