"""Reads the table of mirrors, and writes rows without the worker of the stream: of a new mirror, and of a primary that
has a mirror."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from storage.contract import Operation, Session
from stream_service.mirror_rows import MirrorRow, Task, find_mirror, write_mirror
from stream_service.stored import StoredStream, stored_stream


class MakeMirror(Operation):
    """Makes a stream-partition and its row in the table of mirrors, in one transaction. It gets the history of its
    source with the first message.

    stream: the stored stream, after the operation.
    """

    __slots__ = ("created_us", "name", "partition", "source", "source_name", "stream")

    def __init__(
        self,
        name: str,
        partition: int,
        created_us: int,
        source: str,
        source_name: str,
        on_done: Callable[[MakeMirror], None],
    ) -> None:
        super().__init__(on_done)
        self.name = name
        self.partition = partition
        self.created_us = created_us
        self.source = source
        self.source_name = source_name
        self.stream: StoredStream | None = None

    def apply(self, session: Session) -> None:
        record = session.log.ensure_stream(self.name, self.partition, self.created_us)
        write_mirror(session, MirrorRow(record.stream_id, Task.FOLLOW, self.source, self.source_name))
        self.stream = stored_stream(session, record)


class KeepFollower(Operation):
    """Writes down that a primary has a mirror. Does nothing if the stream has a row for another task."""

    __slots__ = ("row",)

    def __init__(self, row: MirrorRow, on_done: Callable[[KeepFollower], None]) -> None:
        super().__init__(on_done)
        self.row = row

    def apply(self, session: Session) -> None:
        session.log.get_stream(self.row.stream_id)
        known = find_mirror(session, self.row.stream_id)
        if known is None or known.task is Task.ASK:
            write_mirror(session, self.row)


def rows_of(stored: Iterable[StoredStream]) -> dict[tuple[str, int], MirrorRow]:
    """Returns the table of mirrors by name and partition, from all streams of a node."""
    return {(each.record.name, each.record.partition): each.mirror for each in stored if each.mirror is not None}
