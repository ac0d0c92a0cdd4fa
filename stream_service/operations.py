"""The storage operations of streams. A worker submits an operation, and a storage thread runs it: a write inside one
transaction, a read on a read-only connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

import msgspec

from stream_service import stored
from stream_service.appending import CopyRequest
from stream_service.extensions import BeforeIndex, BeforeTime, FromEnd, FromIndex, FromTime, StreamInfo, encode_beside
from stream_service.publisher_rows import Times, forget_old, note_messages
from stream_service.stored import StoredStream
from stream_storage.contract import Operation, Record, Session, StreamRecord, timed_appends
from stream_storage.errors import StorageError
from stream_storage.history import ensure_history
from stream_storage.stream_rows import INDEX_MAX

Place: TypeAlias = FromIndex | FromTime | FromEnd


class NothingFits(StorageError):
    """Error: the first message of a page is larger than any answer that the consumer's connection can carry."""

    def __init__(self, index: int, size_bytes: int, bytes_max: int) -> None:
        super().__init__(
            f"the message at index {index} has {size_bytes} bytes and this connection's framing carries at most "
            f"{bytes_max}: use the head framing, or pull from index {index + 1}"
        )


def ensure_streams(session: Session, name: str, partitions: Sequence[int], created_us: int) -> list[StoredStream]:
    """Creates the given partitions of a stream, where they are missing. Returns all of them, in order."""
    records = [session.log.ensure_stream(name, partition, created_us) for partition in partitions]
    for record in records:
        ensure_history(session, record.stream_id)
    return [stored.stored_stream(session, record) for record in records]


class PullPage(msgspec.Struct, eq=False):
    """One page of messages: the request of a pull, and after the read also the result."""

    start: Place
    limit: int
    rich: bool  # whether the answer has keys and headers
    size_bytes: int | None = None  # the data that the request asks for, in bytes; None if it names no size
    bytes_max: int = 0  # the most data that the page may have
    first_bytes_max: int = 0  # the largest message that the consumer's connection can carry
    has_room: bool = False  # whether there is room in memory for a message of any size
    index: int = 0  # where the page starts, computed from `start`
    found: list[Record] | StorageError = []
    passes_over: bool = False  # whether the page skips messages at its start that are too large for the connection
    passed_over: range = range(0)  # the indexes of the skipped messages


class ReadPages(Operation):
    """Reads the pages of several pulls of one stream in one operation.

    It stops when the pages read so far have `bytes_max` bytes of data, or when a page needs room in memory. The caller
    must request the other pages again.
    """

    __slots__ = ("bytes_max", "needs_room", "pages", "read", "stream_id")

    def __init__(
        self, stream_id: int, pages: Sequence[PullPage], bytes_max: int, on_done: Callable[[ReadPages], None]
    ) -> None:
        super().__init__(on_done)
        self.stream_id = stream_id
        self.pages = pages
        self.bytes_max = bytes_max
        self.read = 0  # the number of pages read
        # whether the next page begins with a message above `bytes_max`, for which it needs room
        self.needs_room = False

    def apply(self, session: Session) -> None:
        self.read, self.needs_room = 0, False
        bytes_left = self.bytes_max
        for page in self.pages:
            try:
                # A page that cannot be read gets its own error, so that the other pulls are still answered.
                page.index = self._resolve(session, page.start)
                found = self._read(session, page)
                if found is None:
                    self.needs_room = True
                    return
                page.found = found
                bytes_left -= data_bytes(page.found)
            except StorageError as error:
                page.found = error
            self.read += 1
            # All pages of one read are in memory at the same time. So a read ends when they are as large as one full
            # answer.
            if bytes_left <= 0:
                return

    def _resolve(self, session: Session, start: Place) -> int:
        if isinstance(start, FromIndex):
            return min(start.index, INDEX_MAX)
        record = session.log.get_stream(self.stream_id)
        if isinstance(start, FromEnd):
            return max(record.first_index, record.next_index - start.messages)
        return stored.first_index_at(session, record, start.time_us)

    def _read(self, session: Session, page: PullPage) -> list[Record] | None:
        """Returns the messages of a page, or None if the page needs room for its first message."""
        read, index = session.log.read, page.index
        first_bytes_max = page.first_bytes_max if page.has_room else min(page.first_bytes_max, self.bytes_max)
        found = read(self.stream_id, index, page.limit, page.bytes_max, first_bytes_max=first_bytes_max)
        # An empty page has three reasons: the limit is 0, the stream has no message there, or the first one is too
        # large.
        if found or not page.limit:
            return _checked(page, found)
        if not page.has_room and page.first_bytes_max > self.bytes_max:
            record = session.log.get_stream(self.stream_id)
            return None if max(index, record.first_index) < record.next_index else []
        # Reading without the limit of the connection tells the last two reasons apart: it returns the message that is
        # too large, and `_checked` raises the error for it.
        if not page.passes_over:
            return _checked(page, read(self.stream_id, index, 1, page.bytes_max))
        # The first message is too large for the connection. A consumer of the plain protocol cannot skip it and would
        # get the same `error` forever. So the page begins at the next message that fits.
        fitting = session.log.find_fitting(self.stream_id, index, page.first_bytes_max)
        record = session.log.get_stream(self.stream_id)
        page.passed_over = range(max(index, record.first_index), record.next_index if fitting is None else fitting)
        if fitting is None:
            return []
        return read(self.stream_id, fitting, page.limit, page.bytes_max, first_bytes_max=page.first_bytes_max)


def _checked(page: PullPage, found: list[Record]) -> list[Record]:
    """Returns these messages. Raises NothingFits if the first one is too large for the consumer's connection."""
    if found:
        size_bytes = size_of(found[0]) if page.rich else len(found[0][1])
        if size_bytes > page.first_bytes_max:
            raise NothingFits(found[0][0], size_bytes, page.first_bytes_max)
    return found


def describe_streams(
    session: Session, prefix: str, after: tuple[str, int] | None, limit: int
) -> tuple[list[StreamInfo], bool]:
    """Returns the descriptions of a page of streams, by name and partition, and whether further streams follow.

    prefix: the beginning of their names. after: name and partition of the last stream of the previous page.
    """
    # One stream more than the page holds is read: it shows that the listing continues.
    records = session.log.list_streams(prefix, after, limit + 1)
    return [describe(session, record) for record in records[:limit]], len(records) > limit


def find_cut(session: Session, stream_id: int, before: BeforeIndex | BeforeTime) -> int:
    """Returns the index before which messages are to be deleted."""
    record = session.log.get_stream(stream_id)
    if isinstance(before, BeforeIndex):
        return min(before.index, record.next_index)
    return stored.first_index_at(session, record, before.time_us)


def truncate_step(
    session: Session, stream_id: int, index: int, messages_max: int, bytes_max: int, times: Times
) -> tuple[int, StreamRecord]:
    """Deletes the messages before `index`, or the first of them up to the limits of one step. Returns the number of
    deleted messages, and the row of the stream afterwards.

    times: the times for the rows of publishers, whose last numbers outlive their messages.
    """
    record = session.log.get_stream(stream_id)
    end = stored.step_end(session, record, index, messages_max, bytes_max)
    if note_messages(session, record, end, times.now_us):
        forget_old(session, stream_id, end, times.forget_us)
    deleted = session.log.truncate_before(stream_id, end)
    return deleted, session.log.get_stream(stream_id)


class StoreCopy(Operation):
    """Stores messages that are copied from another stream.

    begins: whether the stream was never written to, and begins at the first copied message instead of at 0.
    last_time_us: the time of the message before the copy, then of the last copied one, in microseconds since 1970.
    """

    __slots__ = ("appends", "begins", "last_time_us")

    def __init__(
        self,
        request: CopyRequest,
        stream_id: int,
        *,
        begins: bool,
        last_time_us: int,
        now_us: int,
        on_done: Callable[[Any], None],
    ) -> None:
        super().__init__(on_done)
        self.begins = begins
        self.last_time_us = last_time_us
        records: list[Record] = []
        for index, message in enumerate(request.messages, request.index):
            # Searching by time and retention by age need times that never decrease. A time in the future, from a wrong
            # clock elsewhere, would force its value on all later messages, so it is lowered to the present time.
            self.last_time_us = max(self.last_time_us, min(message.time_us, now_us))
            records.append((index, message.data, self.last_time_us, message.key, encode_beside(message.headers)))
        self.appends = timed_appends(stream_id, records)

    def apply(self, session: Session) -> None:
        if self.begins:
            session.log.begin_at(self.appends[0].stream_id, self.appends[0].first_index)
        session.log.append(self.appends)

    def row_count(self) -> int:
        return sum(append.row_count() for append in self.appends)


def data_bytes(records: Sequence[Record]) -> int:
    return sum(map(len, map(itemgetter(1), records)))


def size_of(record: Record) -> int:
    """Returns the size of a stored message in bytes: its data, key and encoded headers."""
    _, data, _, key, headers = record
    return len(data) + len(key or b"") + len(headers or b"")


def describe(session: Session, record: StreamRecord) -> StreamInfo:
    first_time_us = stored.find_time_us(session, record.stream_id, record.first_index)
    last_time_us = stored.find_time_us(session, record.stream_id, record.next_index - 1) if record.next_index else None
    return StreamInfo(
        stream_name=record.name,
        partition=record.partition,
        first_index=record.first_index,
        next_index=record.next_index,
        size_bytes=record.size_bytes,
        created_us=record.created_us,
        first_time_us=first_time_us,
        last_time_us=last_time_us,
        retention=stored.get_retention(session, record.stream_id),
    )
