"""The operations that write rows of mirrors without the worker of the stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stream_service.follower_rows import FollowerRow, drop_follower, note_follower
from stream_service.mirror_rows import MirrorRow, Task, write_mirror
from stream_service.stored import StoredStream, stored_stream
from stream_storage.contract import Operation, Session


class MakeMirror(Operation):
    """Makes a stream-partition and its row in the table of mirrors, in one transaction. stream: the stored stream.
    It gets the history of its source with the first answer of the source."""

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
    """Stores the address of a mirror of a stream. rows: the mirrors of the stream that are stored now."""

    __slots__ = ("row", "rows")

    def __init__(self, row: FollowerRow, on_done: Callable[[KeepFollower], None]) -> None:
        super().__init__(on_done)
        self.row = row
        self.rows: list[FollowerRow] = []

    def apply(self, session: Session) -> None:
        # A stream that was deleted meanwhile gets no row.
        session.log.get_stream(self.row.stream_id)
        self.rows = note_follower(session, self.row)


class DropFollower(Operation):
    """Forgets mirrors of a stream. places: the `host:port` and the name of each."""

    __slots__ = ("places", "stream_id")

    def __init__(
        self, stream_id: int, places: Sequence[tuple[str, str]], on_done: Callable[[DropFollower], None]
    ) -> None:
        super().__init__(on_done)
        self.stream_id = stream_id
        self.places = places

    def apply(self, session: Session) -> None:
        for address, name in self.places:
            drop_follower(session, self.stream_id, address, name)
