"""The SQL statements of the log of messages, compiled once from the schema. They run on a connection of
Python's sqlite3.

A connection of SQLAlchemy is not used: composing and running a statement there would take ten times as long as SQLite
needs to read one row.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Integer,
    LargeBinary,
    Select,
    bindparam,
    cast,
    delete,
    func,
    literal_column,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql import ClauseElement

from storage.seal import FIRST_FACTOR, MODULUS, NEXT_FACTOR, SIZE_FACTOR, STREAM_COLUMNS
from storage.sqlite.schema import messages, streams

_dialect = sqlite.dialect(paramstyle="qmark")


def compiled(statement: ClauseElement, *names: str) -> str:
    """Returns the text of a statement, with `?` for each parameter.

    names: the names of the parameters in the order of their appearance in the text.
    """
    made = statement.compile(dialect=_dialect)
    positions = tuple(getattr(made, "positiontup", None) or ())
    assert positions == names, f"the parameters are {positions}, not {names}"
    return str(made)


# Streams.

_record = (
    streams.c.id,
    streams.c.name,
    streams.c.partition,
    streams.c.first_index,
    streams.c.next_index,
    streams.c.size_bytes,
    streams.c.created_us,
)
_zero: ColumnElement[int] = literal_column("0")
_by_id = streams.c.id == bindparam("stream_id")
_listed = (
    select(*_record)
    .where(tuple_(streams.c.name, streams.c.partition) > tuple_(bindparam("after_name"), bindparam("after_partition")))
    .order_by(streams.c.name, streams.c.partition)
    .limit(bindparam("limit", type_=Integer))
    .offset(_zero)
)

INSERT_STREAM: Final = compiled(
    sqlite.insert(streams)
    .values(
        name=bindparam("name"),
        partition=bindparam("partition"),
        first_index=_zero,
        next_index=_zero,
        size_bytes=_zero,
        created_us=bindparam("created_us"),
        seal=bindparam("seal"),
    )
    .on_conflict_do_nothing(),
    *("name", "partition", "created_us", "seal"),
)
FIND_STREAM: Final = compiled(
    select(*_record).where(streams.c.name == bindparam("name"), streams.c.partition == bindparam("partition")),
    *("name", "partition"),
)
GET_STREAM: Final = compiled(select(*_record).where(_by_id), "stream_id")
LIST_STREAMS: Final = compiled(_listed, *("after_name", "after_partition", "limit"))
LIST_STREAMS_BELOW: Final = compiled(
    _listed.where(streams.c.name < bindparam("end_name")),
    *("after_name", "after_partition", "end_name", "limit"),
)
"""Lists streams like `LIST_STREAMS`, but only the streams whose names are below `end_name`. The log uses this
statement to list the streams whose names begin with a prefix."""
BEGIN_STREAM_AT: Final = compiled(
    update(streams)
    .where(_by_id, streams.c.next_index == _zero)
    .values(first_index=bindparam("first"), next_index=bindparam("next"), seal=bindparam("seal")),
    *("first", "next", "seal", "stream_id"),
)
TRUNCATE_STREAM: Final = (
    "UPDATE streams SET first_index = ?1, size_bytes = size_bytes - ?2, seal = "
    f"(seal + {FIRST_FACTOR} * (?1 - first_index) + {MODULUS} - ({SIZE_FACTOR} * ?2) % {MODULUS}) % {MODULUS} "
    "WHERE id = ?3"
)
"""Moves the first index of a stream after a deletion. Parameters: new first index, number of deleted bytes,
stream id."""
SEALED_STREAM: Final = f"SELECT {STREAM_COLUMNS}, seal FROM streams WHERE id = ?"
SEALED_STREAMS: Final = f"SELECT {STREAM_COLUMNS}, seal FROM streams"
DELETE_STREAM: Final = compiled(delete(streams).where(_by_id), "stream_id")


def advance_streams(count: int) -> str:
    """Returns the statement that moves the next index of `count` streams.

    Parameters for each stream: stream id, expected next index, new next index, number of added bytes.

    A stream whose next index differs from the expected next index is not changed. One statement moves all streams,
    because each statement releases the interpreter's lock (GIL) and must acquire it again.
    """
    rows = ",".join(["(?,?,?,?)"] * count)
    return (
        "UPDATE streams SET next_index = ends.column3, size_bytes = streams.size_bytes + ends.column4, seal = "
        f"(seal + {NEXT_FACTOR} * (ends.column3 - next_index) + {SIZE_FACTOR} * ends.column4) % {MODULUS} "
        f"FROM (VALUES {rows}) AS ends WHERE streams.id = ends.column1 AND streams.next_index = ends.column2"
    )


# Statements that write messages.

CHUNKS: Final = (512, 256, 128, 64, 32, 16, 8, 4, 2, 1)
"""The numbers of rows for which an INSERT or UPDATE statement exists. Any number of rows can be written with a few of
these statements, so few prepared statements are enough."""


def insert_run(count: int) -> str:
    """Returns the statement that inserts `count` messages of one stream with consecutive indexes and the same time,
    without keys and headers.

    Parameters: stream id, first index, time, then checksum and data of each message.
    """
    rows = ",".join(f"(?1,?2+{k},?3,?{4 + 2 * k},?{5 + 2 * k})" for k in range(count))
    return f"INSERT INTO messages (stream_id, idx, time_us, checksum, data) VALUES {rows}"


def insert_rows(count: int) -> str:
    """Returns the statement that inserts `count` messages of any streams.

    Parameters for each message: all columns, in the order of the table.
    """
    names = ", ".join(column.name for column in messages.columns)
    rows = ",".join([f"({','.join('?' * len(messages.columns))})"] * count)
    return f"INSERT INTO messages ({names}) VALUES {rows}"


INSERT_RUN: Final = tuple((count, insert_run(count)) for count in CHUNKS)
INSERT_ROWS: Final = tuple((count, insert_rows(count)) for count in CHUNKS)
ADVANCE_STREAMS: Final = tuple((count, advance_streams(count)) for count in CHUNKS)

# Statements that delete messages.

_of_stream = messages.c.stream_id == bindparam("stream_id")
_below = _of_stream & (messages.c.idx < bindparam("end"))
SIZE_BELOW: Final = compiled(
    select(func.coalesce(func.sum(func.length(messages.c.data)), _zero)).where(_below), *("stream_id", "end")
)
DELETE_BELOW: Final = compiled(delete(messages).where(_below), *("stream_id", "end"))
DELETE_MESSAGES: Final = compiled(delete(messages).where(_of_stream), "stream_id")

# Statements that read messages.

_from_index = (_of_stream, messages.c.idx >= bindparam("index"))


def _page(*columns: ColumnElement[Any]) -> Select[*tuple[Any, ...]]:
    """Returns the query that reads `columns` of at most `limit` messages of a stream, from an index on."""
    return (
        select(*columns)
        .where(*_from_index)
        .order_by(messages.c.idx)
        .limit(bindparam("limit", type_=Integer))
        .offset(_zero)
    )


_message = messages.c
_measured = _page(
    _message.idx,
    _message.time_us,
    (_message.key.is_not(None) | _message.headers.is_not(None)).label("attributed"),
    func.length(_message.data).label("size_bytes"),
    _message.checksum,
).subquery("page")
_joined = _page(_message.data, _message.time_us).subquery("page")
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
"""Returns the measures of a page as one row (see `storage.sqlite.page.Measure`): counts, sizes and checksums of its
messages, without their data."""
FIND_FITTING: Final = compiled(
    _page(messages.c.idx).where(func.length(messages.c.data) <= bindparam("bytes_max")),
    *("stream_id", "index", "bytes_max", "limit"),
)
"""Finds the first message, from an index on, whose data has at most a given size. SQLite stores the length of a value
in the head of the row, so this query does not read the data."""
READ_JOINED: Final = compiled(select(_join), *("stream_id", "index", "limit"))
"""Reads the data of all messages of a page, joined to one value."""
READ_JOINED_TIMES: Final = compiled(
    select(_join, func.group_concat(_joined.c.time_us)), *("stream_id", "index", "limit")
)
READ_ROWS: Final = compiled(
    _page(_message.idx, _message.time_us, _message.checksum, _message.key, _message.headers, _message.data),
    *("stream_id", "index", "limit"),
)
READ_STREAM: Final = compiled(
    select(_message.idx, _message.time_us, _message.checksum, _message.key, _message.headers, _message.data)
    .where(_of_stream)
    .order_by(_message.idx),
    "stream_id",
)

# Statements for `storage.sqlite.verify`.

NEXT_STREAM: Final = compiled(select(func.min(streams.c.id)).where(streams.c.id > bindparam("stream_id")), "stream_id")
NEXT_MESSAGES: Final = compiled(
    select(func.min(_message.stream_id)).where(_message.stream_id > bindparam("stream_id")), "stream_id"
)
"""Finds the smallest stream id above a given id in the table of messages. The stream can be missing in the table
of streams."""
HAS_STREAM: Final = compiled(select(streams.c.id).where(_by_id), "stream_id")
COUNT_MESSAGES: Final = compiled(select(func.count()).where(_of_stream), "stream_id")

# Statements that test the abilities of the installed SQLite.

JOIN_PROBE: Final = "SELECT CAST(group_concat(x, '') AS BLOB) FROM (SELECT x'00ff01' AS x UNION ALL SELECT x'fe0080')"
JOIN_PROBE_RESULT: Final = bytes.fromhex("00ff01fe0080")
"""The result of JOIN_PROBE if SQLite can join values with zero bytes. An older SQLite ends the joined value at the
first zero byte. With an older SQLite, pages are read row by row."""
