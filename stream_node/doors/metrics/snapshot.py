"""Snapshot: everything that the metrics show, at one moment. It never holds the event loop for long.
Some streams and consumers are named, the others summed: every name in a metric costs memory in Prometheus for good.
Metric: one metric of the list: its name, its kind, its text, and where its values are in a snapshot."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Generic, Literal, NamedTuple, TypeVar

import msgspec
import structlog
import trio
from sqlalchemy import bindparam, func, select

from ockam.actors.mailbox import MailboxStatistics
from stream_node.care.trouble import CurrentTroubles
from stream_node.care.unread_rows import ZERO, consumer_lags, lag, to_read, to_read_joined
from stream_node.node.identity.endings import Ending, read_endings
from stream_node.node.parts import NodeParts, ServerStatistics
from stream_storage.contract import Do, Session
from stream_storage.errors import StorageError
from stream_storage.histogram import Histogram
from stream_storage.schema import messages, streams
from stream_storage.sqlite.database import FILE_NAME
from stream_storage.statement import compiled
from stream_storage.thread_runner import ThreadRunner

OTHERS = "_others"
"""The name of the sum of all streams, or all consumers, that are not shown one by one."""


class StreamFigures(msgspec.Struct, frozen=True):
    """One stream with all its partitions. written: all messages ever. oldest_us: None without messages."""

    name: str
    partitions: int
    written: int
    messages: int
    size_bytes: int
    oldest_us: int | None


class ConsumerFigures(msgspec.Struct, frozen=True):
    """One consumer of one stream. saved_us: when it saved a position last; None for a sum of consumers."""

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
_consumers = (
    consumer_lags.add_columns(func.max(to_read.c.saved_us))
    .order_by(lag.desc(), to_read.c.client_id, to_read.c.stream_name)
    .limit(bindparam("most"))
    .offset(ZERO)
)
_all_consumers = select(lag).select_from(to_read_joined)
_TOP, _TOTALS = compiled(_by_name), compiled(_all_streams)
_CONSUMERS, _CONSUMERS_TOTAL = compiled(_consumers), compiled(_all_consumers)


class Figures(NamedTuple):
    """The statistics of streams and consumers. If some are not named, the last entry of a list is their sum."""

    streams: list[StreamFigures]
    consumers: list[ConsumerFigures]


def read_session(session: Session, most: int) -> Figures:
    """Reads the `most` streams with the most written messages, the `most` consumers with the greatest lag, and the sums
    of the others."""
    named = [StreamFigures(*row) for row in session.execute(_TOP, {"most": most})]
    partitions, *sums = (number or 0 for number in session.execute(_TOTALS).fetchone())
    rest = StreamFigures(
        OTHERS,
        partitions - sum(each.partitions for each in named),
        sums[0] - sum(each.written for each in named),
        sums[1] - sum(each.messages for each in named),
        sums[2] - sum(each.size_bytes for each in named),
        None,
    )
    consumers = [ConsumerFigures(*row) for row in session.execute(_CONSUMERS, {"most": most})]
    (total,) = session.execute(_CONSUMERS_TOTAL).fetchone()
    # If there are fewer consumers than may be named, there are no others.
    if len(consumers) == most:
        left = (total or 0) - sum(each.lag for each in consumers)
        consumers.append(ConsumerFigures(OTHERS, OTHERS, left, None))
    return Figures([*named, rest] if rest.partitions else named, consumers)


async def read_figures(runner: ThreadRunner, most: int) -> Figures:
    return (await runner.read(partial(Do, partial(read_session, most=most)))).result


PART = 1_000
"""The number of mailboxes that are sampled before other tasks of the event loop run."""


logger = structlog.get_logger(__name__)


class Mailboxes(msgspec.Struct):
    """The mailboxes of all workers together. full: how many take no further messages at present."""

    messages: int = 0
    size_bytes: int = 0
    full: int = 0


class Snapshot(msgspec.Struct, frozen=True):
    """Everything that the metrics show. parts: those of the running node, which go on counting. figures: empty if the
    database could not be read. troubles: None if unknown. endings: of certificates and tokens, the next first."""

    parts: NodeParts
    statistics: ServerStatistics
    mailboxes: Mailboxes
    figures: Figures
    troubles: CurrentTroubles | None
    endings: list[Ending]
    files: dict[str, float]


async def take_snapshot(parts: NodeParts) -> Snapshot:
    # If the database does not answer, the troubles wait for it; the statistics do not wait again.
    troubles = None if parts.find_troubles is None else await parts.find_troubles()
    try:
        figures = await read_figures(parts.runner, parts.config.metrics_names_max)
    except StorageError as error:
        logger.error("figures_not_read", reason=str(error))
        figures = Figures([], [])
    return Snapshot(
        parts=parts,
        statistics=parts.statistics(),
        mailboxes=await _walk_mailboxes(parts),
        figures=figures,
        troubles=troubles,
        endings=await trio.to_thread.run_sync(read_endings, parts.config),
        files={} if parts.folder is None else await trio.to_thread.run_sync(_file_sizes, parts.folder),
    )


async def _walk_mailboxes(parts: NodeParts) -> Mailboxes:
    found = Mailboxes()
    mailboxes = list({id(mailbox): mailbox for mailbox in parts.node.mailboxes()}.values())
    for number, mailbox in enumerate(mailboxes, 1):
        statistics: MailboxStatistics = mailbox.statistics()
        found.messages += statistics.messages
        found.size_bytes += statistics.size_bytes
        found.full += mailbox.full
        if not number % PART:
            await trio.lowlevel.checkpoint()
    return found


def _file_sizes(folder: Path) -> dict[str, float]:
    sizes = {}
    for name, file in (("database", FILE_NAME), ("log", f"{FILE_NAME}-wal")):
        try:
            sizes[name] = float(os.stat(folder / file).st_size)
        except FileNotFoundError:
            # SQLite has removed the log when the database was closed.
            sizes[name] = 0.0
    return sizes


Kind = Literal["counter", "gauge", "histogram", "untyped"]
"""untyped: a counter of a specification that has another name than Prometheus wants for its type."""
Values = float | None | Mapping[str, float] | Mapping[tuple[str, ...], float] | Histogram
"""A value; or None if there is none at present; or the values by label, or by the labels in their order."""

T = TypeVar("T")


class Metric(NamedTuple):
    """One metric. name: the whole name, with the unit and, for a counter, with `_total`."""

    name: str
    kind: Kind
    text: str
    values: Callable[[Snapshot], Values]
    labels: tuple[str, ...] = ()


class Part(Generic[T]):
    """A part of the snapshots, and the maker of its metrics. find: returns None if this node does not have the part."""

    def __init__(self, find: Callable[[Snapshot], T | None], prefix: str = "stream_node_") -> None:
        self._find = find
        self._prefix = prefix

    def __call__(
        self, name: str, read: Callable[[T], Values], text: str, *labels: str, kind: Kind | None = None
    ) -> Metric:
        """kind: without it, the metric is a counter if its name ends in `_total`, and a gauge if not."""

        def values(snapshot: Snapshot) -> Values:
            part = self._find(snapshot)
            return None if part is None else read(part)

        found = kind or ("counter" if name.endswith("_total") else "gauge")
        return Metric(self._prefix + name, found, text, values, labels)


WHOLE = Part(lambda snapshot: snapshot)
