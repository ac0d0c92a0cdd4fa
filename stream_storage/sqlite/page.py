"""Reads a page of one stream's messages, and checks the checksum of each message.

Reading row by row would be slow: for each row the driver releases the interpreter's lock (GIL), and while the trio
thread is busy, one row took up to 7 ms. So a page is read with two statements that return one row each:

1. the sizes and checksums of the next messages: they show how many of these messages fit into the page;
2. the data of the messages that fit, joined to one value, which is cut into messages here.

Very small pages, very large pages and pages with keys or headers are read row by row after the first statement. The
data of very large messages are read apart from their rows.
`stream_storage.sqlite.log` checks a page against the first and next index of the stream."""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, repeat
from typing import Any, NamedTuple, TypeAlias

import msgspec

from stream_storage.checksum import checksum_full, checksums_plain, checksums_plain_timed, seed_base
from stream_storage.contract import Record
from stream_storage.errors import DatabaseCorrupt, corrupt_text, damaged_message
from stream_storage.sqlite import statements

WINDOW_MIN = 16
WINDOW_MAX = 1024
"""The largest number of messages whose sizes one statement returns. The actual number is an estimate: how many messages
of the size that was measured last fit into the page."""
ASSUMED_BYTES = 1024
"""The assumed size of a message for the first page of a connection. Later pages assume the last message's size."""
JOIN_ROWS_MIN = 8
"""A page with fewer messages is read row by row, which costs less than a joined value for so few rows."""
JOIN_BYTES_MAX = 16 * 1024 * 1024
"""A page with more data is read row by row: joined data is in memory three times for a moment, in SQLite, as one Python
value, and as messages."""
BLOB_BYTES_MIN = 256 * 1024
"""The data of messages of at least this size, on average, are read right into their Python values. As columns of a row
they would be copied once more, which takes longer than to open them one by one."""
_numbers = msgspec.json.Decoder(list[int])
_Row: TypeAlias = tuple[Any, ...]
"""The columns of a message: index, time, checksum, key, headers and data."""


class Measure(NamedTuple):
    """The row of the statement `MEASURE_PAGE`: the sizes and checksums of several messages."""

    rows: int
    first: int
    last: int
    time_us_min: int
    time_us_max: int
    attributed: int  # messages with a key or headers
    sizes_text: str  # numbers joined with commas, like the checksums
    checksums_text: str


def can_join(connection: sqlite3.Connection) -> bool:
    """Returns whether this version of SQLite can join values that contain zero bytes."""
    return bool(connection.execute(statements.JOIN_PROBE).fetchone()[0] == statements.JOIN_PROBE_RESULT)


def read_page(
    connection: sqlite3.Connection,
    stream_id: int,
    index: int,
    limit: int,
    bytes_max: int,
    first_bytes_max: int | None,
    *,
    joins: bool,
    assumed_bytes: int = ASSUMED_BYTES,
) -> tuple[list[Record], bool]:
    """Returns a page, as `Log.read` describes it, and whether the stream has no further message. The caller has
    begun a transaction. Raises sqlite3.Error, and DatabaseCorrupt if a message is damaged, or missing between two.

    assumed_bytes: about the size of a message, until one of the page has been measured."""
    records: list[Record] = []
    room_bytes = bytes_max
    window = _window(room_bytes, assumed_bytes)
    while limit > 0 and room_bytes >= 0:
        # Measure the next messages.
        asked = min(limit, window)
        measure = Measure(*connection.execute(statements.MEASURE_PAGE, (stream_id, index, asked)).fetchone())
        if measure.rows == 0:
            return records, True
        # The indexes must be consecutive, else the database is damaged. Only the first message of a page may have a
        # larger index than `index`.
        totals = list(accumulate(_integers(measure.sizes_text)))
        begins = index if records else measure.first
        if (measure.first, measure.last, len(totals)) != (begins, begins + measure.rows - 1, measure.rows):
            raise _damage(connection, stream_id, begins, measure.rows)
        # Read as many messages as fit. The first message of a page is always read, unless it is larger than
        # `first_bytes_max`.
        fitting = bisect_right(totals, room_bytes)
        if not records:
            if first_bytes_max is not None and totals[0] > first_bytes_max:
                return [], False
            fitting = max(fitting, 1)
        if fitting == 0:
            return records, False
        records += _messages(connection, stream_id, measure, totals[:fitting], joins)
        # Return if the page is full or the stream ends. Otherwise continue after these messages.
        if fitting < measure.rows:
            return records, False
        if measure.rows < asked:
            return records, True
        room_bytes -= totals[-1]
        limit -= measure.rows
        index = measure.last + 1
        window = _window(room_bytes, totals[-1] // measure.rows)
    return records, False


def _window(room_bytes: int, message_bytes: int) -> int:
    return min(WINDOW_MAX, max(WINDOW_MIN, room_bytes // max(message_bytes, 1) + 1))


def _messages(
    connection: sqlite3.Connection, stream_id: int, measure: Measure, totals: list[int], joins: bool
) -> list[Record]:
    """Reads the first messages that `measure` describes. totals: the size of the data up to the end of each message."""
    rows = (stream_id, measure.first, len(totals))
    if totals[-1] >= BLOB_BYTES_MIN * len(totals):
        return _checked(stream_id, _blobs(connection, rows))
    if not joins or measure.attributed or len(totals) < JOIN_ROWS_MIN or totals[-1] > JOIN_BYTES_MAX:
        return _checked(stream_id, connection.execute(statements.READ_ROWS, rows).fetchall())
    if measure.time_us_min == measure.time_us_max:
        joined = connection.execute(statements.READ_JOINED, rows).fetchone()[0]
        times = [measure.time_us_min] * len(totals)
    else:
        joined, times_text = connection.execute(statements.READ_JOINED_TIMES, rows).fetchone()
        times = _integers(times_text)
    data = [joined[start:end] for start, end in zip([0, *totals], totals, strict=False)]
    written = _integers(measure.checksums_text)[: len(totals)]
    if len(joined) != totals[-1] or len(times) != len(totals) or written != _checksums(stream_id, measure, times, data):
        raise _damage(connection, *rows)
    indexes = range(measure.first, measure.first + len(totals))
    return list(zip(indexes, data, times, repeat(None), repeat(None), strict=False))


def _checksums(stream_id: int, measure: Measure, times: list[int], data: list[bytes]) -> list[int] | None:
    """Returns the checksums that undamaged messages would have, or None if a stored time is not a number."""
    if not isinstance(measure.time_us_min, int) or not isinstance(measure.time_us_max, int):
        return None
    if measure.time_us_min == measure.time_us_max:
        return checksums_plain(seed_base(stream_id, measure.time_us_min), measure.first, data)
    return checksums_plain_timed(stream_id, measure.first, times, data)


def _checked(stream_id: int, rows: Iterable[_Row]) -> list[Record]:
    records: list[Record] = []
    for index, time_us, checksum, key, headers, data in rows:
        damage = find_damage(stream_id, index, time_us, checksum, key, headers, data)
        if damage is not None:
            raise DatabaseCorrupt(corrupt_text(damage))
        records.append((index, data, time_us, key, headers))
    return records


def _blobs(connection: sqlite3.Connection, rows: tuple[int, int, int]) -> Iterator[_Row]:
    for row, index, *columns in connection.execute(statements.READ_BLOB_ROWS, rows).fetchall():
        try:
            with connection.blobopen("messages", "data", row, readonly=True) as blob:
                data = blob.read()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise
            # A number in place of the data cannot be opened.
            raise DatabaseCorrupt(corrupt_text(damaged_message(rows[0], index))) from error
        yield index, *columns, data
    # Nobody reads these pages again soon. If they stayed, each further message would be read into memory that is in no
    # cache of the processor, which takes a sixth longer.
    connection.execute("PRAGMA shrink_memory")


def find_damage(
    stream_id: int, index: int, time_us: object, checksum: object, key: object, headers: object, data: object
) -> str | None:
    """Returns a text that describes the damage of one stored message, or None if the message is undamaged."""
    if (
        isinstance(data, bytes)
        and isinstance(time_us, int)
        and isinstance(key, bytes | None)
        and isinstance(headers, bytes | None)
        and checksum == checksum_full(seed_base(stream_id, time_us), index, data, key, headers)
    ):
        return None
    return damaged_message(stream_id, index)


def _damage(connection: sqlite3.Connection, stream_id: int, index: int, rows: int) -> DatabaseCorrupt:
    """Returns the error for the first damaged or missing message among the `rows` messages from `index` on."""
    expected = index
    for found, *columns in connection.execute(statements.READ_ROWS, (stream_id, index, rows)):
        if found != expected:
            return DatabaseCorrupt(corrupt_text(f"message {expected} of stream {stream_id} is missing"))
        damage = find_damage(stream_id, found, *columns)
        if damage is not None:
            return DatabaseCorrupt(corrupt_text(damage))
        expected += 1
    reason = f"message {expected} of stream {stream_id}, and perhaps more before it, cannot be read"
    return DatabaseCorrupt(corrupt_text(reason))


def _integers(text: str | None) -> list[int]:
    """Returns the numbers of a comma-separated text; none if it is None, or damaged so that it cannot be read."""
    if text is None:
        return []
    try:
        # The text between brackets is JSON, whose decoder is four times as fast as `int` for each number.
        return _numbers.decode(f"[{text}]")
    except (msgspec.MsgspecError, UnicodeError):
        return []
