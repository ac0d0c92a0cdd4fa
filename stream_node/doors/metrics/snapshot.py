"""Snapshot: everything that the metrics show, at one moment.
It is taken in the event loop, which it never holds for long: the database and files are read in other threads, and long
lists are walked in parts."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import structlog
import trio

from ockam.actors.mailbox import MailboxStatistics
from stream_node.care.trouble import CurrentTroubles
from stream_node.doors.metrics.reading import ConsumerFigures, Figures, StreamFigures, read_figures
from stream_node.node.identity.endings import Ending, read_endings
from stream_node.node.parts import NodeCondition, NodeParts, ServerStatistics
from stream_service.counters import StreamCounters
from stream_storage.errors import StorageError
from stream_storage.sqlite.database import FILE_NAME
from stream_storage.thread_runner import StorageHistograms

PART = 1_000
"""The number of mailboxes that are sampled before other tasks of the event loop run."""


logger = structlog.get_logger(__name__)


class Mailboxes(msgspec.Struct):
    """The mailboxes of all workers together. full: the number of mailboxes that take no further messages at present."""

    messages: int = 0
    size_bytes: int = 0
    full: int = 0


class Snapshot(msgspec.Struct, frozen=True):
    """Everything that the metrics show.

    histograms, counters, condition: the objects of the running node, which go on counting. streams, consumers: empty if
    the database could not be read. troubles: None if unknown. names_max: how many of one kind have metrics of their
    own. endings: of certificates and tokens, the next one first. files: the bytes of the `database` and its `log`.
    now_s: since 1970.
    """

    statistics: ServerStatistics
    histograms: StorageHistograms
    counters: StreamCounters
    condition: NodeCondition
    is_writing: bool
    mailboxes: Mailboxes
    streams: list[StreamFigures]
    consumers: list[ConsumerFigures]
    troubles: CurrentTroubles | None
    names_max: int
    endings: list[Ending]
    files: dict[str, float]
    now_s: float
    version: str


async def take_snapshot(parts: NodeParts, version: str) -> Snapshot:
    # If the database does not answer, the troubles wait for it; the statistics do not wait again.
    troubles = None if parts.find_troubles is None else await parts.find_troubles()
    try:
        figures = await read_figures(parts.runner, parts.config.metrics_names_max)
    except StorageError as error:
        logger.error("figures_not_read", reason=str(error))
        figures = Figures([], [])
    return Snapshot(
        statistics=parts.statistics(),
        histograms=parts.runner.histograms,
        counters=parts.services.counters,
        condition=parts.condition,
        is_writing=parts.runner.is_writing,
        mailboxes=await _walk_mailboxes(parts),
        streams=figures.streams,
        consumers=figures.consumers,
        troubles=troubles,
        names_max=parts.config.metrics_names_max,
        endings=await trio.to_thread.run_sync(read_endings, parts.config),
        files=await trio.to_thread.run_sync(_file_sizes, Path(parts.config.data_dir)),
        now_s=time.time(),
        version=version,
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
            # There is no log between its end and the next write.
            sizes[name] = 0.0
    return sizes
