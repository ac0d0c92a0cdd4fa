"""FindStreams and FindConsumers: operations of a reading thread that search, order and read one page.
They see what the user may see, and no more."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import trio
from sqlalchemy import ColumnElement, and_, bindparam, func, select

from index_service.storage import saved_indexes
from stream_node.care.unread_rows import ONE, lag_sum, to_read, to_read_joined
from stream_node.doors.dashboard.listing import ConsumerRow, StreamRow
from stream_node.doors.http.problems import Problem
from stream_service.operations import describe
from stream_storage.contract import Operation, Session
from stream_storage.errors import StorageClosed
from stream_storage.schema import messages, streams
from stream_storage.statement import Statement, compiled
from stream_storage.thread_runner import ThreadRunner

RowT = TypeVar("RowT")
FindT = TypeVar("FindT", "FindStreams", "FindConsumers")


class Asked(NamedTuple):
    """The query of a page. search: a part of a name, in capital or small letters. first: the number of the first row.
    streams, clients: the edges of the names that the user may see. rates: messages per second, by stream."""

    search: str
    order: str
    first: int
    rows: int
    streams: Sequence[str]
    clients: Sequence[str]
    rates: dict[str, float] | None = None

    def may_see(self, stream: str) -> bool:
        return bisect_right(self.streams, stream) % 2 == 1

    def may_see_client(self, client_id: str) -> bool:
        return bisect_right(self.clients, client_id) % 2 == 1

    def finds(self, *names: str) -> bool:
        """Whether the search finds one of the names. A statement cannot: PostgreSQL has names as bytes."""
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
_lags = (
    select(to_read.c.client_id, to_read.c.stream_name, lag_sum.label("lag"))
    .select_from(to_read_joined)
    .group_by(to_read.c.client_id, to_read.c.stream_name)
)
_lag = _lags.subquery("lags")


def _largest(*of: ColumnElement[bool]) -> Statement:
    """Compiles a statement that reads, by stream, the largest lag of the consumers with names from `low` to `high`."""
    to = to_read.c.client_id
    lags = _lags.where(to >= bindparam("low"), to < bindparam("high"), *of).subquery("lags")
    return compiled(select(lags.c.stream_name, func.max(lags.c.lag)).group_by(lags.c.stream_name))


_LARGEST, _LARGEST_OF_STREAM = _largest(), _largest(to_read.c.stream_name == bindparam("stream"))
_END = b"\xff"
"""Both databases order these bytes behind every name."""
_saved = (
    select(
        saved_indexes.c.client_id,
        saved_indexes.c.stream_name,
        func.count().label("positions"),
        func.max(saved_indexes.c.saved_us).label("saved_us"),
    )
    .group_by(saved_indexes.c.client_id, saved_indexes.c.stream_name)
    .subquery("saved")
)
_CONSUMERS = compiled(
    select(_saved.c.client_id, _saved.c.stream_name, _saved.c.positions, _saved.c.saved_us, _lag.c.lag)
    .select_from(
        _saved.outerjoin(_lag, and_(_lag.c.client_id == _saved.c.client_id, _lag.c.stream_name == _saved.c.stream_name))
    )
    .order_by(_saved.c.client_id, _saved.c.stream_name)
)


class FindStreams(Operation):
    """Reads a page of streams. first: the number of its first row. total: the number of all that the search finds."""

    __slots__ = ("asked", "first", "rows", "total")

    def __init__(self, asked: Asked, on_done: Callable[[FindStreams], None]) -> None:
        super().__init__(on_done)
        self.asked = asked
        self.rows: list[StreamRow] = []
        self.first = self.total = 0

    def apply(self, session: Session) -> None:
        asked = self.asked
        found = [row for row in session.execute(_STREAMS) if asked.may_see(row[0]) and asked.finds(row[0])]
        self.total = len(found)
        # The lags of all consumers are read only for an order that needs them.
        lags = self._largest(session, _LARGEST) if asked.order == "lag" else {}
        keys: dict[str, Callable[[Any], float]] = {
            "rate": lambda row: (asked.rates or {}).get(row[0], 0.0),
            "lag": lambda row: lags.get(row[0], 0),
            "messages": lambda row: row[2],
            "size": lambda row: row[3],
        }
        if asked.order in keys:
            # The rows come in the order of their names, and rows with the same key stay in it.
            found.sort(key=keys[asked.order], reverse=True)
        self.first, cut = _cut(asked, found)
        self.rows = [self._row(session, *row) for row in cut]

    def _row(self, session: Session, name: str, partitions: int, stored: int, size_bytes: int) -> StreamRow:
        rates, named = self.asked.rates, {"stream": name}
        (first,) = session.log.list_streams(name, None, 1)
        lag = self._largest(session, _LARGEST_OF_STREAM, stream=name).get(name)
        rate = None if rates is None else rates.get(name, 0.0)
        (newest_us,) = session.execute(_NEWEST, named).fetchone()
        return StreamRow(
            name=name,
            partitions=partitions,
            first=describe(session, first),
            messages=stored,
            size_bytes=size_bytes,
            newest_us=newest_us,
            rate=rate,
            lag=lag,
        )

    def _largest(self, session: Session, statement: Statement, **of: str) -> dict[str, int]:
        edges, found = self.asked.clients, dict[str, int]()
        for low, high in zip(edges[::2], (*edges[1::2], _END), strict=False):
            for stream, lag in session.execute(statement, {"low": low, "high": high, **of}):
                found[stream] = max(found.get(stream, 0), lag)
        return found


class FindConsumers(Operation):
    """Reads a page of consumers, the farthest behind first, without lease holders. See `FindStreams`."""

    __slots__ = ("asked", "first", "rows", "total")

    def __init__(self, asked: Asked, on_done: Callable[[FindConsumers], None]) -> None:
        super().__init__(on_done)
        self.asked = asked
        self.rows: list[ConsumerRow] = []
        self.first = self.total = 0

    def apply(self, session: Session) -> None:
        asked = self.asked
        found = [
            (client_id, stream, positions, lag if asked.may_see(stream) else None, saved_us)
            for client_id, stream, positions, saved_us, lag in session.execute(_CONSUMERS)
            if asked.may_see_client(client_id) and asked.finds(client_id, stream)
        ]
        self.total = len(found)
        found.sort(key=lambda row: -(row[3] or 0))
        self.first, cut = _cut(asked, found)
        self.rows = [ConsumerRow(*row) for row in cut]


def _cut(asked: Asked, found: list[RowT]) -> tuple[int, list[RowT]]:
    """Returns the number of the first row of the page, and the page. A page behind the last one is the last one."""
    first = min(asked.first, max(0, len(found) - 1) // asked.rows * asked.rows)
    return first, found[first : first + asked.rows]


async def find(runner: ThreadRunner, asked: Asked, kind: Callable[..., FindT]) -> FindT:
    """Carries out an operation of this module. Raises StorageError, and Problem while the node stops."""
    done = trio.Event()
    operation = kind(asked, lambda operation: done.set())
    try:
        runner.submit_read(operation)
    except StorageClosed as error:
        raise Problem(503, "node-stops", "the node is stopping; ask again after its next start") from error
    await done.wait()
    if operation.error is not None:
        raise operation.error
    return operation
