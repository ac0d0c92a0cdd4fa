"""The storage operations of mirrors. `workers.stream.StreamWorker.change` runs those that take a StreamChange.

Each of them is one transaction, so a mirror that is killed goes on where its last transaction ended. After a rollback a
function can be called again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

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

T = TypeVar("T")


class StreamChange(Operation, Generic[T]):
    """A change of a stream that its worker makes while nothing else changes it.

    work: makes the change, and returns its result.
    record, last_time_us, history, mirror: what is stored after the change.
    appended: the messages that `work` has appended, for the messages in memory.
    """

    __slots__ = ("_work", "appended", "history", "last_time_us", "mirror", "record", "result", "stream_id")
    result: T

    def __init__(
        self, stream_id: int, work: Callable[[Session, StreamChange[Any]], T], on_done: Callable[[Any], None]
    ) -> None:
        super().__init__(on_done)
        self._work = work
        self.stream_id = stream_id
        self.record: StreamRecord | None = None
        self.last_time_us = 0
        self.history: History = ()
        self.mirror: MirrorRow | None = None
        self.appended: Sequence[Append] = ()

    def apply(self, session: Session) -> None:
        self.appended = ()
        self.result = self._work(session, self)
        now = stored.stored_stream(session, session.log.get_stream(self.stream_id))
        self.record, self.last_time_us, self.mirror = now.record, now.last_time_us, now.mirror
        self.history = list_history(session, self.stream_id)

    def row_count(self) -> int:
        return sum(append.row_count() for append in self.appended)


AnyChange = StreamChange[Any]


def load_history(session: Session, stream_id: int) -> History:
    """Returns the history of a stream, and makes one if the stream has none yet. It is a write."""
    # A stream that was deleted meanwhile gets no history.
    session.log.get_stream(stream_id)
    return ensure_history(session, stream_id)


def store_mirrored(
    session: Session,
    change: AnyChange,
    records: Sequence[Record],
    before_us: int,
    source_history: History,
    source_next_index: int,
    heard_us: int,
) -> None:
    """Stores messages of the source at their indexes, together with the history and the end of the source.

    records: the messages; the first one has the next index of the mirror. There may be none.
    before_us: the time of the mirror's latest message, in microseconds since 1970.
    source_next_index, heard_us: see `stream_service.mirror_rows.MirrorRow`.
    """
    known = {"source_next_index": source_next_index, "heard_us": heard_us}
    change_following(session, change.stream_id, sets_aside=False, **known)
    for index in find_falls(records, before_us):
        stored.note_fall(session, change.stream_id, index)
    change.appended = timed_appends(change.stream_id, records)
    session.log.append(change.appended)
    end = session.log.get_stream(change.stream_id).next_index
    history = tuple(entry for entry in source_history if entry.first_index <= end)
    if history != list_history(session, change.stream_id):
        set_history(session, change.stream_id, history)


def begin_aside(session: Session, change: AnyChange, name: str) -> None:
    """Writes down the name of the stream to which messages of a mirror are going to be moved."""
    change_following(session, change.stream_id, aside_name=name, aside_messages=0)


def skip_forward(session: Session, change: AnyChange, index: int) -> None:
    """Moves a mirror without messages to a higher index, because its source has deleted the messages before."""
    session.log.skip_to(change.stream_id, index)


def cut_tail(session: Session, change: AnyChange, index: int, source_history: History, aside_messages: int) -> bool:
    """Deletes the last messages of a stream, down to `index`, but at most STEP_MESSAGES. Returns whether all are gone.

    Then the history also loses the entries that the source does not have.
    aside_messages: the number of messages that the caller has stored elsewhere.
    """
    record = session.log.get_stream(change.stream_id)
    end = max(index, record.next_index - STEP_MESSAGES)
    session.log.cut_from(change.stream_id, end)
    cut_publishers(session, change.stream_id, end)
    if end > index:
        return False
    take_history(session, change, source_history)
    if aside_messages:
        change_following(session, change.stream_id, sets_aside=False, aside_messages=aside_messages)
    return True


def take_history(session: Session, change: AnyChange, source_history: History) -> None:
    """Drops the entries of the history that the source does not have. The stream has no message of these entries."""
    shared = shared_history(list_history(session, change.stream_id), source_history)
    set_history(session, change.stream_id, shared)


class Copied(NamedTuple):
    """record: the row of the other stream after the step. fits: whether that stream begins where the copies begin.
    done: whether that stream has all messages now."""

    record: StreamRecord
    fits: bool
    done: bool


def copy_aside(session: Session, stream_id: int, index: int, name: str, partition: int, created_us: int) -> Copied:
    """Copies one step of the last messages of a stream, from `index` on, to another stream at the same indexes.

    If the other stream begins at another index, nothing is copied: an earlier move has made that stream, and the
    messages between the two moves would be missing.
    """
    log = session.log
    stream = log.get_stream(stream_id)
    index = max(index, stream.first_index)
    other = log.ensure_stream(name, partition, created_us)
    ensure_history(session, other.stream_id)
    if not other.next_index and index:
        log.begin_at(other.stream_id, index)
        other = log.get_stream(other.stream_id)
    if other.first_index != index:
        return Copied(other, fits=False, done=False)
    records = log.read(stream_id, max(index, other.next_index), STEP_MESSAGES, STEP_BYTES)
    if records:
        last_us = stored.find_time_us(session, other.stream_id, other.next_index - 1) or 0
        for fall in find_falls(records, last_us):
            stored.note_fall(session, other.stream_id, fall)
        log.append(timed_appends(other.stream_id, records))
    other = log.get_stream(other.stream_id)
    return Copied(other, fits=True, done=other.next_index >= stream.next_index)


def find_record(session: Session, stream_id: int, index: int) -> Record | None:
    records = session.log.read(stream_id, min(index, INDEX_MAX), 1, 1)
    return records[0] if records and records[0][0] == index else None
