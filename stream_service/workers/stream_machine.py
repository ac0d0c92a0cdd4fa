"""What one stream-partition is doing, as a machine: which index and time come next, and which messages must wait.

It is pure: it decodes nothing, stores nothing and sends nothing, and the time is a parameter. `workers.stream` does
these things for it.

At most one thing is under way at a time: opening, an append, a copy, or loading the sequence numbers of publishers.
While it is, messages wait in three places, and keep their order:

    staged    plain pushes that are decoded already, for the next append; behind a large append only
    held      the first message that cannot be staged, and all that came with it and behind it
    mailbox   everything else, while `accepts` is False
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from stream_service.workers.clock_machine import TOLERANCE_US

if TYPE_CHECKING:
    from ockam.message import Message

STAGED_BEHIND_MIN = 32
"""While a small append (fewer messages than this) is being committed, new pushes stay in the mailbox. Decoding them at
once would produce many tiny appends, and handing each to the writing thread costs more than it saves."""
STAGED_MESSAGES_MAX = 10_000
"""With this many pushes staged, further ones stay in the mailbox: as many as one run of the mailbox can have."""
STAGED_BYTES_MAX = 16 * 1024 * 1024
"""With this many bytes of payloads staged, further pushes stay in the mailbox: as many as fill a mailbox."""


class State(enum.IntEnum):
    """What is under way.

    OPENING: the stream is read from the database, behind all that an earlier life of its worker has left there.
    SERVING: nothing is under way. LOADING: the sequence numbers of publishers are read.
    APPENDING: a small append is being committed. STAGING: a large one is, and plain pushes are staged meanwhile.
    COPYING: copied messages are being committed. CLOSED: the worker has stopped.
    """

    OPENING = enum.auto()
    SERVING = enum.auto()
    APPENDING = enum.auto()
    STAGING = enum.auto()
    COPYING = enum.auto()
    LOADING = enum.auto()
    CLOSED = enum.auto()


class Event(enum.IntEnum):
    """What happens to a stream; what has begun ends once, whether it was stored or not."""

    OPENED = enum.auto()
    SMALL_APPEND = enum.auto()
    LARGE_APPEND = enum.auto()
    APPEND_ENDED = enum.auto()
    COPY_BEGUN = enum.auto()
    COPY_ENDED = enum.auto()
    LOAD_BEGUN = enum.auto()
    LOAD_ENDED = enum.auto()
    CLOSE = enum.auto()


# As names of the module, since looking a member up in its enumeration takes longer than a transition.
OPENING, SERVING, APPENDING, STAGING, COPYING, LOADING, CLOSED = State
OPENED, SMALL_APPEND, LARGE_APPEND, APPEND_ENDED, COPY_BEGUN, COPY_ENDED, LOAD_BEGUN, LOAD_ENDED, CLOSE = Event

# A pair that is not in the table is a mistake of ours. Everything begins in SERVING, so that nothing is assigned an
# index while other messages may still get it.
TRANSITIONS: dict[State, dict[Event, State]] = {
    OPENING: {
        OPENED: SERVING,
        CLOSE: CLOSED,
    },
    SERVING: {
        SMALL_APPEND: APPENDING,
        LARGE_APPEND: STAGING,
        COPY_BEGUN: COPYING,
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
    LOADING: {
        LOAD_ENDED: SERVING,
        CLOSE: CLOSED,
    },
    # What was begun before may still end; nothing begins.
    CLOSED: {
        OPENED: CLOSED,
        APPEND_ENDED: CLOSED,
        COPY_ENDED: CLOSED,
        LOAD_ENDED: CLOSED,
        CLOSE: CLOSED,
    },
}


class StreamBounds:
    """Where a stream is stored, and where it begins and ends, as its worker knows it; the worker's parts share it."""

    __slots__ = ("first_index", "next_index", "stream_id")

    def __init__(self, stream_id: int, first_index: int, next_index: int) -> None:
        self.stream_id = stream_id
        self.first_index = first_index
        self.next_index = next_index


class Place(NamedTuple):
    """Where and with which time an append is stored.

    falls_from_us: the time of the message before, where the new time is lower because the clock was wrong before.
    """

    first_index: int
    time_us: int
    falls_from_us: int | None


class StreamMachine:
    """The state of one stream-partition, and the messages that wait for it to change.

    bounds: shared with the truncation of the stream, which moves its front; this machine alone moves its end.
    last_time_us: of the latest message; times along a stream do not fall, except where a wrong clock was set back.
    Invariant: pushes are staged only in STAGING. Messages are held only while something is under way. The append that
    is under way begins at the stream's end. When closed, nothing is held. `check` looks at all of this.
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
        """Whether more messages may come from the mailbox now."""
        if self.held:
            return False
        if self.state is STAGING:
            return self.staged_messages < STAGED_MESSAGES_MAX and self.staged_bytes < STAGED_BYTES_MAX
        return self.state is SERVING

    def open(self, last_time_us: int) -> None:
        """The stream has been read from the database, and its bounds are set."""
        self.state = TRANSITIONS[self.state][OPENED]
        self.last_time_us = last_time_us

    def stage(self, messages: int, size_bytes: int) -> None:
        """So many more pushes, with so many bytes of payload, are decoded and wait for the next append."""
        assert self.state is STAGING, "pushes are staged behind a large append only"
        self.staged_messages += messages
        self.staged_bytes += size_bytes

    def hold(self, messages: Sequence[Message]) -> None:
        """Keep these messages until what is under way has ended; none may be held already."""
        assert not self.held, "messages that are held already come before these"
        self.held = messages

    def take_held(self) -> Sequence[Message]:
        """The messages that were held. They are to be handled now, before all others."""
        held, self.held = self.held, ()
        return held

    def begin_append(self, messages: int, now_us: int) -> Place:
        """Where so many messages are stored next. What was staged is part of them, or was refused."""
        self.state = TRANSITIONS[self.state][LARGE_APPEND if messages >= STAGED_BEHIND_MIN else SMALL_APPEND]
        self.staged_messages = self.staged_bytes = 0
        before_us = self.last_time_us
        if before_us - now_us > TOLERANCE_US:
            # The clock was wrong and has been set back. Going on from the wrong time would give it to all later
            # messages too, so the times fall here, and the log notes the place.
            self.last_time_us = now_us
            place = Place(self.bounds.next_index, now_us, before_us)
        else:
            self.last_time_us = time_us = now_us if now_us > before_us else before_us
            place = Place(self.bounds.next_index, time_us, None)
        self._place = place
        return place

    def end_append(self, stored: int) -> None:
        """The append has ended, with so many messages stored: all of them, or none."""
        self.state = TRANSITIONS[self.state][APPEND_ENDED]
        place, self._place = self._place, None
        self.bounds.next_index += stored
        if not stored and place is not None and place.falls_from_us is not None:
            # The place of the fall was not noted either, so the next append has to note it.
            self.last_time_us = place.falls_from_us

    def can_copy(self, index: int) -> bool:
        """Whether copied messages may begin at this index: at the stream's end, or anywhere in one never written to."""
        return index == self.bounds.next_index or self.begins_with(index)

    def begins_with(self, index: int) -> bool:
        """Whether a copy to this index would be the first messages of the stream, and not begin at 0."""
        return self.bounds.next_index == 0 != index

    def begin_copy(self) -> None:
        """Copied messages are on their way to the disk."""
        self.state = TRANSITIONS[self.state][COPY_BEGUN]

    def end_copy(self, index: int, stored: int, last_time_us: int) -> None:
        """The copy has ended, with so many messages stored from `index` on: all of them, or none."""
        self.state = TRANSITIONS[self.state][COPY_ENDED]
        if stored:
            if self.begins_with(index):
                self.bounds.first_index = index
            self.bounds.next_index = index + stored
            self.last_time_us = last_time_us

    def begin_load(self) -> None:
        """The sequence numbers of publishers are being read."""
        self.state = TRANSITIONS[self.state][LOAD_BEGUN]

    def end_load(self) -> None:
        """The sequence numbers are known, or cannot be read."""
        self.state = TRANSITIONS[self.state][LOAD_ENDED]

    def close(self) -> Sequence[Message]:
        """The worker has stopped. Returns the messages that were held; nobody will handle them."""
        self.state = TRANSITIONS[self.state][CLOSE]
        self.staged_messages = self.staged_bytes = 0
        return self.take_held()

    def check(self) -> None:
        """The invariant, for tests: to be called between turns."""
        assert self.state is STAGING or self.staged_messages == self.staged_bytes == 0
        assert not self.held or self.state not in (SERVING, CLOSED)
        assert (self._place is not None) == (self.state in (APPENDING, STAGING)) or self.state is CLOSED
        assert self._place is None or self.state is CLOSED or self._place.first_index == self.bounds.next_index
        assert 0 <= self.bounds.first_index <= self.bounds.next_index
