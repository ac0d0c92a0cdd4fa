"""An export as it is asked for: settings in, an open exporter out. It parses no command line."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from spark_export.exporter.compact import Compactor
from spark_export.exporter.engine import Engine, InlineEngine
from spark_export.exporter.errors import ExportMismatch
from spark_export.exporter.layout import ExportLock, Layout
from spark_export.exporter.ledger import Ledger, open_ledger
from spark_export.exporter.node_side import NodeSide, Selection
from spark_export.exporter.run import Exporter, Progress
from spark_export.exporter.table import make_table
from spark_export.exporter.task import TaskSettings

INLINE = "inline"
DEFAULT_MASTER = "local[*,4]"


@dataclass(frozen=True)
class ExportSettings:
    """folder: of the export, seen by every executor under this path. node: `host:port`, as executors reach it too.

    data_dir: the node's, where executors share its machine; they then read its file. client_id: under which the
    position is saved on the node. format: parquet, delta or iceberg. master: of Spark (`local[*,4]`, `spark://…`,
    `yarn`, `k8s://…`), or `inline` for none. remote: of a Spark Connect server (`sc://…`), in place of a master.
    conf: more settings of Spark. aot_cache: as `spark_export.session.open_session` takes it. accept_lost: go on behind
    messages that retention took.
    """

    folder: Path
    node: str
    data_dir: Path | None = None
    selection: Selection = field(default_factory=Selection)
    client_id: str | None = None
    format: str = "parquet"
    codec: str = "zstd"
    master: str = DEFAULT_MASTER
    remote: str | None = None
    conf: dict[str, str] = field(default_factory=dict)
    aot_cache: Path | None = None
    accept_lost: bool = False

    def consumer(self) -> str:
        """The client id in force: that of the folder's name where none is given."""
        return self.client_id or f"export-{self.folder.absolute().name}"


def now_us() -> int:
    return time.time_ns() // 1000


@asynccontextmanager
async def open_exporter(
    settings: ExportSettings,
    *,
    engine: Engine | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> AsyncIterator[Exporter]:
    """The folder locked, the ledger open, the table there. Raises ExportError.

    engine: in place of the one that the settings mean; closed at the end like that one. It starts with the first run
    that has something to do, since that takes seconds: what is wrong with folder or node is told before.
    """
    layout = Layout(settings.folder)
    layout.make()
    node = NodeSide(settings.node)
    with ExportLock(layout.folder):
        layout.check_ledger()
        async with open_ledger(
            layout.ledger, identity=(settings.format, settings.consumer()), now_us=now_us()
        ) as ledger:
            known = ledger.identity.client_id
            if settings.client_id not in (None, known):
                raise ExportMismatch(
                    f"{layout.folder} keeps its position under the consumer {known!r}, not {settings.client_id!r}; "
                    "leave --client out, or export into another folder"
                )
            table = make_table(layout, ledger.identity.format, ledger.identity.table_id)
            table.prepare()
            await _recover_compaction(layout, ledger)
            engine = engine or _make_engine(settings)
            source = {"endpoint": settings.node}
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
                on_progress=on_progress,
            )
            try:
                yield exporter
            finally:
                await engine.close()


@asynccontextmanager
async def open_for_reading(folder: Path) -> AsyncIterator[tuple[Layout, Ledger]]:
    """An export that exists, to verify it or to list its runs, also while an exporter works in it.

    Raises ExportMismatch.
    """
    layout = Layout(folder)
    async with open_ledger(layout.ledger) as ledger:
        yield layout, ledger


@asynccontextmanager
async def open_compactor(folder: Path) -> AsyncIterator[Compactor]:
    """An export that exists, locked. Raises ExportMismatch, ExportInUse."""
    layout = Layout(folder)
    async with open_ledger(layout.ledger) as ledger:
        with ExportLock(layout.folder):
            yield Compactor(layout, ledger, now_us=now_us)


async def _recover_compaction(layout: Layout, ledger: Ledger) -> None:
    if ledger.identity.format == "parquet":
        compactor = Compactor(layout, ledger, now_us=now_us)
        await compactor.recover()
        await compactor.sweep()


def _make_engine(settings: ExportSettings) -> Engine:
    if settings.master == INLINE and settings.remote is None:
        return InlineEngine(os.cpu_count() or 1)
    from spark_export.exporter.spark_engine import SparkEngine

    return SparkEngine(settings.master, settings.remote, settings.conf, aot_cache=settings.aot_cache)
