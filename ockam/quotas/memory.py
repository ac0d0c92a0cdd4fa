"""PeerMemory: limits the memory that a node uses for all its peers together. It reads no sockets.

Three kinds of memory are counted: the headers that connections remember (header), answers that peers have not taken yet
(unread), and waiting requests (parked). A pull waits for a message, or until its peer has taken earlier answers; a
request of HTTP waits for the rest of its body.
Unfinished frames (`partial_frames`) and mailboxes have limits of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext

import msgspec

from ockam.quotas.usage import UNLIMITED, Usage

MEMORY_BYTES_MAX = 128 * 1024 * 1024
"""The default memory limit for all peers of a node together, in bytes. This is an eighth of the memory of a computer
with 1 GiB, and twice the largest backlog of one connection.
"""
SHARE_BYTES_MIN = 64 * 1024
"""A connection with at most this many bytes of unsent answers is never slowed down."""


class MemoryStatistics(msgspec.Struct, frozen=True):
    """The memory for all peers, in bytes, and the numbers of actions since the start that freed memory.

    header_bytes: remembered message headers.
    unread_bytes: answers that peers have not taken yet.
    parked_bytes: waiting requests.

    forgotten: the number of connections whose headers were forgotten.
    given_up: the number of waiting pulls that were answered early.
    closed: the number of connections that were closed as slow consumers.
    """

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

    forget: frees the memory of the connection's headers.
    close: ends the connection.
    has_ended: whether the connection has ended or is ending. After the end, no memory is counted any more, and waiting
    pulls are not answered.

    Invariant: `size_bytes` is the sum of `header_bytes`, `unread_bytes` and `parked_bytes`. Each of these three numbers
    is included in the attribute of the same name of `PeerMemory`. `size_bytes` is also held by the usage of the
    connection's identity.
    """

    __slots__ = (
        "_close",
        "_forget",
        "_memory",
        "_parked",
        "_usage",
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
        self._usage = UNLIMITED
        self._parked: dict[Hashable, tuple[int, Callable[[bool], None]]] = {}
        self._watchers: dict[Hashable, Callable[[bool], None]] = {}
        self.has_ended = False
        self.header_bytes = self.unread_bytes = self.parked_bytes = self.size_bytes = 0

    def beside(self, forget: Callable[[], None], close: Callable[[], None]) -> Holdings:
        """Returns a new `Holdings` in the same `PeerMemory`, for something beside the connection, for example a secure
        channel. forget, close: as for the connection."""
        holdings = Holdings(self._memory, forget, close)
        holdings.count_for(self._usage)
        return holdings

    def count_for(self, usage: Usage) -> None:
        """Counts the memory for another identity from now on, because the peer has proved who it is."""
        self._usage.hold(-self.size_bytes)
        self._usage = usage
        usage.hold(self.size_bytes)

    def note(self, header_bytes: int, unread_bytes: int) -> None:
        """Sets the counted memory of the remembered headers and of the unread answers, in bytes."""
        if self.has_ended:
            return
        memory = self._memory
        memory.header_bytes += header_bytes - self.header_bytes
        memory.unread_bytes += unread_bytes - self.unread_bytes
        if (unread_bytes > 0) != (self.unread_bytes > 0):
            memory.behind += 1 if unread_bytes else -1
        has_shrunk = unread_bytes < self.unread_bytes
        self.header_bytes, self.unread_bytes = header_bytes, unread_bytes
        self._sum()
        if has_shrunk and memory.rooms:
            memory.grant_rooms()

    def park(self, pull: Hashable, size_bytes: int, give_up: Callable[[bool], None]) -> None:
        """Counts the memory of a pull that waits for a message.

        give_up: a callback that ends the wait and must call `unpark`. It is called with True to free memory: then it
        also answers the pull. It is called with False after the end of the connection, when no answer can be sent.
        """
        if self.has_ended:
            return
        self._parked[pull] = size_bytes, give_up
        self._memory.parked_bytes += size_bytes
        self.parked_bytes += size_bytes
        self._sum()

    def unpark(self, pull: Hashable) -> None:
        """Stops counting the memory of a pull whose wait has ended. Safe to repeat."""
        size_bytes = self._parked.pop(pull, (0, None))[0]
        self._memory.parked_bytes -= size_bytes
        self.parked_bytes -= size_bytes
        self._sum()

    def watch(self, watcher: Hashable, tell: Callable[[bool], None]) -> None:
        """Registers a callback: `tell(False)` when the peer has taken answers, `tell(True)` when the connection ends.

        A worker uses the callback to delay pulls until their peer has taken earlier answers. When the connection ends,
        the worker must subtract the memory of its pulls with `note_waiting`, and call `unwatch`.
        """
        self._watchers[watcher] = tell

    def unwatch(self, watcher: Hashable) -> None:
        """Removes the callback of this watcher. Safe to repeat."""
        self._watchers.pop(watcher, None)

    def note_waiting(self, change_bytes: int) -> None:
        """Adds to the counted memory of the pulls that a worker delays. A negative number subtracts.

        These pulls wait until their peer has taken earlier answers. They count as parked, but are not answered early to
        free memory.
        """
        self._memory.parked_bytes += change_bytes
        self.parked_bytes += change_bytes
        self._sum()

    def reserve(self, size_bytes: int, backlog_bytes_max: int, tell: Callable[[], None]) -> Room:
        """Asks for room for one large answer to the peer, of at most this size.

        backlog_bytes_max: the room comes only while the peer has at most this many bytes of unread answers.
        tell: called once when the room has come, perhaps at once, or in the middle of a send.
        """
        room = Room(self._memory, self, size_bytes, backlog_bytes_max, tell)
        self._memory.rooms[room] = None
        self._memory.grant_rooms()
        return room

    def tell_taken(self) -> None:
        """Calls every watcher with False, because the peer has taken enough answers to get more."""
        if self._watchers:
            for tell in list(self._watchers.values()):
                tell(False)

    def end(self) -> None:
        """Frees all counted memory of the connection, because the connection has ended. Safe to repeat."""
        self._give_up_parked(answers=False)
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

    def _give_up_parked(self, *, answers: bool) -> int:
        parked = list(self._parked.values())
        for _, give_up in parked:
            give_up(answers)
        return len(parked)

    def yield_painless(self) -> tuple[bool, int]:
        """Frees memory without loss of data: forgets the remembered headers and answers the waiting pulls early.

        The headers are learned again from the next messages.

        Returns whether headers were forgotten, and the number of pulls that were answered early.
        """
        forgets = self.header_bytes > 0
        if forgets:
            self._forget()
            self.note(0, self.unread_bytes)
        return forgets, self._give_up_parked(answers=True)

    def yield_all(self) -> None:
        """Closes the connection as a slow consumer, because its peer does not take its answers."""
        self._close()
        self.end()


class Room(msgspec.Struct, eq=False):
    """The room for one large answer, from before its messages are read until they count as unread.

    The parameters are those of `Holdings.reserve`. has_come: whether the room may be used. is_late: whether it has been
    waited for so long that it needs to fit beside other rooms only.
    """

    memory: PeerMemory
    holdings: Holdings
    size_bytes: int
    backlog_bytes_max: int
    tell: Callable[[], None]
    has_come: bool = False
    is_late: bool = False

    def insist(self) -> None:
        """Waits for the end of other rooms only. Does nothing if the room has come or ended."""
        self.is_late = True
        self.memory.grant_rooms()

    def end(self) -> None:
        """Gives the room back, or waits for it no longer. Safe to repeat."""
        if self.memory.rooms.pop(self, self) is None:
            self.memory.grant_rooms()


class PeerMemory:
    """The memory for all connections of a node, kept below a limit.

    Unread answers are answers that a peer has not taken yet. While all unread answers use more than half of the limit,
    a connection is read and gets answers only while its own unread answers are at most `share_bytes`. When the limit is
    exceeded, connections free memory, the largest connection first: each forgets its headers and answers its waiting
    pulls early. This loses no data. If it does not free enough, the largest connections are closed as slow consumers.

    Invariant: after every change `size_bytes` is at most `bytes_max`, apart from bytes that are being sent at the time.
    `behind` is the number of connections with unread answers. `holders` are the connections with any counted memory.
    `rooms` are the rooms for large answers that are used or waited for, in the order in which they were asked for.
    """

    def __init__(
        self, bytes_max: int = MEMORY_BYTES_MAX, batch: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        """bytes_max: the limit.
        batch: returns a context manager in which early answers to pulls are sent together
        (`ockam.actors.node.Node.batch`).
        """
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
        """Returns how many bytes of unread answers a connection may have before it is slowed down.

        The result is `most_bytes` while all unread answers use at most half of the limit. Above that, the result is
        the connection's equal share of that half, but at least SHARE_BYTES_MIN and at most `most_bytes`.
        """
        if self.unread_bytes * 2 <= self.bytes_max:
            return most_bytes
        return min(most_bytes, max(SHARE_BYTES_MIN, self.bytes_max // (2 * max(1, self.behind))))

    def grant_rooms(self) -> None:
        """Grants the rooms that were asked for, oldest first, while they and all unread answers are within the limit.

        A connection has one room at a time, and gets none while it does not take its answers. One room is granted in
        any case if no answer is unread, or if it is late."""
        granted = [room for room in self.rooms if room.has_come]
        reserved_bytes = sum(room.size_bytes for room in granted)
        busy = {room.holdings for room in granted}
        for room in list(self.rooms):
            holdings = room.holdings
            if room.has_come or holdings in busy or holdings.unread_bytes > room.backlog_bytes_max:
                continue
            is_alone = not reserved_bytes and (room.is_late or not self.unread_bytes)
            reserved_bytes += room.size_bytes
            if self.unread_bytes + reserved_bytes > self.bytes_max and not is_alone:
                return
            busy.add(holdings)
            room.has_come = True
            room.tell()

    def change_limit(self, bytes_max: int) -> None:
        """Changes the limit, and frees memory if more is used."""
        self.bytes_max = bytes_max
        if self.size_bytes > bytes_max:
            self.make_room()
        self.grant_rooms()

    def make_room(self) -> None:
        """Frees memory until at most seven eighths of the limit are used.

        If only the excess were freed, nearly every message would call this method again."""
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
            forgets, given_up = holdings.yield_painless()
            self._forgotten += forgets
            self._given_up += given_up
        # Then the connections of peers that do not take their answers are closed.
        for holdings in sorted(by_size, key=lambda holdings: holdings.size_bytes, reverse=True):
            if self.size_bytes <= target_bytes:
                return
            self._closed += 1
            holdings.yield_all()

    def statistics(self) -> MemoryStatistics:
        kinds = self.header_bytes, self.unread_bytes, self.parked_bytes
        return MemoryStatistics(self.size_bytes, self.bytes_max, *kinds, self._forgotten, self._given_up, self._closed)


UNCOUNTED = Holdings(PeerMemory(1 << 62), lambda: None, lambda: None)
"""The `Holdings` for messages of this node's own workers. The memory of these messages is not limited."""
