"""Reads a page of one stream's messages and checks each message. It does not know where the stream begins or ends.

A page is not read row by row: for each row the driver gives up the interpreter's lock and has to win it back. While the
trio thread is busy that was measured at up to 7 ms a row, which makes seconds for a page. So a page takes two
statements of one row each. The first one measures: it gives the sizes and checksums of the next messages, which decides
how many of them fit. The second one gives their data, joined to one value, and this module cuts the value up. Pages
that are very small or very large, and pages with keys or headers, are read row by row, still no more than fits.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from itertools import accumulate, repeat
from typing import NamedTuple

from storage.checksum import checksum_full, checksums_plain, checksums_plain_timed, seed_base
from storage.contract import Record
from storage.errors import DatabaseCorrupt, corrupt_text
from storage.statements import (
    JOIN_PROBE,
    JOIN_PROBE_RESULT,
    MEASURE_PAGE,
    READ_JOINED,
    READ_JOINED_TIMES,
    READ_ROWS,
)

WINDOW_MIN = 16
WINDOW_MAX = 1024
"""How many messages one statement measures: as many as probably fit, going by the size of those before them."""
ASSUMED_BYTES = 1024
"""The assumed size of a message before one has been measured."""
JOIN_ROWS_MIN = 8
"""Fewer messages than this are read row by row, which costs less than a joined value."""
JOIN_BYTES_MAX = 16 * 1024 * 1024
"""More data than this is read row by row: a joined value is in memory three times for a moment, in SQLite, as a whole
and cut up."""


class Measure(NamedTuple):
    """The row that `MEASURE_PAGE` gives.

    attributed: how many messages have a key or headers. sizes_text, checksums_text: one number for each message, joined
    with commas.
    """

    rows: int
    first: int
    last: int
    time_us_min: int
    time_us_max: int
    attributed: int
    sizes_text: str
    checksums_text: str


def can_join(connection: sqlite3.Connection) -> bool:
    """Whether this version of SQLite can join values that contain zero bytes."""
    return bool(connection.execute(JOIN_PROBE).fetchone()[0] == JOIN_PROBE_RESULT)


def read_page(
    connection: sqlite3.Connection,
    stream_id: int,
    index: int,
    limit: int,
    bytes_max: int,
    first_bytes_max: int | None,
    *,
    joins: bool,
) -> tuple[list[Record], bool]:
    """The page from `index` on, as `Log.read` describes it, and whether the page ends because no message follows.

    joins: the answer of `can_join`. The caller has begun a transaction, so that all statements see the same state.
    Raises DatabaseCorrupt where a message is damaged, or missing between two others; sqlite3.Error.
    """
    records: list[Record] = []
    room_bytes = bytes_max
    window = _window(room_bytes, ASSUMED_BYTES)
    while limit > 0 and room_bytes >= 0:
        # Measure the next messages.
        asked = min(limit, window)
        measure = Measure(*connection.execute(MEASURE_PAGE, (stream_id, index, asked)).fetchone())
        if measure.rows == 0:
            return records, True
        # Indexes that do not follow each other are damage; only the first message of a page may be further on.
        totals = list(accumulate(_integers(measure.sizes_text)))
        begins = index if records else measure.first
        if (measure.first, measure.last, len(totals)) != (begins, begins + measure.rows - 1, measure.rows):
            raise _damage(connection, stream_id, begins, measure.rows)
        # Read as many as fit; the first message of a page always, unless it is too large for any page.
        fitting = bisect_right(totals, room_bytes)
        if not records:
            if first_bytes_max is not None and totals[0] > first_bytes_max:
                return [], False
            fitting = max(fitting, 1)
        if fitting == 0:
            return records, False
        records += _messages(connection, stream_id, measure, totals[:fitting], joins)
        # The page is full, or the stream ends; else go on behind these messages.
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
    """The first `len(totals)` of the measured messages. totals: where the data of each one ends in the joined value."""
    rows = (stream_id, measure.first, len(totals))
    if not joins or measure.attributed or len(totals) < JOIN_ROWS_MIN or totals[-1] > JOIN_BYTES_MAX:
        return _by_rows(connection, rows)
    if measure.time_us_min == measure.time_us_max:
        joined = connection.execute(READ_JOINED, rows).fetchone()[0]
        times = [measure.time_us_min] * len(totals)
    else:
        joined, times_text = connection.execute(READ_JOINED_TIMES, rows).fetchone()
        times = _integers(times_text)
    data = [joined[start:end] for start, end in zip([0, *totals], totals, strict=False)]
    written = _integers(measure.checksums_text)[: len(totals)]
    if len(joined) != totals[-1] or len(times) != len(totals) or written != _checksums(stream_id, measure, times, data):
        raise _damage(connection, *rows)
    indexes = range(measure.first, measure.first + len(totals))
    return list(zip(indexes, data, times, repeat(None), repeat(None), strict=False))


def _checksums(stream_id: int, measure: Measure, times: list[int], data: list[bytes]) -> list[int] | None:
    """The checksums that the messages should have; None where damage has replaced a time by something else."""
    if not isinstance(measure.time_us_min, int) or not isinstance(measure.time_us_max, int):
        return None
    if measure.time_us_min == measure.time_us_max:
        return checksums_plain(seed_base(stream_id, measure.time_us_min), measure.first, data)
    return checksums_plain_timed(stream_id, measure.first, times, data)


def _by_rows(connection: sqlite3.Connection, rows: tuple[int, int, int]) -> list[Record]:
    records: list[Record] = []
    for index, time_us, checksum, key, headers, data in connection.execute(READ_ROWS, rows).fetchall():
        damage = find_damage(rows[0], index, time_us, checksum, key, headers, data)
        if damage is not None:
            raise DatabaseCorrupt(corrupt_text(damage))
        records.append((index, data, time_us, key, headers))
    return records


def find_damage(
    stream_id: int, index: int, time_us: object, checksum: object, key: object, headers: object, data: object
) -> str | None:
    """The damage of one stored message as a text, or None."""
    if (
        isinstance(data, bytes)
        and isinstance(time_us, int)
        and isinstance(key, bytes | None)
        and isinstance(headers, bytes | None)
        and checksum == checksum_full(seed_base(stream_id, time_us), index, data, key, headers)
    ):
        return None
    return f"message {index} of stream {stream_id} is not what was written (its checksum differs)"


def _damage(connection: sqlite3.Connection, stream_id: int, index: int, rows: int) -> DatabaseCorrupt:
    """The error for the first message from `index` on that is damaged or missing."""
    expected = index
    for found, *columns in connection.execute(READ_ROWS, (stream_id, index, rows)):
        if found != expected:
            return DatabaseCorrupt(corrupt_text(f"message {expected} of stream {stream_id} is missing"))
        damage = find_damage(stream_id, found, *columns)
        if damage is not None:
            return DatabaseCorrupt(corrupt_text(damage))
        expected += 1
    reason = f"message {expected} of stream {stream_id}, and perhaps more before it, cannot be read"
    return DatabaseCorrupt(corrupt_text(reason))


def _integers(text: str | None) -> list[int]:
    """The numbers of a joined column; an empty list where damage has put something else there."""
    try:
        return list(map(int, text.split(","))) if text is not None else []
    except ValueError:
        return []
