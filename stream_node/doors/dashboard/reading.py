"""Finds the consumers with waiting messages, and those beyond the end."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import msgspec
from sqlalchemy import func, select

from index_service.storage import saved_indexes
from stream_node.care.unread_rows import ONE, ZERO, next_unread, to_read, to_read_joined
from stream_storage.contract import Do, Session
from stream_storage.schema import messages, streams
from stream_storage.statement import compiled, greatest
from stream_storage.thread_runner import ThreadRunner


class ConsumerLag(msgspec.Struct, frozen=True, gc=False):
    """A consumer of one stream with unread messages in `partitions` partitions, `lag` in all. partition: the one in
    which a message waits for longest; the consumer is at `index` there, without progress since `since_us`."""

    client_id: str
    stream: str
    partition: int
    index: int
    since_us: int
    partitions: int
    lag: int


class Beyond(msgspec.Struct, frozen=True, gc=False):
    """A consumer beyond the end of `partitions` partitions, first of `partition`. Former streams do not count."""

    client_id: str
    stream: str
    partition: int
    index: int
    end: int
    partitions: int


class ConsumerProgress(NamedTuple):
    """The consumers with unread messages (the longest wait first), those beyond the end, and each last progress."""

    waiting: list[ConsumerLag]
    beyond: list[Beyond]
    saved: list[tuple[str, str, int]]


_since = greatest(to_read.c.saved_us, messages.c.time_us)
_consumer = to_read.c.client_id, to_read.c.stream_name
_partitions = (
    select(
        to_read.c.client_id,
        to_read.c.stream_name,
        to_read.c.partition,
        next_unread.label("idx"),
        _since.label("since_us"),
        func.count().over(partition_by=_consumer).label("partitions"),
        func.sum(streams.c.next_index - next_unread).over(partition_by=_consumer).label("lag"),
        func.row_number().over(partition_by=_consumer, order_by=(_since, to_read.c.partition)).label("place"),
    )
    .select_from(
        to_read_joined.join(messages, (messages.c.stream_id == streams.c.id) & (messages.c.idx == next_unread))
    )
    .subquery("waiting")
)
_WAITING = compiled(
    select(*list(_partitions.c)[:-1]).where(_partitions.c.place == ONE).order_by(_partitions.c.since_us)
)
_saved_join = saved_indexes.join(
    streams,
    (streams.c.name == saved_indexes.c.stream_name) & (streams.c.partition == saved_indexes.c.partition),
)
_own = saved_indexes.c
_beyond = (
    select(
        _own.client_id,
        _own.stream_name,
        _own.partition,
        _own.idx,
        streams.c.next_index,
        func.count().over(partition_by=(_own.client_id, _own.stream_name)).label("partitions"),
        func.row_number().over(partition_by=(_own.client_id, _own.stream_name), order_by=_own.partition).label("place"),
    )
    .select_from(_saved_join)
    .where(_own.idx > streams.c.next_index, _own.created_us.in_([ZERO, streams.c.created_us]))
    .subquery("beyond")
)
_BEYOND = compiled(
    select(*list(_beyond.c)[:-1]).where(_beyond.c.place == ONE).order_by(_beyond.c.client_id, _beyond.c.stream_name)
)
_SAVED = compiled(
    select(saved_indexes.c.client_id, saved_indexes.c.stream_name, func.max(saved_indexes.c.saved_us)).group_by(
        saved_indexes.c.client_id, saved_indexes.c.stream_name
    )
)


def _read(session: Session) -> ConsumerProgress:
    execute = session.execute
    waiting, beyond = [ConsumerLag(*row) for row in execute(_WAITING)], [Beyond(*row) for row in execute(_BEYOND)]
    return ConsumerProgress(waiting, beyond, [(row[0], row[1], row[2]) for row in execute(_SAVED)])


async def read_positions(runner: ThreadRunner) -> ConsumerProgress:
    """Returns all consumers that may be in trouble. Raises StorageError, see `ThreadRunner.read`."""
    return (await runner.read(partial(Do, _read))).result
