"""The history of an export: its runs, verifications and forgotten keys, in a small SQLite file that people can read.

The history does not decide what is exported. If the file is lost or cannot be written, only the history is lost.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
import structlog
from sqlalchemy.dialects.sqlite import insert as insert_or_update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from ockam.files.durable_files import give_to_folder
from spark_export.exporter.planning import AMOUNTS
from spark_export.tables.address import StoreLocation
from spark_export.tables.errors import ExportError
from spark_export.tables.model import Incarnation, IndexRange

if TYPE_CHECKING:
    from spark_export.exporter.planning import ExportStep

FILE = "_history.sqlite"
"""The name of the file in the folder of an export. Names that begin with `_` are no data for readers of tables."""
BUSY_MS = 5_000
READ_S_MAX = 2.0
"""The longest time of one reading, in seconds. It is less than BUSY_MS, for which an exporter waits."""
RANGES_RUNS = 1_000
"""The number of the latest runs whose ranges are kept. Of earlier runs, the sums of each partition remain."""

logger = structlog.get_logger(__name__)
metadata = sa.MetaData()


def _columns(kind: Any, *names: str, **options: Any) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False, **options) for name in names]


exports = sa.Table(
    "exports",
    metadata,
    *_columns(sa.Text, "table_id", primary_key=True),
    *_columns(sa.Text, "address", "format", "client_id"),
    *_columns(sa.BigInteger, "created_us"),
)
runs = sa.Table(
    "runs",
    metadata,
    *_columns(sa.Integer, "id", primary_key=True),
    sa.Column("run", sa.BigInteger),
    *_columns(sa.Text, "state"),
    *_columns(sa.BigInteger, "started_us", "finished_us"),
    *_columns(sa.BigInteger, *AMOUNTS, default=0),
    sa.Column("error", sa.Text),
)
ranges = sa.Table(
    "ranges",
    metadata,
    sa.Column("run_id", sa.ForeignKey("runs.id"), nullable=False, index=True),
    *_columns(sa.Text, "stream"),
    *_columns(sa.Integer, "partition", "era"),
    *_columns(sa.BigInteger, "created_us", "begin_index", "end_index", "lost"),
)
partitions = sa.Table(
    "partitions",
    metadata,
    *_columns(sa.Text, "stream", primary_key=True),
    *_columns(sa.BigInteger, "partition", "era", "created_us", primary_key=True),
    *_columns(sa.BigInteger, "begin_index", "end_index", "rows", "lost", "runs"),
)
"""The sums of all runs for each incarnation of a partition."""
records = sa.Table(
    "records",
    metadata,
    *_columns(sa.Integer, "id", primary_key=True),
    *_columns(sa.BigInteger, "time_us"),
    *_columns(sa.Text, "kind", "content"),
)

_new = insert_or_update(partitions)
_ADD = _new.on_conflict_do_update(
    index_elements=list(partitions.primary_key.columns),
    set_={
        "begin_index": sa.func.min(partitions.c.begin_index, _new.excluded.begin_index),
        "end_index": sa.func.max(partitions.c.end_index, _new.excluded.end_index),
        **{name: partitions.c[name] + _new.excluded[name] for name in ("rows", "lost", "runs")},
    },
)
"""Adds a range of a run to the sums of its partition."""


@dataclass(frozen=True)
class Run:
    """One run of an export. Times are in microseconds since 1970.

    id: its number in the history, which counts failed runs, too. run: its number in the table; None if it failed.
    state: `done` or `failed`. lost: the messages that retention removed before their export. error: why it failed.
    """

    id: int
    run: int | None
    state: str
    started_us: int
    finished_us: int
    rows: int
    data_bytes: int
    file_bytes: int
    files: int
    lost: int
    error: str | None


@dataclass(frozen=True)
class ExportView:
    """An export with some of its runs, the latest first, and with the number and the sums of all runs."""

    format: str
    client_id: str
    created_us: int
    runs: list[Run]
    run_count: int
    rows: int
    data_bytes: int
    file_bytes: int
    lost: int


@dataclass(frozen=True)
class PartitionView:
    """The exported part of one incarnation of a partition. end: exclusive. runs: the number of its runs."""

    of: Incarnation
    begin: int
    end: int
    rows: int
    lost: int
    runs: int


class ExportHistory:
    """The history in one file. The file is made by the first record. A failure to write is logged and not raised."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, table_id: str, address: str, table_format: str, client_id: str) -> None:
        """Records the address, the format and the client id of an export. A repeated call updates the record."""
        said = {"address": address, "format": table_format, "client_id": client_id}
        new = insert_or_update(exports).values(table_id=table_id, created_us=_now_us(), **said)
        statement = new.on_conflict_do_update(index_elements=[exports.c.table_id], set_=said)
        self._write(lambda connection: connection.execute(statement))

    def add_run(self, step: ExportStep, started_us: int) -> None:
        values = {name: getattr(step, name) for name in ("run", *AMOUNTS)}
        values |= {"state": "done", "started_us": started_us, "finished_us": _now_us()}

        def work(connection: sa.Connection) -> None:
            number = connection.execute(sa.insert(runs).values(**values)).lastrowid
            rows: list[dict[str, Any]] = [
                {**each.of._asdict(), "begin_index": each.begin, "end_index": each.end, "lost": each.lost}
                for each in step.ranges
            ]
            connection.execute(sa.insert(ranges), [{**row, "run_id": number} for row in rows])
            # The table of ranges would grow without end, so old ranges are deleted, and these sums stay.
            sums = [{**row, "rows": row["end_index"] - row["begin_index"], "runs": 1} for row in rows]
            connection.execute(_ADD, sums)
            connection.execute(sa.delete(ranges).where(ranges.c.run_id <= number - RANGES_RUNS))

        self._write(work)

    def add_failure(self, error: str, started_us: int) -> None:
        values = {"state": "failed", "started_us": started_us, "finished_us": _now_us(), "error": error}
        self._write(lambda connection: connection.execute(sa.insert(runs).values(**values)))

    def add_record(self, kind: str, content: Mapping[str, Any]) -> None:
        """Adds a record of a verification, of forgotten messages or of a migration."""
        values = {"time_us": _now_us(), "kind": kind, "content": json.dumps(content, ensure_ascii=False)}
        self._write(lambda connection: connection.execute(sa.insert(records).values(**values)))

    def load_runs(self, last: int) -> list[Run]:
        """Returns the `last` latest runs, newest first; an empty list without a history. Raises ExportError."""
        if not self.path.exists():
            return []
        with self._reading() as connection:
            return _select_runs(connection, 0, last)

    def load_view(self, first: int, count: int) -> ExportView:
        """Returns the export with at most `count` runs. The `first` latest runs are left out. Raises ExportError."""
        with self._reading() as connection:
            export = connection.execute(sa.select(exports).order_by(exports.c.created_us.desc()).limit(1)).first()
            if export is None:
                raise ExportError(f"{self.path} is empty: no export has run yet")
            summed = (runs.c.rows, runs.c.data_bytes, runs.c.file_bytes, runs.c.lost)
            sums = [sa.func.coalesce(sa.func.sum(each), 0) for each in summed]
            totals = connection.execute(sa.select(sa.func.count(), *sums).select_from(runs)).one()
            found = _select_runs(connection, first, count)
            return ExportView(export.format, export.client_id, export.created_us, found, *totals)

    def load_partitions(self) -> list[PartitionView]:
        statement = sa.select(partitions).order_by(*partitions.primary_key.columns)
        with self._reading() as connection:
            return [PartitionView(Incarnation(*row[:4]), *row[4:]) for row in connection.execute(statement)]

    def load_run(self, number: int, count: int) -> tuple[Run, list[IndexRange]] | None:
        """Returns a run with at most `count` of its ranges, which only the latest RANGES_RUNS runs have; or None."""
        with self._reading() as connection:
            run = connection.execute(sa.select(runs).where(runs.c.id == number)).one_or_none()
            if run is None:
                return None
            chosen = sa.select(ranges).where(ranges.c.run_id == number).order_by(ranges.c.stream, ranges.c.partition)
            found = connection.execute(chosen.limit(count))
            return Run(*run), [IndexRange(Incarnation(*row[1:5]), row[5], row[6], lost=row[7]) for row in found]

    def _write(self, work: Callable[[sa.Connection], object]) -> None:
        from sqlalchemy.ext.asyncio import create_async_engine

        async def main() -> None:
            engine = create_async_engine("sqlite+aiosqlite://", async_creator=self._connect, poolclass=NullPool)
            try:
                async with engine.begin() as connection:
                    await connection.execute(sa.text(f"PRAGMA busy_timeout = {BUSY_MS}"))
                    # Of two processes that make the file at once, one waits, and finds the tables of the other.
                    await connection.execute(sa.text("BEGIN IMMEDIATE"))
                    await connection.run_sync(metadata.create_all)
                    await connection.run_sync(work)
            finally:
                await engine.dispose()

        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # The caller's thread can have an event loop of its own.
            with ThreadPoolExecutor(1) as thread:
                thread.submit(asyncio.run, main()).result()
            give_to_folder(self.path, self.path.parent)
        except (SQLAlchemyError, OSError) as error:
            logger.warning("history not written", file=str(self.path), error=" ".join(str(error).split()))

    async def _connect(self) -> Any:
        import aiosqlite

        # A connection of aiosqlite that cannot open its file leaves a thread behind, which fails if the event loop ends
        # before it. So the file is open before the connection is made.
        opened = sqlite3.connect(_address(self.path, "rwc"), uri=True, check_same_thread=False)
        return await aiosqlite.Connection(lambda: opened, iter_chunk_size=64)

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        # A node reads the history for its dashboard in a thread, and has no aiosqlite.
        if not self.path.is_file():
            raise ExportError(f"there is no history of exports at {self.path}, or this user may not see it")
        engine = sa.create_engine("sqlite://", creator=self._open, poolclass=NullPool)
        try:
            with engine.connect() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise ExportError(f"the history {self.path} cannot be read: {' '.join(str(error).split())}") from error
        finally:
            engine.dispose()

    def _open(self) -> sqlite3.Connection:
        # mode=ro: the file is neither created nor changed.
        connection = sqlite3.connect(_address(self.path, "ro"), uri=True, timeout=READ_S_MAX / 2)
        end_s = time.monotonic() + READ_S_MAX
        connection.set_progress_handler(lambda: time.monotonic() > end_s, 10_000)
        return connection


def history_of(place: StoreLocation, chosen: Path | None = None) -> ExportHistory:
    """Returns an export's history: `chosen`, else a file in its folder; for a store, in the user's state folder."""
    if chosen is not None:
        return ExportHistory(chosen)
    if place.is_local:
        return ExportHistory(place.folder / FILE)
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    name = hashlib.sha256(str(place).encode()).hexdigest()[:16]
    return ExportHistory(state / "stream-node" / "exports" / f"{place.name}-{name}.sqlite")


def _select_runs(connection: sa.Connection, first: int, count: int) -> list[Run]:
    chosen = sa.select(runs).order_by(runs.c.id.desc()).limit(count).offset(first)
    return [Run(*row) for row in connection.execute(chosen)]


def _address(path: Path, mode: str) -> str:
    return f"{path.absolute().as_uri()}?mode={mode}"


def _now_us() -> int:
    return time.time_ns() // 1000
