"""The storage operations on the rows of a stream's publishers. `publisher_rows` explains the rows and their mark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from stream_service import stored
from stream_service.publisher_rows import (
    LOADED_MAX,
    MARK,
    PublisherRow,
    Times,
    exact_before,
    find_publisher,
    forget_old,
    list_publishers,
    note_messages,
    write_publishers,
)
from stream_storage.contract import Append, Session


class KnownSequences(NamedTuple):
    """The stored rows of a stream's publishers, and the sequence numbers of the messages behind the mark."""

    rows: dict[bytes, PublisherRow]  # by publisher id, and the row of the mark, oldest message first
    begin: int  # from where messages were searched: the mark, or LOADED_MAX before the end
    is_exact: bool  # whether each row has the last number before `begin`; if not, only owners count
    found: list[tuple[bytes, int, int]]  # publisher id, sequence number and index of each, oldest first


def load_sequences(session: Session, stream_id: int) -> KnownSequences:
    record, rows = session.log.get_stream(stream_id), list_publishers(session, stream_id)
    exact, least = exact_before(record, rows.get(MARK)), record.next_index - LOADED_MAX
    begin = max(exact, least)
    found = stored.list_sequences(session, stream_id, begin, record.next_index)
    return KnownSequences(rows, begin, exact >= least, found)


def note_publishers(
    session: Session,
    stream_id: int,
    end: int,
    rows: Mapping[bytes, PublisherRow | None] | None,
    times: Times,
    *,
    makes_mark: bool = False,
) -> bool:
    """Writes the rows of publishers whose last messages are before `end`, and sets the mark there. Returns True if the
    stream has no mark and needs none: none of its publishers has numbered its messages.

    rows: the rows that have changed since the mark. None: they are read from the messages behind the mark, if these are
    at most LOADED_MAX. For a stream without a mark, they are read only if `makes_mark` is set.
    """
    mark = find_publisher(session, stream_id, MARK)
    if rows is None and mark is None and not makes_mark:
        return True
    if mark is not None and mark.index >= end:
        return False
    if rows is not None:
        write_publishers(session, stream_id, rows, times.now_us)
    else:
        record = session.log.get_stream(stream_id)
        if end - exact_before(record, mark) > LOADED_MAX:
            return False
        note_messages(session, record, end, times.now_us)
    write_publishers(session, stream_id, {MARK: PublisherRow("", None, end)}, times.now_us)
    forget_old(session, stream_id, end, times.forget_us)
    return False


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
