"""The storage operations that change the role of a stream, by the table of `stream_service.role_machine`.

`StreamWorker.change` runs each in one transaction.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stream_service.follower_rows import FollowerRow, note_follower
from stream_service.mirror_operations import AnyChange, StreamChange
from stream_service.mirror_rows import (
    FenceUnfinished,
    MirrorRow,
    NoMirror,
    find_mirror,
    forget_mirror,
    write_mirror,
)
from stream_service.mirroring import BeMirror, BePrimary
from stream_service.promotion_rows import forget_addresses, note_address
from stream_service.role_machine import RoleEvent, StreamRole, find_next
from stream_service.stored import StoredStream, stored_stream
from stream_storage.contract import Session
from stream_storage.history import begin_entry, ensure_history, random_entry_id

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
    gives_up_fence: whether it becomes a mirror although it has another source to fence; otherwise raises
        FenceUnfinished.
    """
    stream_id = change.stream_id
    row = find_mirror(session, stream_id)
    ensure_history(session, stream_id)
    if to is None:
        return None
    # Every change of the role ends a promotion that was under way.
    forget_addresses(session, stream_id)
    if isinstance(to, BeMirror):
        return _follow(session, stream_id, row, to, sets_aside=force, gives_up_fence=gives_up_fence)
    event = RoleEvent.FINISH if is_planned else RoleEvent.TAKE if to.fences else RoleEvent.LEAVE
    role = find_next(StreamRole.PRIMARY if row is None else row.role, event)
    if role is None:
        raise NoMirror("another request has ended the promotion")
    # A stream that is a primary already stays as it is.
    if row is not None and row.follows:
        begin_entry(session, stream_id, random_entry_id())
        if role is StreamRole.FENCING:
            source_next_index, heard_us = heard or (row.source_next_index, row.heard_us)
            known = {"source_next_index": source_next_index, "heard_us": heard_us}
            write_mirror(session, msgspec.structs.replace(row, role=role, sets_aside=False, **known))
        else:
            forget_mirror(session, stream_id)
    return None


def _follow(
    session: Session, stream_id: int, row: MirrorRow | None, to: BeMirror, *, sets_aside: bool, gives_up_fence: bool
) -> MirrorRow | None:
    made = MirrorRow(stream_id, StreamRole.FOLLOWING, to.source, to.stream_name, sets_aside=sets_aside)
    given_up = row if row is not None and row.fences_another(to.source, to.stream_name) else None
    if given_up is not None and not gives_up_fence:
        raise FenceUnfinished(f"the stream {given_up.fence_text()}")
    if row is not None:
        # What is known of the former source says nothing about the end of the new source.
        kept = {"aside_name": row.aside_name, "aside_messages": row.aside_messages}
        if row.follows and (row.source, row.source_name) == (to.source, to.stream_name):
            kept |= {"source_next_index": row.source_next_index, "heard_us": row.heard_us}
        made = msgspec.structs.replace(made, **kept)
    write_mirror(session, made)
    return given_up


def make_mirror(session: Session, name: str, partition: int, created_us: int, source: BeMirror) -> StoredStream:
    """Makes a stream-partition that is a mirror. It gets its history with the first answer of its source."""
    record = session.log.ensure_stream(name, partition, created_us)
    write_mirror(session, MirrorRow(record.stream_id, StreamRole.FOLLOWING, source.source, source.stream_name))
    return stored_stream(session, record)


def end_fence(session: Session, change: AnyChange, fenced_us: int | None) -> FollowerRow | None:
    """Ends the attempts of a primary to fence its former source. Returns the former source as a mirror of this stream.

    fenced_us: when that source became a mirror of this stream, in microseconds since 1970; None: it is forgotten.
    """
    row = find_mirror(session, change.stream_id)
    if row is None or find_next(row.role, RoleEvent.FENCED) is None:
        return None
    forget_mirror(session, change.stream_id)
    if fenced_us is None:
        return None
    follower = FollowerRow(change.stream_id, row.source, row.source_name, fenced_us)
    note_follower(session, follower)
    return follower


def step_promotion(session: Session, change: AnyChange, event: RoleEvent, own_address: str) -> None:
    """Stores that a mirror is at another step of its promotion. Raises NoMirror if its role does not allow that step.

    own_address: the `host:port` at which other nodes reach this one.
    """
    row = find_mirror(session, change.stream_id)
    role = None if row is None else find_next(row.role, event)
    if row is None or role is None:
        raise NoMirror("another request has changed what the mirror does")
    write_mirror(session, msgspec.structs.replace(row, role=role))
    if role is StreamRole.FOLLOWING:
        forget_addresses(session, change.stream_id)
    else:
        note_address(session, change.stream_id, own_address)
