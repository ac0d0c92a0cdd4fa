"""Reads and writes the attributes of streams in the database, and reads the headers and times of messages.

Attributes and headers are BARE in a column, so new values need no change of the database schema. The functions raise
StorageError. Functions that write are called inside a transaction.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec
from sqlalchemy import BigInteger, Column, Integer, Table

import bare
from stream_service.extensions import Extras, Header, Retention, decode_extras, encode_extras
from stream_service.mirror_rows import FollowerRow, MirrorRow, find_mirror
from stream_storage.contract import Session, StreamRecord
from stream_storage.schema import metadata
from stream_storage.seal import seal_column, seal_of
from stream_storage.statement import sql
from stream_storage.stream_rows import change_stream, each_stream

SIZES_MAX = 10_000
"""The largest number of messages that `first_index_kept` measures at a time for a limit by size."""


LOST_HEADER: Final = "node/lost/1"
"""The header of an empty message that a repair stores in place of a lost one, so that no new message gets its index."""
LOST_EXTRAS: Final = encode_extras(Extras([Header(LOST_HEADER, b"")], None))


# type Attributes struct { retention: optional<Retention> }
class Attributes(msgspec.Struct, frozen=True):
    retention: Retention | None = None


class StoredStream(msgspec.Struct, frozen=True):
    """A stored stream-partition: the data that its worker needs when it starts."""

    record: StreamRecord
    last_time_us: int  # 0 if the stream has no message
    retention: Retention | None  # None: the node's default
    mirror: MirrorRow | None = None  # the row of the stream in the table of mirrors, if any
    followers: tuple[FollowerRow, ...] = ()  # its mirrors; empty if the reader did not want them


_attributes_encoder = bare.Encoder(Attributes)
_attributes_decoder = bare.Decoder(Attributes)

GET_ATTRIBUTES: Final = sql("SELECT attributes FROM streams WHERE id = :stream_id")
GET_TIME: Final = sql("SELECT time_us FROM messages WHERE stream_id = :stream_id AND idx = :index")
LIST_EXTRAS: Final = sql(
    "SELECT idx, headers FROM messages WHERE stream_id = :stream_id AND idx >= :index AND idx < :end "
    "AND headers IS NOT NULL ORDER BY idx"
)
SIZES: Final = sql(
    "SELECT length(data) FROM messages WHERE stream_id = :stream_id AND idx >= :index ORDER BY idx LIMIT :limit"
)
SIZE_BETWEEN: Final = sql(
    "SELECT coalesce(sum(length(data)), 0) FROM messages WHERE stream_id = :stream_id AND idx >= :index AND idx < :end"
)


time_falls = Table(
    "time_falls",
    metadata,
    Column("stream_id", Integer, primary_key=True, autoincrement=False),
    Column("idx", BigInteger, primary_key=True, autoincrement=False),
    seal_column(),
    sqlite_with_rowid=False,
)
"""Where the times of a stream go back: one row for each message with a lower time than the one before.

There are few rows: one each time a wrong clock was set back. The table has no foreign key, because the id of a deleted
stream is never used again.
"""

INSERT_FALL: Final = sql(
    "INSERT INTO time_falls (stream_id, idx, seal) VALUES (:stream_id, :index, :seal) ON CONFLICT DO NOTHING"
)
DELETE_FALLS: Final = sql("DELETE FROM time_falls WHERE stream_id = :stream_id")
LIST_FALLS: Final = sql("SELECT idx FROM time_falls WHERE stream_id = :stream_id AND idx > :index ORDER BY idx")


def find_time_us(session: Session, stream_id: int, index: int) -> int | None:
    """Returns when the message at this index was published, in microseconds since 1970; None if it is not stored."""
    row = session.execute(GET_TIME, (stream_id, index)).fetchone()
    return None if row is None else int(row[0])


def get_retention(session: Session, stream_id: int) -> Retention | None:
    row = session.execute(GET_ATTRIBUTES, (stream_id,)).fetchone()
    return _attributes_decoder.decode(row[0]).retention if row is not None and row[0] is not None else None


def set_retention(session: Session, stream_id: int, retention: Retention | None) -> None:
    """Stores the retention of a stream; None: the node's default. Raises DatabaseCorrupt if its row is damaged."""
    encoded = None if retention is None else _attributes_encoder.encode(Attributes(retention))
    change_stream(session.execute, stream_id, attributes=encoded)


def stored_stream(session: Session, record: StreamRecord) -> StoredStream:
    """Returns a stream with its last time, retention and mirror row, which are stored beside its row."""
    return _stored(session, record, find_mirror(session, record.stream_id))


def _stored(session: Session, record: StreamRecord, mirror: MirrorRow | None) -> StoredStream:
    last = find_time_us(session, record.stream_id, record.next_index - 1) if record.next_index else None
    return StoredStream(record, last or 0, get_retention(session, record.stream_id), mirror)


def list_stored(
    session: Session,
    mirrors: Mapping[int, MirrorRow],
    is_wanted: Callable[[StreamRecord], bool] = lambda record: True,
) -> Iterator[StoredStream]:
    """Iterates over the streams that are wanted, sorted by name and partition. mirrors: by stream id, or empty."""
    for record in filter(is_wanted, each_stream(session.log)):
        yield _stored(session, record, mirrors.get(record.stream_id))


def list_sequences(session: Session, stream_id: int, index: int, end: int) -> list[tuple[bytes, int, int]]:
    """Returns publisher id, sequence number and index of each message in this range that has one, oldest first."""
    found = []
    for stored_index, headers in session.execute(LIST_EXTRAS, (stream_id, index, end)):
        sequence = decode_extras(headers).sequence
        if sequence is not None:
            found.append((sequence.publisher_id, sequence.sequence, stored_index))
    return found


def note_fall(session: Session, stream_id: int, index: int) -> None:
    """Records that the message at this index has a lower time than the one before."""
    row = (stream_id, index)
    session.execute(INSERT_FALL, (*row, seal_of(time_falls.name, row)))


def forget_falls(session: Session, stream_id: int) -> None:
    session.execute(DELETE_FALLS, (stream_id,))


def first_index_at(session: Session, record: StreamRecord, time_us: int) -> int:
    """Returns the index of the first message such that it and all later messages were published at `time_us` or later.

    If the last message was published before `time_us`, returns the stream's next index.

    Times never decrease along a stream, except at its rows of `time_falls`, which divide it into parts. The search goes
    back from the last part, and enters an earlier one only if all later messages were published at `time_us` or later.
    Inside one part, a binary search finds the index.
    """
    falls = session.execute(LIST_FALLS, (record.stream_id, record.first_index)).fetchall()

    def published_us(index: int) -> int:
        # A message that is not stored counts as an earlier one.
        found_us = find_time_us(session, record.stream_id, index)
        return -1 if found_us is None else found_us

    end = record.next_index
    for start in (*(index for (index,) in reversed(falls) if index < end), record.first_index):
        found: int = start + bisect_left(range(start, end), time_us, key=published_us)
        if found > start:
            return found
        end = start
    return record.first_index


def first_index_kept(session: Session, record: StreamRecord, retention: Retention, now_us: int) -> int:
    """Returns the index of the first message that a retention keeps, or a lower index.

    For a limit by size, one call measures at most SIZES_MAX messages. The caller deletes the messages before the
    result, and calls this function again.
    """
    index = record.first_index
    if retention.messages is not None:
        index = max(index, record.next_index - retention.messages)
    if retention.age_s is not None:
        index = max(index, first_index_at(session, record, max(0, now_us - retention.age_s * 1_000_000)))
    # The oldest messages are skipped until the size of the remaining ones is within the limit.
    if retention.size_bytes is not None and record.size_bytes > retention.size_bytes:
        index = max(index, _index_after(session, record, SIZES_MAX, record.size_bytes - retention.size_bytes))
    return min(index, record.next_index)


def step_end(session: Session, record: StreamRecord, index: int, messages_max: int, bytes_max: int) -> int:
    """Returns the index before which one step of a truncation deletes: `index`, or where a limit is reached."""
    end = record.first_index
    limit = max(0, min(messages_max, index - end))
    # Nearly always all messages fit, as one statement shows. Otherwise they are measured one by one.
    summed = session.execute(SIZE_BETWEEN, (record.stream_id, end, end + limit)).fetchone()[0]
    if summed <= bytes_max:
        return end + limit
    return _index_after(session, record, limit, bytes_max)


def _index_after(session: Session, record: StreamRecord, messages_max: int, size_bytes: int) -> int:
    """Returns the index after the oldest messages that have this size together, or after the first `messages_max`."""
    index = record.first_index
    for (message_bytes,) in session.execute(SIZES, (record.stream_id, index, messages_max)):
        index += 1
        size_bytes -= message_bytes
        if size_bytes <= 0:
            break
    return index
