"""The storage operations that change the role of a stream, in one transaction each. `StreamWorker.change` runs them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import msgspec

from stream_service.follower_rows import FollowerRow, note_follower
from stream_service.mirror_operations import StreamChange
from stream_service.mirror_rows import (
    FenceUnfinished,
    MirrorRow,
    NoMirror,
    Task,
    find_mirror,
    forget_mirror,
    write_mirror,
)
from stream_service.mirroring import BeMirror, BePrimary
from stream_service.promotion_rows import forget_addresses, note_address
from stream_storage.contract import Session
from stream_storage.history import begin_entry, ensure_history, random_entry_id


class ChangeRole(StreamChange):
    """Makes a stream a mirror, or a mirror a primary, or only reads its role.

    A primary with a former source to fence becomes a mirror of that source only. Otherwise raises FenceUnfinished.
    """

    __slots__ = ("change_to", "expected", "force", "given_up", "gives_up_fence", "heard")

    def __init__(
        self,
        stream_id: int,
        change_to: BeMirror | BePrimary | None,
        force: bool,
        on_done: Callable[[Any], None],
        *,
        expected: Task | None = None,
        heard: tuple[int, int] | None = None,
        gives_up_fence: bool = False,
    ) -> None:
        super().__init__(stream_id, on_done)
        self.change_to = change_to
        self.force = force
        self.expected = expected  # a mirror becomes a primary only if it has this task
        self.heard = heard  # what a new primary knows of its source: `source_next_index` and `heard_us`
        self.gives_up_fence = gives_up_fence  # becomes a mirror although it has another source to fence
        self.given_up: MirrorRow | None = None  # the row with the fence that was given up

    def change(self, session: Session) -> None:
        row, self.given_up = find_mirror(session, self.stream_id), None
        history = ensure_history(session, self.stream_id)
        if self.change_to is not None:
            # Whatever the stream becomes, nobody promotes it any more.
            forget_addresses(session, self.stream_id)
        match self.change_to:
            case BeMirror(source, name):
                made = MirrorRow(self.stream_id, Task.FOLLOW, source, name, sets_aside=self.force)
                if row is not None and row.fences_another(source, name):
                    if not self.gives_up_fence:
                        raise FenceUnfinished(f"the stream {row.fence_text()}")
                    self.given_up = row
                if row is not None:
                    # What is known of the former source says nothing about the end of this one.
                    kept = {"aside_name": row.aside_name, "aside_messages": row.aside_messages}
                    if row.follows and (row.source, row.source_name) == (source, name):
                        kept |= {"source_next_index": row.source_next_index, "heard_us": row.heard_us}
                    made = msgspec.structs.replace(made, **kept)
                write_mirror(session, made)
            case BePrimary() if self.expected is not None and (row is None or row.task is not self.expected):
                raise NoMirror("another request has ended the promotion")
            case BePrimary(fences) if row is not None and row.follows:
                begin_entry(session, self.stream_id, random_entry_id())
                if fences:
                    source_next_index, heard_us = self.heard or (row.source_next_index, row.heard_us)
                    known = {"source_next_index": source_next_index, "heard_us": heard_us}
                    write_mirror(session, msgspec.structs.replace(row, task=Task.FENCE, sets_aside=False, **known))
                else:
                    forget_mirror(session, self.stream_id)
        assert history, "a stream has a history by now"


class EndFence(StreamChange):
    """Ends the attempts of a primary to fence its former source.

    fenced_us: when it has become a mirror of this stream, in microseconds since 1970; None: the node forgets it.
    follower: the former source as a mirror of this stream, after the operation.
    """

    __slots__ = ("fenced_us", "follower")

    def __init__(self, stream_id: int, fenced_us: int | None, on_done: Callable[[Any], None]) -> None:
        super().__init__(stream_id, on_done)
        self.fenced_us = fenced_us
        self.follower: FollowerRow | None = None

    def change(self, session: Session) -> None:
        self.follower = None
        row = find_mirror(session, self.stream_id)
        if row is None or row.task is not Task.FENCE:
            return
        forget_mirror(session, self.stream_id)
        if self.fenced_us is not None:
            self.follower = FollowerRow(self.stream_id, row.source, row.source_name, self.fenced_us)
            note_follower(session, self.follower)


class ChangeTask(StreamChange):
    """Changes the task of a stream that follows, if it has one of certain tasks. Otherwise raises NoMirror.

    own_address: the `host:port` at which other nodes reach this one, for a promotion.
    """

    __slots__ = ("expected", "own_address", "task")

    def __init__(
        self,
        stream_id: int,
        task: Task,
        expected: Collection[Task],
        own_address: str,
        on_done: Callable[[Any], None],
    ) -> None:
        super().__init__(stream_id, on_done)
        self.task = task
        self.expected = expected
        self.own_address = own_address

    def change(self, session: Session) -> None:
        row = find_mirror(session, self.stream_id)
        if row is None or row.task not in self.expected:
            raise NoMirror("another request has changed what the mirror does")
        write_mirror(session, msgspec.structs.replace(row, task=self.task))
        if self.task is Task.FOLLOW:
            forget_addresses(session, self.stream_id)
        else:
            note_address(session, self.stream_id, self.own_address)
