"""The statements of the log of messages that every database runs, compiled once from the schema."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from sqlalchemy import ColumnElement, Integer, Select, bindparam, delete, func, literal_column, select, tuple_, update

from stream_storage.schema import messages, streams
from stream_storage.seal import STREAM_COLUMNS
from stream_storage.statement import Statement, compiled, upsert

# Streams.

_record = streams.c["id", "name", "partition", "first_index", "next_index", "size_bytes", "created_us"]
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
    upsert(streams)
    .values(
        {column: bindparam(column) for column in ("name", "partition", "created_us", "seal")}
        | dict.fromkeys(("first_index", "next_index", "size_bytes"), _zero)
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
"""`LIST_STREAMS` for names below `end_name`, to list the names that begin with a prefix."""
BEGIN_STREAM_AT: Final = compiled(
    update(streams)
    .where(_by_id, streams.c.next_index == _zero)
    .values(first_index=bindparam("first"), next_index=bindparam("next"), seal=bindparam("seal")),
    *("first", "next", "seal", "stream_id"),
)
SEALED_STREAM: Final = compiled(select(*streams.c[*STREAM_COLUMNS, "seal"]).where(_by_id), "stream_id")
"""Reads the arguments of `stream_storage.seal.stream_seal`, and the seal."""
DELETE_STREAM: Final = compiled(delete(streams).where(_by_id), "stream_id")


@cache
def set_columns(*names: str) -> Statement:
    """Returns the statement that sets these columns of a stream, in the order of the table, and its seal."""
    values: dict[str, Any] = {name: bindparam(name) for name in (*names, "seal")}
    return compiled(update(streams).where(_by_id).values(values), *names, "seal", "stream_id")


# Messages.

_of_stream = messages.c.stream_id == bindparam("stream_id")
DELETE_BELOW: Final = compiled(
    delete(messages).where(_of_stream, messages.c.idx < bindparam("end")), *("stream_id", "end")
)
DELETE_MESSAGES: Final = compiled(delete(messages).where(_of_stream), "stream_id")
_from = (_of_stream, messages.c.idx >= bindparam("start"))
SIZE_FROM: Final = compiled(
    select(func.coalesce(func.sum(func.length(messages.c.data)), _zero)).where(*_from), *("stream_id", "start")
)
DELETE_FROM: Final = compiled(delete(messages).where(*_from), *("stream_id", "start"))


def page(*columns: ColumnElement[Any]) -> Select[*tuple[Any, ...]]:
    """Returns the query that reads `columns` of at most `limit` messages of a stream, from an index on."""
    return (
        select(*columns)
        .where(_of_stream, messages.c.idx >= bindparam("index"))
        .order_by(messages.c.idx)
        .limit(bindparam("limit", type_=Integer))
        .offset(_zero)
    )


FIND_FITTING: Final = compiled(
    page(messages.c.idx).where(func.length(messages.c.data) <= bindparam("bytes_max")),
    *("stream_id", "index", "bytes_max", "limit"),
)
"""Finds the first message, from an index on, that is small enough; the length is known without reading the value."""
