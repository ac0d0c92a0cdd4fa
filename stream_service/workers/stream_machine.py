"""StreamMachine: decides the next index and time of one stream-partition, and which messages wait. It does no I/O.

At most one activity is under way at a time: opening the stream, an append, a copy, a change of the whole stream, or
loading the sequence numbers of publishers. Meanwhile, messages wait in three places and keep their order:

    staged    plain pushes, already decoded for the next append; only while a large append is under way
    held      the first message that cannot be staged, and all later messages that came with it
    mailbox   all other messages, while `accepts` is False
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from stream_service.workers.clock_machine import TOLERANCE_US

if TYPE_CHECKING:
    from ockam.actors.message import Message
    from stream_service.workers.stream_bounds import StreamBounds
    from stream_storage.contract import StreamRecord

STAGED_BEHIND_MIN = 32
"""An append of at least this many messages is large: new pushes are staged behind it. Behind a smaller one they stay in
the mailbox: staging would make many tiny appends, and handing each to the writing thread costs more than it saves."""
STAGED_MESSAGES_MAX = 10_000
"""At this number of staged pushes, further ones stay in the mailbox, which delivers at most as many at a time."""
STAGED_BYTES_MAX = 16 * 1024 * 1024
"""At this size of the staged data, in bytes, further pushes stay in the mailbox, which holds at most as much."""


class StreamActivity(enum.IntEnum):
    """The activity that is under way."""

    OPENING = enum.auto()  # the stream is being read, after all writes that its worker submitted before a crash
    SERVING = enum.auto()  # no activity is under way
    APPENDING = enum.auto()  # a small append is being committed
    STAGING = enum.auto()  # a large append is being committed, and plain pushes are decoded for the next one
    COPYING = enum.auto()  # copied messages are being committed
    CHANGING = enum.auto()  # a `StreamChange` is being committed, for example a change of the role
    LOADING = enum.auto()  # the sequence numbers of publishers are being read
    CLOSED = enum.auto()  # the worker has stopped


# Module names for the members: looking up a member in its enumeration takes longer than a transition.
OPENING, SERVING, APPENDING, STAGING, COPYING, CHANGING, LOADING, CLOSED = StreamActivity


class AppendStart(NamedTuple):
    """The index of the first message of an append, and the time of all its messages, in microseconds since 1970.

    falls_from_us: the time of the message before, if that is higher because a wrong clock was set back; None for nearly
    all appends.
    """

    first_index: int
    time_us: int
    falls_from_us: int | None


class StreamMachine:
    """The state of one stream-partition, and the messages that wait until its present activity has ended.

    last_time_us: the time of the latest message, in microseconds since 1970; 0 without a message. Times do not
    decrease, except where a wrong clock was set back.

    Every activity begins in the state SERVING, so that two of them never assign the same index, and ends there, also if
    it fails. After `close` no activity begins, but one that began before may still end.

    Invariant: pushes are staged only in the state STAGING. Messages are in `held` only while an activity is under way.
    An append that is under way begins at the next index of the stream. When the machine is closed, `held` is empty.
    `check` checks all of this.
    """

    __slots__ = ("_place", "bounds", "held", "last_time_us", "staged_bytes", "staged_messages", "state")

    def __init__(self, bounds: StreamBounds) -> None:
        self.state = OPENING
        self.bounds = bounds
        self.last_time_us = 0
        self.held: Sequence[Message] = ()
        self.staged_messages = 0
        self.staged_bytes = 0
        self._place: AppendStart | None = None

    @property
    def accepts(self) -> bool:
        if self.held:
            return False
        if self.state is STAGING:
            return self.staged_messages < STAGED_MESSAGES_MAX and self.staged_bytes < STAGED_BYTES_MAX
        return self.state is SERVING

    def open(self, last_time_us: int) -> None:
        """Ends the state OPENING. The caller has set the bounds."""
        self.end(OPENING)
        self.last_time_us = last_time_us

    def begin(self, activity: StreamActivity) -> None:
        assert self.state is SERVING, "another activity is under way"
        self.state = activity

    def end(self, activity: StreamActivity) -> None:
        if self.state is not CLOSED:
            assert self.state is activity, "this activity is not under way"
            self.state = SERVING

    def stage(self, messages: int, size_bytes: int) -> None:
        assert self.state is STAGING, "pushes are staged behind a large append only"
        self.staged_messages += messages
        self.staged_bytes += size_bytes

    def hold(self, messages: Sequence[Message]) -> None:
        """Keeps these messages until the present activity has ended. None may be kept already."""
        assert not self.held, "messages that are held already come before these"
        self.held = messages

    def take_held(self) -> Sequence[Message]:
        """Removes and returns the messages of `hold`, which come before all others."""
        held, self.held = self.held, ()
        return held

    def begin_append(self, messages: int, now_us: int) -> AppendStart:
        """Begins an append of this many messages, which are no longer staged."""
        self.begin(STAGING if messages >= STAGED_BEHIND_MIN else APPENDING)
        self.staged_messages = self.staged_bytes = 0
        before_us = self.last_time_us
        if before_us - now_us > TOLERANCE_US:
            # The clock was wrong and has been set back. Without a lower time here, all later messages would get the
            # wrong time too. The place is recorded in `time_falls`.
            self.last_time_us = now_us
            place = AppendStart(self.bounds.next_index, now_us, before_us)
        else:
            self.last_time_us = time_us = now_us if now_us > before_us else before_us
            place = AppendStart(self.bounds.next_index, time_us, None)
        self._place = place
        return place

    def end_append(self, stored: int) -> None:
        """Ends the append. stored: the number of stored messages; 0: it failed."""
        self.end(STAGING if self.state is STAGING else APPENDING)
        place, self._place = self._place, None
        self.bounds.grow(stored)
        if not stored and place is not None and place.falls_from_us is not None:
            # The place with the lower time was not recorded either, so the next append has to record it.
            self.last_time_us = place.falls_from_us

    def can_copy(self, index: int) -> bool:
        """Whether a copy may begin at this index: at the next one, or anywhere in a stream never written to."""
        return index == self.bounds.next_index or self.begins_with(index)

    def begins_with(self, index: int) -> bool:
        """Whether a copy at this index moves the beginning of a stream that was never written to."""
        return self.bounds.next_index == 0 != index

    def end_copy(self, index: int, stored: int, last_time_us: int) -> None:
        """Ends a copy that began at this index. stored: the number of its messages; 0: it failed."""
        self.end(COPYING)
        if stored:
            first_index = index if self.begins_with(index) else self.bounds.first_index
            self.bounds.move(first_index, index + stored)
            self.last_time_us = last_time_us

    def end_change(self, record: StreamRecord | None, last_time_us: int) -> None:
        """Ends a change. record: the row of the stream after it; None: it has failed."""
        self.end(CHANGING)
        if record is not None:
            self.bounds.become(record)
            self.last_time_us = last_time_us

    def move_end(self, next_index: int, last_time_us: int) -> None:
        """Moves the end of the stream behind messages that are stored although that was not known."""
        assert self.state is SERVING, "an activity that is under way has begun at the end as it was"
        self.bounds.move(self.bounds.first_index, next_index)
        self.last_time_us = last_time_us

    def close(self) -> Sequence[Message]:
        """Closes the machine. Returns the messages of `hold`, which the caller must refuse."""
        self.state = CLOSED
        self.staged_messages = self.staged_bytes = 0
        return self.take_held()

    def check(self) -> None:
        """Asserts the invariant, for tests."""
        assert self.state is STAGING or self.staged_messages == self.staged_bytes == 0
        assert not self.held or self.state not in (SERVING, CLOSED)
        assert (self._place is not None) == (self.state in (APPENDING, STAGING)) or self.state is CLOSED
        assert self._place is None or self.state is CLOSED or self._place.first_index == self.bounds.next_index
        assert 0 <= self.bounds.first_index <= self.bounds.next_index
