"""Lists everything that the user may see: streams with their partitions, and consumers with their positions.
A process that has all streams searches and orders them in a reading thread (`find`). Other processes ask the node.
Also finds the consumers with waiting messages, and those beyond the end, for the troubles (`read_positions`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import msgspec
import trio
from sqlalchemy import ColumnElement, and_, bindparam, func, select

from index_service.extensions import SavedPosition
from index_service.storage import saved_indexes
from stream_client import AccessDenied, StreamClient, StreamInfo, list_positions
from stream_node.care.unread import count_unread
from stream_node.care.unread_rows import ONE, ZERO, consumer_lags, next_unread, to_read, to_read_joined
from stream_node.doors.http.data.places import find_partitions
from stream_node.doors.http.problems import Problem
from stream_service.operations import describe
from stream_storage.contract import Do, Session
from stream_storage.errors import StorageClosed
from stream_storage.schema import messages, streams
from stream_storage.statement import Statement, compiled, greatest
from stream_storage.thread_runner import ThreadRunner

ROWS = 50

T = TypeVar("T")


class StreamRow(msgspec.Struct, frozen=True):
    """One stream. rate: recent messages per second. lag: of its slowest consumer. None: unknown, or no consumers."""

    name: str
    partitions: int
    messages: int
    size_bytes: int
    rate: float | None
    lag: int | None
    first: StreamInfo | None = None
    newest_us: int | None = None


ORDERS: dict[str, Callable[[StreamRow], Any]] = {
    "name": lambda row: row.name,
    "rate": lambda row: -(row.rate or 0),
    "size": lambda row: -row.size_bytes,
    "messages": lambda row: -row.messages,
    "lag": lambda row: -(row.lag or 0),
}


class ConsumerRow(msgspec.Struct):
    """One consumer of one stream. saved_us: its last progress. holders: the members that lease its partitions."""

    client_id: str
    stream: str
    positions: int
    lag: int | None
    saved_us: int
    holders: list[str] = []


class Shown(msgspec.Struct, frozen=True):
    """The rows of one page. before, after: the first row of the previous and of the next page; None: no such page."""

    rows: list[Any]
    first: int
    total: int
    before: int | None
    after: int | None


async def list_infos(client: StreamClient, name: str | None = None) -> list[StreamInfo]:
    return [each async for each in client.list_streams()] if name is None else await find_partitions(client, name)


async def list_saved(
    client: StreamClient, *, stream_name: str | None = None, client_id: str | None = None
) -> list[SavedPosition]:
    return [each async for each in list_positions(client, stream_name=stream_name, client_id=client_id)]


async def permitted(asked: Awaitable[list[T]]) -> list[T]:
    try:
        return await asked
    except AccessDenied:
        return []


def stream_rows(infos: list[StreamInfo], saved: list[SavedPosition], rates: dict[str, float] | None) -> list[StreamRow]:
    lags: dict[str, int] = {}
    for each in consumer_rows(infos, saved):
        if each.lag is not None:
            lags[each.stream] = max(lags.get(each.stream, 0), each.lag)
    return [
        StreamRow(
            name=name,
            partitions=len(own),
            first=own[0],
            messages=sum(each.count for each in own),
            size_bytes=sum(each.size_bytes for each in own),
            newest_us=max((each.last_time_us for each in own if each.last_time_us is not None), default=None),
            rate=None if rates is None else rates.get(name, 0.0),
            lag=lags.get(name),
        )
        for name, own in ((name, list(group)) for name, group in groupby(infos, key=lambda info: info.stream_name))
    ]


def consumer_rows(infos: list[StreamInfo], saved: list[SavedPosition]) -> list[ConsumerRow]:
    rows = []
    for key, unread in count_unread(saved, infos).items():
        rows.append(ConsumerRow(*key, 0, sum(unread.values()) if unread else None, 0, []))
    by_key = {(each.client_id, each.stream): each for each in rows}
    for each in saved:
        row = by_key[each.client_id, each.stream_name]
        row.positions += 1
        row.saved_us = max(row.saved_us, each.saved_us)
        if each.holder is not None and each.holder not in row.holders:
            row.holders.append(each.holder)
    return rows


def cut_rows(rows: Sequence[Any], first: int, make: Callable[[Any], Any] = lambda row: row) -> Shown:
    """Returns the page from the row `first` on, or the last page if there is no such row. make: completes a row."""
    first = min(first, max(0, len(rows) - 1) // ROWS * ROWS)
    return shown_rows(list(map(make, rows[first : first + ROWS])), first, len(rows))


def shown_rows(rows: list[Any], first: int, total: int) -> Shown:
    after = first + ROWS
    return Shown(rows, first, total, max(0, first - ROWS) if first else None, after if after < total else None)


class Asked(NamedTuple):
    """The query of a page. search: a part of a name, in capital or small letters. first: the number of the first row.
    streams, clients: which names the user may see (`DashboardPage.edges`). rates: messages per second, by stream."""

    search: str
    order: str
    first: int
    streams: Sequence[str]
    clients: Sequence[str]
    rates: dict[str, float] | None = None

    def may_see(self, stream: str) -> bool:
        return bisect_right(self.streams, stream) % 2 == 1

    def finds(self, *names: str) -> bool:
        """Whether one of the names contains the searched text. SQL cannot search: PostgreSQL has names as bytes."""
        return not self.search or self.search.lower() in "\n".join(names).lower()


_STREAMS = compiled(
    select(
        streams.c.name,
        func.count(),
        func.sum(streams.c.next_index - streams.c.first_index),
        func.sum(streams.c.size_bytes),
    )
    .group_by(streams.c.name)
    .order_by(streams.c.name)
)
_newest = (
    select(messages.c.time_us)
    .where(messages.c.stream_id == streams.c.id, messages.c.idx == streams.c.next_index - ONE)
    .scalar_subquery()
)
_NEWEST = compiled(select(func.max(_newest)).where(streams.c.name == bindparam("stream")))
_lag = consumer_lags.subquery("lags")


def _largest(*of: ColumnElement[bool]) -> Statement:
    """Compiles a query for each stream's largest lag among consumers with names from `low` to before `high`."""
    to = to_read.c.client_id
    lags = consumer_lags.where(to >= bindparam("low"), to < bindparam("high"), *of).subquery("lags")
    return compiled(select(lags.c.stream_name, func.max(lags.c.lag)).group_by(lags.c.stream_name))


_LARGEST, _LARGEST_OF_STREAM = _largest(), _largest(to_read.c.stream_name == bindparam("stream"))
_END = b"\xff"
"""Both databases order these bytes behind every name."""
_own = saved_indexes.c
_progress = select(
    _own.client_id, _own.stream_name, func.max(_own.saved_us).label("saved_us"), func.count().label("positions")
).group_by(_own.client_id, _own.stream_name)
_saved = _progress.subquery("saved")
_CONSUMERS = compiled(
    select(_saved.c.client_id, _saved.c.stream_name, _saved.c.positions, _saved.c.saved_us, _lag.c.lag)
    .select_from(
        _saved.outerjoin(_lag, and_(_lag.c.client_id == _saved.c.client_id, _lag.c.stream_name == _saved.c.stream_name))
    )
    .order_by(_saved.c.client_id, _saved.c.stream_name)
)


def find_streams(session: Session, asked: Asked) -> Shown:
    # The lags of all consumers are read only for an order that needs them.
    lags = _largest_lags(session, asked, _LARGEST) if asked.order == "lag" else {}
    rates = asked.rates
    rows = [
        StreamRow(name, partitions, stored, size, None if rates is None else rates.get(name, 0.0), lags.get(name))
        for name, partitions, stored, size in session.execute(_STREAMS)
        if asked.may_see(name) and asked.finds(name)
    ]

    def complete(row: StreamRow) -> StreamRow:
        (first,) = session.log.list_streams(row.name, None, 1)
        (newest_us,) = session.execute(_NEWEST, {"stream": row.name}).fetchone()
        lag = _largest_lags(session, asked, _LARGEST_OF_STREAM, stream=row.name).get(row.name)
        return msgspec.structs.replace(row, first=describe(session, first), newest_us=newest_us, lag=lag)

    # The rows come in the order of their names, and the sort leaves rows with the same key in this order.
    return cut_rows(sorted(rows, key=ORDERS[asked.order]), asked.first, complete)


def _largest_lags(session: Session, asked: Asked, statement: Statement, **of: str) -> dict[str, int]:
    edges, found = asked.clients, dict[str, int]()
    for low, high in zip(edges[::2], (*edges[1::2], _END), strict=False):
        for stream, lag in session.execute(statement, {"low": low, "high": high, **of}):
            found[stream] = max(found.get(stream, 0), lag)
    return found


def find_consumers(session: Session, asked: Asked) -> Shown:
    """Reads a page of consumers, the farthest behind first, without lease holders."""
    found = [
        (client_id, stream, positions, lag if asked.may_see(stream) else None, saved_us)
        for client_id, stream, positions, saved_us, lag in session.execute(_CONSUMERS)
        if bisect_right(asked.clients, client_id) % 2 and asked.finds(client_id, stream)
    ]
    found.sort(key=lambda row: -(row[3] or 0))
    return cut_rows(found, asked.first, lambda row: ConsumerRow(*row))


async def find(runner: ThreadRunner, asked: Asked, read: Callable[[Session, Asked], Shown]) -> Shown:
    """Reads a page by a function of this module. Raises StorageError, and Problem while the node stops."""
    done = trio.Event()
    operation = Do(lambda session: read(session, asked), lambda operation: done.set())
    try:
        runner.submit_read(operation)
    except StorageClosed as error:
        raise Problem(503, "node-stops", "the node is stopping; ask again after its next start") from error
    await done.wait()
    if operation.error is not None:
        raise operation.error
    return operation.result


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
    """A consumer whose positions are beyond the end of `partitions` partitions; `partition` is the first of them.
    Positions in streams that no longer exist do not count."""

    client_id: str
    stream: str
    partition: int
    index: int
    end: int
    partitions: int


class ConsumerProgress(NamedTuple):
    """The consumers with unread messages (the longest wait first), those beyond the end, and the progress of all."""

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
_SAVED = compiled(_progress)


def _read(session: Session) -> ConsumerProgress:
    execute = session.execute
    waiting, beyond = [ConsumerLag(*row) for row in execute(_WAITING)], [Beyond(*row) for row in execute(_BEYOND)]
    return ConsumerProgress(waiting, beyond, [(row[0], row[1], row[2]) for row in execute(_SAVED)])


async def read_positions(runner: ThreadRunner) -> ConsumerProgress:
    """Returns all consumers that may be in trouble. Raises StorageError, see `ThreadRunner.read`."""
    return (await runner.read(partial(Do, _read))).result
