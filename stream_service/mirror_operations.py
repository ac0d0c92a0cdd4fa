"""The storage operations that change a stream as a whole: those of mirrors, those that change the role of a stream, by
the table of `stream_service.role_machine`, and that of `node/stream_append/1`.

`workers.stream.StreamWorker.change` runs those that take a StreamChange. Each of them is one transaction, so a mirror
that is killed goes on where its last transaction ended. After a rollback a function can be called again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from stream_service import mirror_rows, stored
from stream_service.appending import AppendRequest, AppendStatus
from stream_service.extensions import encode_beside
from stream_service.mirror_rows import MirrorRow
from stream_service.mirroring import BeMirror, BePrimary
from stream_service.publisher_rows import cut_publishers
from stream_service.role_machine import RoleEvent, StreamRole, find_next
from stream_service.stored import StoredStream
from stream_storage.contract import Append, Operation, Record, Session, StreamRecord, find_falls, timed_appends
from stream_storage.history import (
    History,
    begin_entry,
    ensure_history,
    list_history,
    random_entry_id,
    set_history,
    shared_history,
)
from stream_storage.stream_rows import INDEX_MAX

STEP_MESSAGES = 1_000
STEP_BYTES = 4 * 1024 * 1024
"""About the largest size of the messages that one transaction moves or cuts."""

T = TypeVar("T")


class StreamChange(Operation, Generic[T]):
    """A change of a stream that its worker makes while nothing else changes it.

    work: makes the change, and returns its result.
    record, last_time_us, history, mirror: the stored values after the change.
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
    mirror_rows.change_following(session, change.stream_id, sets_aside=False, **known)
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
    mirror_rows.change_following(session, change.stream_id, aside_name=name, aside_messages=0)


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
        mirror_rows.change_following(session, change.stream_id, sets_aside=False, aside_messages=aside_messages)
    return True


def take_history(session: Session, change: AnyChange, source_history: History) -> None:
    """Drops the entries of the history that the source does not have. The stream has no message of these entries."""
    shared = shared_history(list_history(session, change.stream_id), source_history)
    set_history(session, change.stream_id, shared)


class Copied(NamedTuple):
    """The result of one step of `copy_aside`."""

    record: StreamRecord  # the row of the other stream after the step
    fits: bool  # whether that stream begins where the copies begin
    done: bool  # whether that stream has all messages now


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


RoleChanged: TypeAlias = StreamChange[MirrorRow | None]
"""A change by `store_role`. Its result is the row of the fence that was given up."""


def store_role(
    session: Session,
    change: AnyChange,
    to: BeMirror | BePrimary | None,
    *,
    force: bool,
    is_planned: bool = False,
    heard: tuple[int, int] | None = None,
    gives_up_fence: bool = False,
) -> MirrorRow | None:
    """Makes a stream a mirror, or makes a mirror a primary. If `to` is None, only ensures that the stream has a
    history. Returns the row of the fence that was given up, or None.

    is_planned: whether this ends a planned promotion. If another request has ended it before, raises NoMirror.
    heard: what a new primary knows of its source: `source_next_index` and `heard_us`.
    gives_up_fence: whether the stream becomes a mirror although it must still fence another source; if false, raises
        FenceUnfinished.
    """
    stream_id = change.stream_id
    row = mirror_rows.find_mirror(session, stream_id)
    ensure_history(session, stream_id)
    if to is None:
        return None
    # Every change of the role ends a promotion that was under way.
    mirror_rows.forget_addresses(session, stream_id)
    if isinstance(to, BeMirror):
        return _follow(session, stream_id, row, to, sets_aside=force, gives_up_fence=gives_up_fence)
    event = RoleEvent.FINISH if is_planned else RoleEvent.TAKE if to.fences else RoleEvent.LEAVE
    role = find_next(StreamRole.PRIMARY if row is None else row.role, event)
    if role is None:
        raise mirror_rows.NoMirror("another request has ended the promotion")
    # A stream that is a primary already stays as it is.
    if row is not None and row.follows:
        begin_entry(session, stream_id, random_entry_id())
        if role is StreamRole.FENCING:
            source_next_index, heard_us = heard or (row.source_next_index, row.heard_us)
            known = {"source_next_index": source_next_index, "heard_us": heard_us}
            mirror_rows.write_mirror(session, msgspec.structs.replace(row, role=role, sets_aside=False, **known))
        else:
            mirror_rows.forget_mirror(session, stream_id)
    return None


def _follow(
    session: Session, stream_id: int, row: MirrorRow | None, to: BeMirror, *, sets_aside: bool, gives_up_fence: bool
) -> MirrorRow | None:
    made = MirrorRow(stream_id, StreamRole.FOLLOWING, to.source, to.stream_name, sets_aside=sets_aside)
    given_up = row if row is not None and row.fences_another(to.source, to.stream_name) else None
    if given_up is not None and not gives_up_fence:
        raise mirror_rows.FenceUnfinished(f"the stream {given_up.fence_text()}")
    if row is not None:
        # The known end of the former source says nothing about the new source.
        kept = {"aside_name": row.aside_name, "aside_messages": row.aside_messages}
        if row.follows and (row.source, row.source_name) == (to.source, to.stream_name):
            kept |= {"source_next_index": row.source_next_index, "heard_us": row.heard_us}
        made = msgspec.structs.replace(made, **kept)
    mirror_rows.write_mirror(session, made)
    return given_up


def make_mirror(session: Session, name: str, partition: int, created_us: int, source: BeMirror) -> StoredStream:
    """Makes a stream-partition that is a mirror. It gets its history with the first answer of its source."""
    record = session.log.ensure_stream(name, partition, created_us)
    mirror_rows.write_mirror(
        session, MirrorRow(record.stream_id, StreamRole.FOLLOWING, source.source, source.stream_name)
    )
    return stored.stored_stream(session, record)


def end_fence(session: Session, change: AnyChange, fenced_us: int | None) -> mirror_rows.FollowerRow | None:
    """Ends the attempts of a primary to fence its former source. Returns the former source as a mirror of this stream.

    fenced_us: when that source became a mirror of this stream, in microseconds since 1970; None: forget the source.
    """
    row = mirror_rows.find_mirror(session, change.stream_id)
    if row is None or find_next(row.role, RoleEvent.FENCED) is None:
        return None
    mirror_rows.forget_mirror(session, change.stream_id)
    if fenced_us is None:
        return None
    follower = mirror_rows.FollowerRow(change.stream_id, row.source, row.source_name, fenced_us)
    mirror_rows.note_follower(session, follower)
    return follower


def step_promotion(session: Session, change: AnyChange, event: RoleEvent, own_address: str) -> None:
    """Stores that a mirror is at another step of its promotion. Raises NoMirror if its role does not allow that step.

    own_address: the `host:port` at which other nodes reach this one.
    """
    row = mirror_rows.find_mirror(session, change.stream_id)
    role = None if row is None else find_next(row.role, event)
    if row is None or role is None:
        raise mirror_rows.NoMirror("another request has changed what the mirror does")
    mirror_rows.write_mirror(session, msgspec.structs.replace(row, role=role))
    if role is StreamRole.FOLLOWING:
        mirror_rows.forget_addresses(session, change.stream_id)
    else:
        mirror_rows.note_address(session, change.stream_id, own_address)


def append_expected(session: Session, change: AnyChange, request: AppendRequest, now_us: int) -> AppendStatus:
    """Appends the messages if the stream ends at the expected index, has the history entry of the request as its newest
    one (if the request names any), and is not a mirror. Otherwise stores nothing. Returns the status of the answer."""
    status = _decide_append(session, change.stream_id, request)
    if status is not AppendStatus.OK:
        return status
    last = stored.stored_stream(session, session.log.get_stream(change.stream_id)).last_time_us
    append = Append(
        change.stream_id,
        request.expected,
        max(last, now_us),
        [message.data for message in request.messages],
        [message.key for message in request.messages],
        [encode_beside(message.headers) for message in request.messages],
    )
    session.log.append((append,))
    change.appended = (append,)
    return status


def _decide_append(session: Session, stream_id: int, request: AppendRequest) -> AppendStatus:
    history = ensure_history(session, stream_id)
    row = mirror_rows.find_mirror(session, stream_id)
    if row is not None and row.follows:
        return AppendStatus.REFUSED
    if request.entry_id is not None and request.entry_id != history[-1].entry_id:
        return AppendStatus.FENCED
    if session.log.get_stream(stream_id).next_index != request.expected:
        return AppendStatus.CONFLICT
    return AppendStatus.OK
