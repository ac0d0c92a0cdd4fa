"""The statements of the log of messages that SQLite runs. `stream_storage.log_statements` has those of both
databases."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    LargeBinary,
    bindparam,
    cast,
    func,
    literal_column,
    select,
)

from stream_storage.log_statements import page
from stream_storage.schema import messages, streams
from stream_storage.seal import FIRST_FACTOR, MODULUS, NEXT_FACTOR, SIZE_FACTOR
from stream_storage.statement import compiled

# Streams.

TRUNCATE_STREAM: Final = (
    "UPDATE streams SET first_index = ?1, size_bytes = size_bytes - ?2, seal = "
    f"(seal + {FIRST_FACTOR} * (?1 - first_index) + {MODULUS} - ({SIZE_FACTOR} * ?2) % {MODULUS}) % {MODULUS} "
    "WHERE id = ?3"
)
"""Moves the first index of a stream. Parameters: new first index, number of deleted bytes, stream id."""


def advance_streams(count: int) -> str:
    """Returns the statement that moves the next index of those of `count` streams that have the expected one.
    Parameters for each: stream id, expected next index, new next index, number of added bytes."""
    rows = ",".join(["(?,?,?,?)"] * count)
    return (
        "UPDATE streams SET next_index = ends.column3, size_bytes = streams.size_bytes + ends.column4, seal = "
        f"(seal + {NEXT_FACTOR} * (ends.column3 - next_index) + {SIZE_FACTOR} * ends.column4) % {MODULUS} "
        f"FROM (VALUES {rows}) AS ends WHERE streams.id = ends.column1 AND streams.next_index = ends.column2"
    )


# Statements that write messages.

CHUNKS: Final = (512, 256, 128, 64, 32, 16, 8, 4, 2, 1)
"""The numbers of rows for which a statement exists. A few of them write any number of rows: each statement releases the
interpreter's lock (GIL) and must acquire it again."""


def insert_run(count: int) -> str:
    """Returns the statement that inserts messages of one stream and time, without keys and headers. Parameters: stream
    id, first index, time, then checksum and data of each message."""
    rows = ",".join(f"(?1,?2+{k},?3,?{4 + 2 * k},?{5 + 2 * k})" for k in range(count))
    return f"INSERT INTO messages (stream_id, idx, time_us, checksum, data) VALUES {rows}"


def insert_rows(count: int) -> str:
    """Returns the statement that inserts messages of any streams. Parameters: all columns of each, in order."""
    names = ", ".join(column.name for column in messages.columns)
    rows = ",".join([f"({','.join('?' * len(messages.columns))})"] * count)
    return f"INSERT INTO messages ({names}) VALUES {rows}"


INSERT_RUN: Final = tuple((count, insert_run(count)) for count in CHUNKS)
INSERT_ROWS: Final = tuple((count, insert_rows(count)) for count in CHUNKS)
ADVANCE_STREAMS: Final = tuple((count, advance_streams(count)) for count in CHUNKS)

# Statements that delete messages.

_of_stream = messages.c.stream_id == bindparam("stream_id")
SIZE_BELOW: Final = compiled(
    select(func.coalesce(func.sum(func.length(messages.c.data)), literal_column("0"))).where(
        _of_stream, messages.c.idx < bindparam("end")
    ),
    *("stream_id", "end"),
)

# Statements that read messages.

_message = messages.c
_measured = page(
    _message.idx,
    _message.time_us,
    (_message.key.is_not(None) | _message.headers.is_not(None)).label("attributed"),
    func.length(_message.data).label("size_bytes"),
    _message.checksum,
).subquery("page")
_joined = page(_message.data, _message.time_us).subquery("page")
_join = cast(func.group_concat(_joined.c.data, literal_column("''")), LargeBinary)

MEASURE_PAGE: Final = compiled(
    select(
        func.count(),
        func.min(_measured.c.idx),
        func.max(_measured.c.idx),
        func.min(_measured.c.time_us),
        func.max(_measured.c.time_us),
        func.sum(_measured.c.attributed),
        func.group_concat(_measured.c.size_bytes),
        func.group_concat(_measured.c.checksum),
    ),
    *("stream_id", "index", "limit"),
)
"""Returns `stream_storage.sqlite.page.Measure`: sizes and checksums of a page's messages, without their data."""
READ_JOINED: Final = compiled(select(_join), *("stream_id", "index", "limit"))
READ_JOINED_TIMES: Final = compiled(
    select(_join, func.group_concat(_joined.c.time_us)), *("stream_id", "index", "limit")
)
READ_ROWS: Final = compiled(
    page(_message.idx, _message.time_us, _message.checksum, _message.key, _message.headers, _message.data),
    *("stream_id", "index", "limit"),
)
READ_BLOB_ROWS: Final = compiled(
    page(literal_column("rowid"), _message.idx, _message.time_us, _message.checksum, _message.key, _message.headers),
    *("stream_id", "index", "limit"),
)
"""As READ_ROWS, with the row's number in place of the data."""
READ_STREAM: Final = compiled(
    select(_message.idx, _message.time_us, _message.checksum, _message.key, _message.headers, _message.data)
    .where(_of_stream)
    .order_by(_message.idx),
    "stream_id",
)

# Statements for `stream_storage.sqlite.verify`.

NEXT_STREAM: Final = compiled(select(func.min(streams.c.id)).where(streams.c.id > bindparam("stream_id")), "stream_id")
NEXT_MESSAGES: Final = compiled(
    select(func.min(_message.stream_id)).where(_message.stream_id > bindparam("stream_id")), "stream_id"
)
"""Finds the next stream id in the table of messages. The table of streams can lack it."""
HAS_STREAM: Final = compiled(select(streams.c.id).where(streams.c.id == bindparam("stream_id")), "stream_id")
COUNT_MESSAGES: Final = compiled(select(func.count()).where(_of_stream), "stream_id")

# Statements that test the abilities of the installed SQLite.

JOIN_PROBE: Final = "SELECT CAST(group_concat(x, '') AS BLOB) FROM (SELECT x'00ff01' AS x UNION ALL SELECT x'fe0080')"
JOIN_PROBE_RESULT: Final = bytes.fromhex("00ff01fe0080")
"""The result of JOIN_PROBE if SQLite can join values with zero bytes. An older SQLite ends the joined value at the
first one, and pages are read row by row."""
