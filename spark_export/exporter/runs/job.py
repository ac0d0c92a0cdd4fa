"""Opens exporters, compactors and existing exports from settings. This module does not parse the command line."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from spark_export.exporter.address import TableAddress
from spark_export.exporter.errors import ExportMismatch
from spark_export.exporter.identity import adopt, check_place, make_consumer
from spark_export.exporter.ledger.ledger import Ledger
from spark_export.exporter.node_side import NodeSide, Selection, source_options
from spark_export.exporter.repair import Repairer
from spark_export.exporter.runs.engine import AutoEngine, ExportEngine, InlineEngine
from spark_export.exporter.runs.pace import CLUSTER_FACTOR, STEP_BYTES_MAX, STEP_ROWS_MAX, Bounds
from spark_export.exporter.runs.run import Exporter, Progress
from spark_export.exporter.runs.task import TaskSettings
from spark_export.exporter.runs.workplace import open_workplace
from spark_export.exporter.tables.compact import Compactor
from spark_export.exporter.tables.iceberg_catalog import TABLE_NAME, CatalogChoice, keep_choice
from spark_export.exporter.tables.layout import Layout
from spark_export.exporter.tables.rewrite import Rewriter
from spark_export.exporter.tables.table import make_table
from spark_export.exporter.tables.table_state import settle_table
from spark_export.exporter.upkeep import ExportUpkeep
from spark_export.java import JavaMissing, find_java_home
from spark_export.session import EMBEDDED, is_embedded
from spark_export.store.place import StoreLocation
from stream_client import Tls, Token

INLINE = "inline"
AUTO = "auto"
"""The default master: threads of the exporter, or a Spark on the same machine for more than SPARK_BYTES_MIN new bytes.
"""
SPARK_BYTES_MIN = 64 * 1024**3
"""The size of new message data, in bytes, above which the default master starts Spark."""


@dataclass(frozen=True)
class ExportSettings:
    """The settings of an export.

    folder: the export's folder, which every executor must reach under the same path, or its address on a store.
    node: `host:port` of the node; executors must reach the node at this address, too.
    data_dir: the node's data directory, or None; executors on the node's machine read messages directly from its files.
    selection: the streams to export.
    client_id: the client id under which the node keeps the saved indexes of the export, or None for a default.
    codec: the Parquet compression.
    format: parquet, delta or iceberg.
    master: the master of Spark (`local[*,4]`, `spark://…`, `yarn`, `k8s://…`), `inline` to export without Spark, or
        `auto`, see AUTO.
    remote: the address of a Spark Connect server (`sc://…`), in place of a master.
    conf: more settings of Spark.
    aot_cache: see `spark_export.session.open_session`.
    accept_lost: whether a stream is exported if messages of it were removed before they could be exported. If False,
        the stream is left out.
    verify_checksums: whether tasks compute the checksum of each message again.
    rows_max, bytes_max: the limits of the size of a step, see `spark_export.exporter.runs.pace.Bounds`; None for a
    default. seconds_max: the time in seconds after which no step begins, or None for no limit. store_options: the
    options of the store, see `spark_export.store.options`. ledger: the SQLAlchemy URL of the database with the ledger
    (the record of all runs), or None for a ledger that is
        stored with the table.
    keep_s: how many seconds replaced files are kept for readers, or None for the default of the format.
    catalog, catalog_options, catalog_table: the fields of `spark_export.exporter.tables.iceberg_catalog.CatalogChoice`
    for an
        Iceberg table. If `catalog` is None: the catalog that the table already has, or an SQLite file in the folder.
    tls: how this process and the executors connect to the node with TLS; its paths must be valid on each executor.
    token: the token that proves to the node who exports; its file or variable must be there on each executor, too.
    """

    folder: Path | StoreLocation
    node: str
    data_dir: Path | None = None
    selection: Selection = field(default_factory=Selection)
    client_id: str | None = None
    format: str = "parquet"
    codec: str = "zstd"
    master: str = AUTO
    remote: str | None = None
    conf: dict[str, str] = field(default_factory=dict)
    aot_cache: Path | None = None
    accept_lost: bool = False
    verify_checksums: bool = False
    rows_max: int | None = None
    bytes_max: int | None = None
    seconds_max: float | None = None
    keep_s: float | None = None
    store_options: dict[str, str] = field(default_factory=dict)
    ledger: str | None = None
    catalog: str | None = None
    catalog_options: dict[str, str] = field(default_factory=dict)
    catalog_table: str | None = None
    tls: Tls | None = None
    token: Token | None = None

    def address(self) -> TableAddress:
        return TableAddress(TableAddress.of(self.folder).place, self.store_options, self.ledger)

    def bounds(self) -> Bounds:
        """Returns the largest size of a step and the time limit. A cluster's default is CLUSTER_FACTOR times larger."""
        on_one = self.remote is None and (self.master in (AUTO, INLINE) or is_embedded(self.master))
        factor = 1 if on_one else CLUSTER_FACTOR
        return Bounds(
            self.rows_max or factor * STEP_ROWS_MAX, self.bytes_max or factor * STEP_BYTES_MAX, self.seconds_max
        )

    def consumer(self, table_id: str) -> str:
        """Returns the client id of a new table; the default is made from the folder's name and the table id."""
        return self.client_id or make_consumer(self.address().place.name, table_id)


def now_us() -> int:
    return time.time_ns() // 1000


@asynccontextmanager
async def open_exporter(
    settings: ExportSettings,
    *,
    engine: ExportEngine | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> AsyncIterator[Exporter]:
    """Yields an exporter as `open_kept_exporter` does, for a program that does not compact the table."""
    async with open_kept_exporter(settings, engine=engine, on_progress=on_progress) as (exporter, _):
        yield exporter


@asynccontextmanager
async def open_kept_exporter(
    settings: ExportSettings,
    *,
    engine: ExportEngine | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    files_min: int = 0,
) -> AsyncIterator[tuple[Exporter, ExportUpkeep]]:
    """Yields an exporter and the upkeep of its table. Locks the folder, and creates a missing table. Raises
    ExportError.

    The engine, also a given one, is closed at the end of the `with` block. It takes seconds to start, so only the first
    run with new messages starts it, after the folder and the node were checked.
    """
    identity = (settings.format, settings.consumer)
    node = NodeSide(settings.node, settings.tls, settings.token)
    async with open_workplace(settings.address(), identity=identity, now_us=now_us()) as work:
        layout, ledger = work.layout, work.ledger
        known = ledger.identity.client_id
        if settings.client_id not in (None, known):
            raise ExportMismatch(
                f"{settings.address().place} keeps its position under the consumer {known!r}, not "
                f"{settings.client_id!r}; leave --client out, or `stream-node export adopt` it under the other name"
            )
        if layout.store is None:
            await check_place(layout, ledger)
        if settings.catalog is not None:
            chosen = CatalogChoice(settings.catalog, settings.catalog_table or TABLE_NAME, settings.catalog_options)
            keep_choice(layout, chosen)
        table = make_table(layout, ledger.identity.format, ledger.identity.table_id)
        await settle_table(layout, ledger, table)
        rewriter = Rewriter(layout, ledger, table, now_us=now_us, keep_s=settings.keep_s)
        await rewriter.recover()
        if ledger.identity.format == "parquet":
            await rewriter.expire()
        engine = engine or _make_engine(settings)
        source = source_options(settings.node, settings.tls, settings.token)
        if settings.verify_checksums:
            source["verifyChecksums"] = "true"
        if settings.data_dir is not None:
            source["path"] = str(settings.data_dir.absolute())
        exporter = Exporter(
            layout,
            ledger,
            table,
            node,
            engine,
            settings=TaskSettings(source, with_stream=table.with_stream, codec=settings.codec),
            selection=settings.selection,
            accept_lost=settings.accept_lost,
            now_us=now_us,
            bounds=settings.bounds(),
            on_progress=on_progress,
        )
        try:
            yield exporter, ExportUpkeep(rewriter, table, files_min=files_min)
        finally:
            await engine.close()


@asynccontextmanager
async def open_for_reading(folder: Path | StoreLocation | TableAddress) -> AsyncIterator[tuple[Layout, Ledger]]:
    """Yields the paths and the ledger of an existing export. An exporter can work in the folder at the same time.

    Raises ExportMismatch, LedgerError, StoreError.
    """
    async with open_workplace(TableAddress.of(folder), now_us=now_us(), writes=False) as work:
        yield work.layout, work.ledger


@asynccontextmanager
async def open_compactor(
    folder: Path | StoreLocation | TableAddress, *, keep_s: float | None = None
) -> AsyncIterator[Compactor]:
    """Opens an existing export as its only writer, to merge its small files.

    Raises ExportMismatch, ExportInUse, ExtraMissing, LedgerError, StoreError.
    """
    async with open_workplace(TableAddress.of(folder), now_us=now_us()) as work:
        layout, ledger = work.layout, work.ledger
        table = make_table(layout, ledger.identity.format, ledger.identity.table_id)
        await settle_table(layout, ledger, table)
        yield Compactor(Rewriter(layout, ledger, table, now_us=now_us, keep_s=keep_s), table)


@asynccontextmanager
async def open_repairer(
    folder: Path | StoreLocation | TableAddress,
    node: str,
    *,
    keep_s: float | None = None,
    accept_lost: bool = False,
    tls: Tls | None = None,
    token: Token | None = None,
) -> AsyncIterator[Repairer]:
    """Opens an existing export as its only writer, to replace its damaged files. Raises as `open_compactor` does.

    accept_lost: whether to give up rows that are no longer on the node.
    """
    async with open_workplace(TableAddress.of(folder), now_us=now_us()) as work:
        layout, ledger = work.layout, work.ledger
        if layout.store is None:
            await check_place(layout, ledger)
        table = make_table(layout, ledger.identity.format, ledger.identity.table_id)
        await settle_table(layout, ledger, table, repairing=True)
        rewriter = Rewriter(layout, ledger, table, now_us=now_us, keep_s=keep_s)
        settings = TaskSettings(source_options(node, tls, token), with_stream=table.with_stream)
        yield Repairer(ledger, table, rewriter, NodeSide(node, tls, token), settings=settings, accept_lost=accept_lost)


async def adopt_table(
    folder: Path | StoreLocation | TableAddress,
    node: str,
    client_id: str | None,
    tls: Tls | None = None,
    token: Token | None = None,
) -> str:
    """Gives the table of an existing export a client id of its own, and returns it.

    Raises ExportMismatch, ExportInUse, LedgerError, StoreError, ClientErrors.
    """
    async with open_workplace(TableAddress.of(folder), now_us=now_us()) as work:
        return await adopt(work.layout, work.ledger, NodeSide(node, tls, token), client_id)


def _make_engine(settings: ExportSettings) -> ExportEngine:
    inline = InlineEngine(os.cpu_count() or 1)
    if settings.remote is not None or settings.master not in (AUTO, INLINE):
        return _make_spark(settings, settings.master)
    if settings.master == INLINE:
        return inline
    # Settings of Spark ask for Spark, however little data is new.
    if settings.conf or settings.aot_cache is not None:
        return _make_spark(settings, EMBEDDED)
    return AutoEngine(inline, lambda: _embedded_spark(settings), SPARK_BYTES_MIN)


def _embedded_spark(settings: ExportSettings) -> ExportEngine | str:
    """Returns an engine with an embedded Spark, not yet started, or the reason why Spark cannot be used."""
    try:
        find_java_home()
    except JavaMissing:
        return "Java is not installed"
    return _make_spark(settings, EMBEDDED)


def _make_spark(settings: ExportSettings, master: str) -> ExportEngine:
    from spark_export.exporter.runs.spark_engine import SparkEngine

    return SparkEngine(master, settings.remote, settings.conf, aot_cache=settings.aot_cache)
