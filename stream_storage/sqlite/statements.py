"""The statements of the log of messages that SQLite runs. `stream_storage.stream_rows` has those of both
databases."""

from __future__ import annotations

from typing import Final

from stream_storage.schema import messages
from stream_storage.seal import FIRST_FACTOR, MODULUS, NEXT_FACTOR, SIZE_FACTOR

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

SIZE_BELOW: Final = "SELECT coalesce(sum(length(data)), 0) FROM messages WHERE stream_id = ? AND idx < ?"

# Statements that read messages.

_PAGE: Final = "FROM messages WHERE stream_id = ? AND idx >= ? ORDER BY idx LIMIT ?"
"""Parameters: stream id, first index, and the largest number of messages."""
_COLUMNS: Final = "idx, time_us, checksum, key, headers"

MEASURE_PAGE: Final = (
    "SELECT count(*), min(idx), max(idx), min(time_us), max(time_us), sum(attributed), group_concat(size_bytes), "
    "group_concat(checksum) FROM (SELECT idx, time_us, key IS NOT NULL OR headers IS NOT NULL AS attributed, "
    f"length(data) AS size_bytes, checksum {_PAGE})"
)
"""Returns `stream_storage.sqlite.page.Measure`: sizes and checksums of a page's messages, without their data."""
READ_JOINED: Final = f"SELECT CAST(group_concat(data, '') AS BLOB) FROM (SELECT data {_PAGE})"
READ_JOINED_TIMES: Final = (
    f"SELECT CAST(group_concat(data, '') AS BLOB), group_concat(time_us) FROM (SELECT data, time_us {_PAGE})"
)
READ_ROWS: Final = f"SELECT {_COLUMNS}, data {_PAGE}"
READ_BLOB_ROWS: Final = f"SELECT rowid, {_COLUMNS} {_PAGE}"
READ_STREAM: Final = f"SELECT {_COLUMNS}, data FROM messages WHERE stream_id = ? ORDER BY idx"

# Statements for `stream_storage.sqlite.verify`.

NEXT_STREAM: Final = "SELECT min(id) FROM streams WHERE id > ?"
NEXT_MESSAGES: Final = "SELECT min(stream_id) FROM messages WHERE stream_id > ?"
"""Finds the next stream id in the table of messages. The table of streams can lack it."""
HAS_STREAM: Final = "SELECT id FROM streams WHERE id = ?"
COUNT_MESSAGES: Final = "SELECT count(*) FROM messages WHERE stream_id = ?"

# Statements that test the abilities of the installed SQLite.

JOIN_PROBE: Final = "SELECT CAST(group_concat(x, '') AS BLOB) FROM (SELECT x'00ff01' AS x UNION ALL SELECT x'fe0080')"
JOIN_PROBE_RESULT: Final = bytes.fromhex("00ff01fe0080")
"""The result of JOIN_PROBE if SQLite can join values with zero bytes. An older SQLite ends the joined value at the
first one, and pages are read row by row."""
