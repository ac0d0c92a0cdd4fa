"""The storage operations of mirrors. `workers.stream.StreamWorker.change` runs those that change a stream.

Each operation is one transaction, so a mirror that is killed goes on where its last transaction ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stream_service import stored
from stream_service.mirror_rows import MirrorRow, change_following
from stream_service.operations import INDEX_MAX
from stream_service.publisher_rows import cut_publishers
from stream_storage.contract import Append, Operation, Record, Session, StreamRecord
from stream_storage.history import History, ensure_history, list_history, set_history, shared_history
from stream_storage.timed import find_falls, timed_appends

STEP_MESSAGES = 1_000
STEP_BYTES = 4 * 1024 * 1024
"""About the largest size of the messages that one transaction moves or cuts."""


class LoadHistory(Operation):
    """Reads the history of a stream, and makes one if the stream has none yet. It is a write."""

    __slots__ = ("history", "stream_id")

    def __init__(self, stream_id: int, on_done: Callable[[LoadHistory], None]) -> None:
        super().__init__(on_done)
        self.stream_id = stream_id
        self.history: History = ()

    def apply(self, session: Session) -> None:
        # A stream that was deleted meanwhile gets no history.
        session.log.get_stream(self.stream_id)
        self.history = ensure_history(session, self.stream_id)


class StreamChange(Operation):
    """A change of a stream that its worker makes while nothing else changes it."""

    __slots__ = ("appended", "history", "last_time_us", "mirror", "record", "stream_id")

    def __init__(self, stream_id: int, on_done: Callable[[Any], None]) -> None:
        super().__init__(on_done)
        self.stream_id = stream_id
        self.record: StreamRecord | None = None  # these four: what is stored after the change
        self.last_time_us = 0
        self.history: History = ()
        self.mirror: MirrorRow | None = None
        self.appended: Sequence[Append] = ()  # the new messages, for the tail in memory

    def change(self, session: Session) -> None:
        raise NotImplementedError

    def apply(self, session: Session) -> None:
        self.change(session)
        now = stored.stored_stream(session, session.log.get_stream(self.stream_id))
        self.record, self.last_time_us, self.mirror = now.record, now.last_time_us, now.mirror
        self.history = list_history(session, self.stream_id)

    def row_count(self) -> int:
        return sum(append.row_count() for append in self.appended)


class StoreMirrored(StreamChange):
    """Stores messages of the source at their indexes, together with the history and the end of the source.

    records: the messages; the first one has the next index of the mirror. There may be none.
    before_us: the time of the mirror's latest message, in microseconds since 1970.
    source_next_index, heard_us: see `stream_service.mirror_rows.MirrorRow`.
    """

    __slots__ = ("_appends", "before_us", "heard_us", "records", "source_history", "source_next_index")

    def __init__(
        self,
        stream_id: int,
        records: Sequence[Record],
        before_us: int,
        history: History,
        source_next_index: int,
        heard_us: int,
        on_done: Callable[[Any], None],
    ) -> None:
        super().__init__(stream_id, on_done)
        self.records = records
        self.before_us = before_us
        self.source_history = history
        self.source_next_index = source_next_index
        self.heard_us = heard_us
        self._appends = timed_appends(stream_id, records)

    def change(self, session: Session) -> None:
        known = {"source_next_index": self.source_next_index, "heard_us": self.heard_us}
        change_following(session, self.stream_id, sets_aside=False, **known)
        for index in find_falls(self.records, self.before_us):
            stored.note_fall(session, self.stream_id, index)
        session.log.append(self._appends)
        self.appended = self._appends
        end = session.log.get_stream(self.stream_id).next_index
        history = tuple(entry for entry in self.source_history if entry.first_index <= end)
        if history != list_history(session, self.stream_id):
            set_history(session, self.stream_id, history)


class BeginAside(StreamChange):
    """Writes down the name of the stream to which messages of a mirror are going to be moved."""

    __slots__ = ("name",)

    def __init__(self, stream_id: int, name: str, on_done: Callable[[Any], None]) -> None:
        super().__init__(stream_id, on_done)
        self.name = name

    def change(self, session: Session) -> None:
        change_following(session, self.stream_id, aside_name=self.name, aside_messages=0)


class SkipForward(StreamChange):
    """Moves a mirror without messages to a higher index, because its source has deleted the messages before."""

    __slots__ = ("index",)

    def __init__(self, stream_id: int, index: int, on_done: Callable[[Any], None]) -> None:
        super().__init__(stream_id, on_done)
        self.index = index

    def change(self, session: Session) -> None:
        session.log.skip_to(self.stream_id, self.index)


class CutTail(StreamChange):
    """Cuts the last messages of a stream, at most one step of them, down to `index`.

    aside_messages: the number of messages that the caller has stored elsewhere.
    done: whether all messages from `index` on are cut. With the last step, the history loses the entries that the
    source does not have.
    """

    __slots__ = ("aside_messages", "done", "index", "source_history")

    def __init__(
        self, stream_id: int, index: int, history: History, aside_messages: int, on_done: Callable[[Any], None]
    ) -> None:
        super().__init__(stream_id, on_done)
        self.index = index
        self.source_history = history
        self.aside_messages = aside_messages
        self.done = False

    def change(self, session: Session) -> None:
        record = session.log.get_stream(self.stream_id)
        end = max(self.index, record.next_index - STEP_MESSAGES)
        session.log.cut_from(self.stream_id, end)
        cut_publishers(session, self.stream_id, end)
        self.done = end <= self.index
        if self.done:
            shared = shared_history(list_history(session, self.stream_id), self.source_history)
            set_history(session, self.stream_id, shared)
            if self.aside_messages:
                change_following(session, self.stream_id, sets_aside=False, aside_messages=self.aside_messages)


class TakeHistory(StreamChange):
    """Drops the entries of the history that the source does not have. The stream has no message of them."""

    __slots__ = ("source_history",)

    def __init__(self, stream_id: int, history: History, on_done: Callable[[Any], None]) -> None:
        super().__init__(stream_id, on_done)
        self.source_history = history

    def change(self, session: Session) -> None:
        shared = shared_history(list_history(session, self.stream_id), self.source_history)
        set_history(session, self.stream_id, shared)


class CopyAside(Operation):
    """Copies one step of the last messages of a stream, from `index` on, to another stream at the same indexes.

    If the other stream does not begin there, nothing is copied: an earlier move from another index has made it, and the
    messages in between would be missing.
    """

    __slots__ = ("created_us", "done", "fits", "index", "name", "partition", "record", "stream_id")

    def __init__(
        self, stream_id: int, index: int, name: str, partition: int, created_us: int, on_done: Callable[[Any], None]
    ) -> None:
        super().__init__(on_done)
        self.stream_id = stream_id
        self.index = index
        self.name = name
        self.partition = partition
        self.created_us = created_us
        self.record: StreamRecord | None = None  # the row of the other stream after the step
        self.fits = True  # whether the other stream begins where the copies begin
        self.done = False  # whether the other stream has all messages now

    def apply(self, session: Session) -> None:
        log = session.log
        stream = log.get_stream(self.stream_id)
        index = max(self.index, stream.first_index)
        other = log.ensure_stream(self.name, self.partition, self.created_us)
        ensure_history(session, other.stream_id)
        if not other.next_index and index:
            log.begin_at(other.stream_id, index)
            other = log.get_stream(other.stream_id)
        self.record, self.fits = other, other.first_index == index
        if not self.fits:
            return
        records = log.read(self.stream_id, max(index, other.next_index), STEP_MESSAGES, STEP_BYTES)
        if records:
            last_us = stored.find_time_us(session, other.stream_id, other.next_index - 1) or 0
            for fall in find_falls(records, last_us):
                stored.note_fall(session, other.stream_id, fall)
            log.append(timed_appends(other.stream_id, records))
        self.record = log.get_stream(other.stream_id)
        self.done = self.record.next_index >= stream.next_index


class ReadOne(Operation):
    __slots__ = ("found", "index", "stream_id")

    def __init__(self, stream_id: int, index: int, on_done: Callable[[ReadOne], None]) -> None:
        super().__init__(on_done)
        self.stream_id = stream_id
        self.index = index
        self.found: Record | None = None

    def apply(self, session: Session) -> None:
        records = session.log.read(self.stream_id, min(self.index, INDEX_MAX), 1, 1)
        self.found = records[0] if records and records[0][0] == self.index else None
