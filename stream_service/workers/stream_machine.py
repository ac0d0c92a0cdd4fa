"""StreamMachine: the state machine of one stream-partition. It decides the next index and time, and which messages
wait.

The machine is pure: it decodes, stores and sends nothing, and gets the time as a parameter. `workers.stream` does these
things.

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
"""An append of at least this many messages is large. While a large append is being committed, new pushes are decoded
for the next append. While a smaller one is being committed, new pushes stay in the mailbox. Decoding them would produce
many tiny appends, and handing each append to the writing thread costs more than the decoding saves."""
STAGED_MESSAGES_MAX = 10_000
"""The number of staged pushes (decoded for the next append) at which further pushes stay in the mailbox. The mailbox
delivers at most this many messages at a time."""
STAGED_BYTES_MAX = 16 * 1024 * 1024
"""The size of the staged pushes (decoded for the next append), in bytes of data, at which further pushes stay in the
mailbox. A full mailbox has the same size."""


class State(enum.IntEnum):
    """The state of a stream: the activity that is under way.

    OPENING: the stream is being read from the database, after all writes that its worker submitted before a crash.
    SERVING: no activity is under way.
    APPENDING: a small append is being committed.
    STAGING: a large append is being committed. Meanwhile plain pushes are staged: decoded for the next append.
    COPYING: copied messages are being committed.
    CHANGING: a change of the whole stream is being committed: of its role, or of its messages by its mirror.
    LOADING: the sequence numbers of publishers are being read.
    CLOSED: the worker has stopped.
    """

    OPENING = enum.auto()
    SERVING = enum.auto()
    APPENDING = enum.auto()
    STAGING = enum.auto()
    COPYING = enum.auto()
    CHANGING = enum.auto()
    LOADING = enum.auto()
    CLOSED = enum.auto()


class Event(enum.IntEnum):
    """An event of a stream: an activity begins or ends. An append, a copy, a change or a load also ends if it fails.

    A load reads the sequence numbers of publishers.
    """

    OPENED = enum.auto()
    SMALL_APPEND = enum.auto()
    LARGE_APPEND = enum.auto()
    APPEND_ENDED = enum.auto()
    COPY_BEGUN = enum.auto()
    COPY_ENDED = enum.auto()
    CHANGE_BEGUN = enum.auto()
    CHANGE_ENDED = enum.auto()
    LOAD_BEGUN = enum.auto()
    LOAD_ENDED = enum.auto()
    CLOSE = enum.auto()


# Module names for the members: looking up a member in its enumeration takes longer than a transition.
OPENING, SERVING, APPENDING, STAGING, COPYING, CHANGING, LOADING, CLOSED = State
(
    OPENED,
    SMALL_APPEND,
    LARGE_APPEND,
    APPEND_ENDED,
    COPY_BEGUN,
    COPY_ENDED,
    CHANGE_BEGUN,
    CHANGE_ENDED,
    LOAD_BEGUN,
    LOAD_ENDED,
    CLOSE,
) = Event

# The state after each event. If an event occurs that is missing for its state, this program has a mistake. Every
# activity begins in SERVING, so that two of them never assign the same index.
TRANSITIONS: dict[State, dict[Event, State]] = {
    OPENING: {
        OPENED: SERVING,
        CLOSE: CLOSED,
    },
    SERVING: {
        SMALL_APPEND: APPENDING,
        LARGE_APPEND: STAGING,
        COPY_BEGUN: COPYING,
        CHANGE_BEGUN: CHANGING,
        LOAD_BEGUN: LOADING,
        CLOSE: CLOSED,
    },
    APPENDING: {
        APPEND_ENDED: SERVING,
        CLOSE: CLOSED,
    },
    STAGING: {
        APPEND_ENDED: SERVING,
        CLOSE: CLOSED,
    },
    COPYING: {
        COPY_ENDED: SERVING,
        CLOSE: CLOSED,
    },
    CHANGING: {
        CHANGE_ENDED: SERVING,
        CLOSE: CLOSED,
    },
    LOADING: {
        LOAD_ENDED: SERVING,
        CLOSE: CLOSED,
    },
    # An activity that began before the close may still end. No activity begins.
    CLOSED: {
        OPENED: CLOSED,
        APPEND_ENDED: CLOSED,
        COPY_ENDED: CLOSED,
        CHANGE_ENDED: CLOSED,
        LOAD_ENDED: CLOSED,
        CLOSE: CLOSED,
    },
}


class Place(NamedTuple):
    """The index and the time of an append.

    first_index: the index of the first message.
    time_us: the time of all messages, in microseconds since 1970.
    falls_from_us: the time of the previous message if it is higher than `time_us`, because a wrong clock was set back;
    otherwise None.
    """

    first_index: int
    time_us: int
    falls_from_us: int | None


class StreamMachine:
    """The state of one stream-partition, and the messages that wait until its present activity has ended.

    bounds: the id and bounds of the stream, which all parts of its worker share.
    last_time_us: the time of the latest message, in microseconds since 1970. Times do not decrease, except where a
    wrong clock was set back.

    Invariant: pushes are staged (decoded for the next append) only in the state STAGING. Messages are in `held` only
    while an activity is under way. An append that is under way begins at the next index of the stream. When the machine
    is closed, `held` is empty. `check` checks all of this.
    """

    def __init__(self, bounds: StreamBounds) -> None:
        self.state = OPENING
        self.bounds = bounds
        self.last_time_us = 0
        self.held: Sequence[Message] = ()
        self.staged_messages = 0
        self.staged_bytes = 0
        self._place: Place | None = None

    @property
    def accepts(self) -> bool:
        """Whether the worker may take more messages from its mailbox now."""
        if self.held:
            return False
        if self.state is STAGING:
            return self.staged_messages < STAGED_MESSAGES_MAX and self.staged_bytes < STAGED_BYTES_MAX
        return self.state is SERVING

    def open(self, last_time_us: int) -> None:
        """Ends the state OPENING. The caller has read the stream from the database and has set the bounds.

        last_time_us: the time of the stream's latest message, in microseconds since 1970; 0 if there is no message.
        """
        self.state = TRANSITIONS[self.state][OPENED]
        self.last_time_us = last_time_us

    def stage(self, messages: int, size_bytes: int) -> None:
        """Counts pushes that were staged: decoded for the next append.

        messages: the number of these pushes.
        size_bytes: the size of their data, in bytes.
        """
        assert self.state is STAGING, "pushes are staged behind a large append only"
        self.staged_messages += messages
        self.staged_bytes += size_bytes

    def hold(self, messages: Sequence[Message]) -> None:
        """Keeps these messages until the present activity has ended. Must not be called while messages are kept
        already."""
        assert not self.held, "messages that are held already come before these"
        self.held = messages

    def take_held(self) -> Sequence[Message]:
        """Removes and returns the messages that `hold` has kept. The caller must handle them before all others."""
        held, self.held = self.held, ()
        return held

    def begin_append(self, messages: int, now_us: int) -> Place:
        """Begins an append of this many messages. Returns the index and time of the append.

        After this call, no push counts as staged (decoded for the next append).
        """
        self.state = TRANSITIONS[self.state][LARGE_APPEND if messages >= STAGED_BEHIND_MIN else SMALL_APPEND]
        self.staged_messages = self.staged_bytes = 0
        before_us = self.last_time_us
        if before_us - now_us > TOLERANCE_US:
            # The clock was wrong and has been set back. Without a lower time here, all later messages would get the
            # wrong time too. The place is recorded in `time_falls`.
            self.last_time_us = now_us
            place = Place(self.bounds.next_index, now_us, before_us)
        else:
            self.last_time_us = time_us = now_us if now_us > before_us else before_us
            place = Place(self.bounds.next_index, time_us, None)
        self._place = place
        return place

    def end_append(self, stored: int) -> None:
        """Ends the append.

        stored: the number of messages that were stored, or 0 if the append failed.
        """
        self.state = TRANSITIONS[self.state][APPEND_ENDED]
        place, self._place = self._place, None
        self.bounds.grow(stored)
        if not stored and place is not None and place.falls_from_us is not None:
            # The place with the lower time was not recorded either, so the next append has to record it.
            self.last_time_us = place.falls_from_us

    def can_copy(self, index: int) -> bool:
        """Whether a copy may begin at this index: it is the next index of the stream, or the stream has never had a
        message."""
        return index == self.bounds.next_index or self.begins_with(index)

    def begins_with(self, index: int) -> bool:
        """Whether a copy at this index changes the first index of the stream.

        This is so if the stream has never had a message, and the index is not 0.
        """
        return self.bounds.next_index == 0 != index

    def begin_copy(self) -> None:
        """Notes that a copy begins: messages of another stream are stored here with their original indexes
        and times."""
        self.state = TRANSITIONS[self.state][COPY_BEGUN]

    def end_copy(self, index: int, stored: int, last_time_us: int) -> None:
        """Notes that the copy (`begin_copy`) has ended, and moves the end of the stream past the stored messages.

        index: the index of the first copied message.
        stored: the number of messages that were stored, or 0 if the copy failed.
        last_time_us: the time of the stream's latest message after the copy, in microseconds since 1970. Not used if
        the copy failed.
        """
        self.state = TRANSITIONS[self.state][COPY_ENDED]
        if stored:
            first_index = index if self.begins_with(index) else self.bounds.first_index
            self.bounds.move(first_index, index + stored)
            self.last_time_us = last_time_us

    def begin_change(self) -> None:
        """Notes that a change of the whole stream begins."""
        self.state = TRANSITIONS[self.state][CHANGE_BEGUN]

    def end_change(self, record: StreamRecord | None, last_time_us: int) -> None:
        """Notes that the change has ended.

        record: the row of the stream after the change; None: the change has failed.
        last_time_us: as for `end_copy`.
        """
        self.state = TRANSITIONS[self.state][CHANGE_ENDED]
        if record is not None:
            self.bounds.become(record)
            self.last_time_us = last_time_us

    def move_end(self, next_index: int, last_time_us: int) -> None:
        """Moves the end of the stream, because messages are stored of which that was not known. No activity must be
        under way.

        last_time_us: the time of the stream's latest message, in microseconds since 1970.
        """
        assert self.state is SERVING, "an activity that is under way has begun at the end as it was"
        self.bounds.move(self.bounds.first_index, next_index)
        self.last_time_us = last_time_us

    def begin_load(self) -> None:
        """Notes that the sequence numbers of publishers are being read from the database."""
        self.state = TRANSITIONS[self.state][LOAD_BEGUN]

    def end_load(self) -> None:
        """Notes that the read of the sequence numbers of publishers has ended, whether it succeeded or failed."""
        self.state = TRANSITIONS[self.state][LOAD_ENDED]

    def close(self) -> Sequence[Message]:
        """Closes the machine, because the worker has stopped. Returns the messages that `hold` has kept; the caller
        must refuse them."""
        self.state = TRANSITIONS[self.state][CLOSE]
        self.staged_messages = self.staged_bytes = 0
        return self.take_held()

    def check(self) -> None:
        """Asserts the invariant of this class. Only tests call this method."""
        assert self.state is STAGING or self.staged_messages == self.staged_bytes == 0
        assert not self.held or self.state not in (SERVING, CLOSED)
        assert (self._place is not None) == (self.state in (APPENDING, STAGING)) or self.state is CLOSED
        assert self._place is None or self.state is CLOSED or self._place.first_index == self.bounds.next_index
        assert 0 <= self.bounds.first_index <= self.bounds.next_index
