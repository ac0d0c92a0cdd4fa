"""The storage operations for what a stream remembers of its publishers (`publisher_rows`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from stream_service import stored
from stream_service.publisher_rows import (
    LOADED_MAX,
    MARK,
    PublisherRow,
    Times,
    exact_from,
    find_publisher,
    forget_old,
    list_publishers,
    note_messages,
    write_publishers,
)
from stream_storage.contract import Append, Operation, Session


class LoadSequences(Operation):
    """Reads what a stream remembers of its publishers: their rows, and the numbers of the messages behind the mark."""

    __slots__ = ("begin", "found", "is_exact", "rows", "stream_id")

    def __init__(self, stream_id: int, on_done: Callable[[LoadSequences], None]) -> None:
        super().__init__(on_done)
        self.stream_id = stream_id
        self.rows: dict[bytes, PublisherRow] = {}  # by publisher id, with that of the mark, oldest message first
        self.begin = 0  # from where messages were searched: the mark, or LOADED_MAX before the end
        self.is_exact = False  # whether each row has the last number before `begin`; if not, only owners count
        self.found: list[tuple[bytes, int, int]] = []  # publisher id, sequence number and index of each, oldest first

    def apply(self, session: Session) -> None:
        record = session.log.get_stream(self.stream_id)
        self.rows = list_publishers(session, self.stream_id)
        exact, least = exact_from(record, self.rows.get(MARK)), record.next_index - LOADED_MAX
        self.begin, self.is_exact = max(exact, least), exact >= least
        self.found = stored.list_sequences(session, self.stream_id, self.begin, record.next_index)


class NotePublishers(Operation):
    """Writes the rows of publishers whose last messages are before `end`, and sets the mark there.

    rows: the rows that have changed since the mark, where the stream's worker knows them. None: they are read from the
    messages, if the stream has a mark, or `makes_mark` is set and all its messages can be searched.
    is_plain: whether there was no mark and none was made: no publisher of the stream has numbered its messages.
    """

    __slots__ = ("end", "is_plain", "makes_mark", "rows", "stream_id", "times")

    def __init__(
        self,
        stream_id: int,
        end: int,
        rows: Mapping[bytes, PublisherRow | None] | None,
        times: Times,
        on_done: Callable[[NotePublishers], None],
        *,
        makes_mark: bool = False,
    ) -> None:
        super().__init__(on_done)
        self.stream_id = stream_id
        self.end = end
        self.rows = rows
        self.times = times
        self.makes_mark = makes_mark
        self.is_plain = False

    def apply(self, session: Session) -> None:
        mark = find_publisher(session, self.stream_id, MARK)
        self.is_plain = self.rows is None and mark is None and not self.makes_mark
        if self.is_plain or (mark is not None and mark.index >= self.end):
            return
        if self.rows is not None:
            write_publishers(session, self.stream_id, self.rows, self.times.now_us)
        else:
            record = session.log.get_stream(self.stream_id)
            if self.end - exact_from(record, mark) > LOADED_MAX:
                return
            note_messages(session, record, self.end, self.times.now_us)
        write_publishers(session, self.stream_id, {MARK: PublisherRow("", None, self.end)}, self.times.now_us)
        forget_old(session, self.stream_id, self.end, self.times.forget_us)


class NotedAppend(Append):
    """An append that writes further rows in its transaction.

    falls: whether its time is lower than that of the previous message, so that its first index goes to `time_falls`.
    publishers: the rows to write, see `PublisherSequences.notes`.
    """

    __slots__ = ("falls", "publishers")

    def __init__(
        self,
        stream_id: int,
        first_index: int,
        time_us: int,
        data: Sequence[bytes],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[bytes | None] | None = None,
        *,
        falls: bool,
        publishers: Mapping[bytes, PublisherRow],
        on_done: Callable[[Any], None],
    ) -> None:
        super().__init__(stream_id, first_index, time_us, data, keys, headers, on_done=on_done)
        self.falls = falls
        self.publishers = publishers

    def apply(self, session: Session) -> None:
        if self.falls:
            stored.note_fall(session, self.stream_id, self.first_index)
        write_publishers(session, self.stream_id, self.publishers, self.time_us)
        session.log.append((self,))

    @classmethod
    def apply_group(cls, operations: Sequence[Self], session: Session) -> None:
        for operation in operations:
            operation.apply(session)
