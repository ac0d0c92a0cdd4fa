"""ReadFigures: the operation that reads the statistics of streams and consumers from the database, in a reading thread.
Only some streams and consumers have statistics of their own. The others are summed, because every name in a metric
costs memory in Prometheus for good."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
from sqlalchemy import Select, bindparam, func, select

from stream_node.care.unread_rows import ZERO, lag_sum, to_read, to_read_joined
from stream_storage.contract import Operation, Session
from stream_storage.schema import messages, streams
from stream_storage.statement import compiled
from stream_storage.thread_runner import ThreadRunner

OTHERS = "_others"
"""The name of the sum of all streams, or all consumers, that are not shown one by one."""


class StreamFigures(msgspec.Struct, frozen=True):
    """The statistics of one stream, for all its partitions. written: all messages ever stored, not only those retained.
    oldest_us: the time of the oldest message, in microseconds since 1970; None if there is no message."""

    name: str
    partitions: int
    written: int
    messages: int
    size_bytes: int
    oldest_us: int | None


class ConsumerFigures(msgspec.Struct, frozen=True):
    """The statistics of one consumer on one stream, for all partitions that it reads (`stream_node.care.unread_rows`).
    lag: the number of stored messages after its positions. saved_us: when it saved a position last, in microseconds
    since 1970; None for the sum of several consumers."""

    client_id: str
    stream: str
    lag: int
    saved_us: int | None


_kept = streams.c.next_index - streams.c.first_index
_by_name = (
    select(
        streams.c.name,
        func.count(),
        func.sum(streams.c.next_index).label("written"),
        func.sum(_kept),
        func.sum(streams.c.size_bytes),
        func.min(
            select(messages.c.time_us)
            .where(messages.c.stream_id == streams.c.id, messages.c.idx == streams.c.first_index)
            .scalar_subquery()
        ),
    )
    .where(
        streams.c.name.in_(
            select(streams.c.name)
            .group_by(streams.c.name)
            .order_by(func.sum(streams.c.next_index).desc(), streams.c.name)
            .limit(bindparam("most"))
            .offset(ZERO)
        )
    )
    .group_by(streams.c.name)
    .order_by(streams.c.name)
)
_all_streams = select(func.count(), func.sum(streams.c.next_index), func.sum(_kept), func.sum(streams.c.size_bytes))
_lag = lag_sum.label("lag")
_consumers: Select[tuple[str, str, int, int]] = (
    select(to_read.c.client_id, to_read.c.stream_name, _lag, func.max(to_read.c.saved_us))
    .select_from(to_read_joined)
    .group_by(to_read.c.client_id, to_read.c.stream_name)
    .order_by(_lag.desc(), to_read.c.client_id, to_read.c.stream_name)
    .limit(bindparam("most"))
    .offset(ZERO)
)
_all_consumers = select(_lag).select_from(to_read_joined)
_TOP, _TOTALS = compiled(_by_name), compiled(_all_streams)
_CONSUMERS, _CONSUMERS_TOTAL = compiled(_consumers), compiled(_all_consumers)


class ReadFigures(Operation):
    """Reads the statistics of the streams to which most was written, and of the consumers with the greatest lag.
    most: how many of each are shown one by one. streams, consumers: their last entry is for all others together."""

    __slots__ = ("consumers", "most", "streams")

    def __init__(self, most: int, on_done: Callable[[ReadFigures], None]) -> None:
        super().__init__(on_done)
        self.most = most
        self.streams: list[StreamFigures] = []
        self.consumers: list[ConsumerFigures] = []

    def apply(self, session: Session) -> None:
        execute, most = session.execute, {"most": self.most}
        self.streams = [StreamFigures(*row) for row in execute(_TOP, most)]
        partitions, *sums = (number or 0 for number in execute(_TOTALS).fetchone())
        rest = StreamFigures(
            OTHERS,
            partitions - sum(each.partitions for each in self.streams),
            sums[0] - sum(each.written for each in self.streams),
            sums[1] - sum(each.messages for each in self.streams),
            sums[2] - sum(each.size_bytes for each in self.streams),
            None,
        )
        if rest.partitions:
            self.streams.append(rest)
        self.consumers = [ConsumerFigures(*row) for row in execute(_CONSUMERS, most)]
        (total,) = execute(_CONSUMERS_TOTAL).fetchone()
        # If there are fewer consumers than may be named, there are no others.
        if len(self.consumers) == self.most:
            left = (total or 0) - sum(each.lag for each in self.consumers)
            self.consumers.append(ConsumerFigures(OTHERS, OTHERS, left, None))


async def read_figures(runner: ThreadRunner, most: int) -> ReadFigures:
    """Returns the operation when it is done. Raises StorageError, see `ThreadRunner.read`."""
    return await runner.read(partial(ReadFigures, most))
