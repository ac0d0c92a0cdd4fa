"""A subquery: the positions from which consumers have to read on, also in partitions that they have never touched.
`stream_node.care.unread` says which partitions these are, and does the same with lists."""

from __future__ import annotations

from sqlalchemy import Exists, FromClause, Integer, and_, case, exists, func, literal_column, select, union_all

from index_service.storage import saved_indexes
from stream_storage.schema import streams
from stream_storage.statement import greatest

ZERO = literal_column("0", Integer)
_saved = saved_indexes.c
_began = case((_saved.generation > ZERO, _saved.generation), else_=_saved.saved_us)
_consumers = (
    select(_saved.client_id, _saved.stream_name, func.min(_began).label("began_us"))
    .group_by(_saved.client_id, _saved.stream_name)
    .subquery("consumers")
)
_own, _earlier, _other = saved_indexes.alias("own"), streams.alias("earlier"), saved_indexes.alias("other")
ONE = literal_column("1", Integer)


def _is_touched(positions: FromClause, partitions: FromClause) -> Exists:
    return exists(
        select(ONE)
        .where(
            positions.c.client_id == _consumers.c.client_id,
            positions.c.stream_name == _consumers.c.stream_name,
            positions.c.partition == partitions.c.partition,
        )
        .correlate(_consumers, partitions)
    )


_left_out = exists(
    select(ONE)
    .where(
        _earlier.c.name == _consumers.c.stream_name,
        _earlier.c.created_us <= _consumers.c.began_us,
        ~_is_touched(_other, _earlier),
    )
    .correlate(_consumers)
)
"""Whether the consumer lacks a position in a partition that existed when it began: it reads only some partitions."""
_index = case((_saved.created_us.in_([ZERO, streams.c.created_us]), _saved.idx), else_=ZERO)
to_read = union_all(
    select(_saved.client_id, _saved.stream_name, _saved.partition, _index.label("idx"), _saved.saved_us).join(
        streams, and_(streams.c.name == _saved.stream_name, streams.c.partition == _saved.partition)
    ),
    select(
        _consumers.c.client_id,
        _consumers.c.stream_name,
        streams.c.partition,
        ZERO.label("idx"),
        ZERO.label("saved_us"),
    )
    .join(streams, and_(streams.c.name == _consumers.c.stream_name, streams.c.created_us > _consumers.c.began_us))
    .where(~_is_touched(_own, streams), ~_left_out),
).subquery("to_read")
"""Columns: client_id, stream_name, partition, idx, saved_us. The last two are 0 in a partition never touched."""
to_read_joined = to_read.join(
    streams, and_(streams.c.name == to_read.c.stream_name, streams.c.partition == to_read.c.partition)
)
next_unread = greatest(to_read.c.idx, streams.c.first_index)
"""The index at which a consumer reads on, in `to_read_joined`: never before the first message that is still stored."""
lag = func.sum(greatest(streams.c.next_index - next_unread, ZERO), type_=Integer).label("lag")
"""The number of messages that a consumer has to read. A consumer that was set beyond the end has no lag."""
consumer_lags = (
    select(to_read.c.client_id, to_read.c.stream_name, lag)
    .select_from(to_read_joined)
    .group_by(to_read.c.client_id, to_read.c.stream_name)
)
