"""Reads the ledger of an export for a display, also while an exporter changes it. It changes nothing.

A node shows exports in its dashboard by this module, so it needs only SQLAlchemy and the standard library: no Spark, no
pyarrow. It reads ledgers in SQLite files; a ledger in PostgreSQL or on a store has no file to read.

An exporter cannot commit while a reader holds the file, and gives up after `connection.py::BUSY_TIMEOUT_MS`. So
every reading ends after READ_S_MAX.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, create_engine, func, inspect, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from spark_export.exporter.errors import ExportMismatch, LedgerError
from spark_export.exporter.ledger.schema import (
    APPLICATION_ID,
    LEDGER_VERSION,
    OPEN,
    exports,
    generations,
    losses,
    ranges,
    runs,
)
from spark_export.exporter.model import Range, Run, RunState
from spark_export.exporter.runs.run_machine import COUNTED
from spark_export.exporter.tables.layout import LEDGER

READ_S_MAX: Final = 2.0
"""The longest time of one reading, in seconds. It is less than the five seconds for which an exporter waits."""
_BUSY_S: Final = 1.0
_STEPS: Final = 10_000
_RUN_COLUMNS: Final = (runs.c.id, *(runs.c[field.name] for field in fields(Run)[1:]))
_RANGE_COLUMNS: Final = tuple(ranges.c[field.name] for field in fields(Range))


@dataclass(frozen=True)
class ExportView:
    """An export, as its ledger has it at one moment. Times are in microseconds since 1970.

    format: parquet, delta or iceberg.
    client_id: the consumer under which the node keeps the positions of the export.
    runs: some of the runs, the latest first.
    run_count: the number of all runs.
    table_rows, data_bytes, file_bytes: what the published runs have written, together.
    lost: the number of messages that retention had removed before they could be exported.
    given_up: the number of exported rows that repairs gave up.
    rewrite: the generation of the table that an unfinished compaction or repair makes; None if there is none.
    """

    format: str
    client_id: str
    created_us: int
    runs: list[Run]
    run_count: int
    table_rows: int
    data_bytes: int
    file_bytes: int
    lost: int
    given_up: int
    rewrite: int | None


@dataclass(frozen=True)
class PartitionView:
    """What is exported of one partition. Indexes between `start_index` and `end_index` that are not exported were lost.

    era: how often the exporter has found the stream deleted and created again; 0 for never.
    made_us: when the stream was created, in microseconds since 1970.
    start_index, end_index: the first exported index, and the index after the last one.
    rows: the number of exported messages.
    lost: the number of messages that retention had removed before they could be exported.
    runs: the number of runs that exported messages of this partition.
    """

    stream: str
    partition: int
    era: int
    made_us: int
    start_index: int
    end_index: int
    rows: int
    lost: int
    runs: int


def read_export(path: Path, first: int, count: int) -> ExportView:
    """Returns an export with `count` of its runs, after the `first` latest. Raises LedgerError, ExportMismatch.

    path: the folder of the export, or the file of its ledger.
    """
    with _reading(path) as connection:
        identity = connection.execute(select(exports.c.format, exports.c.client_id, exports.c.created_us)).one()
        chosen = select(*_RUN_COLUMNS).order_by(runs.c.id.desc()).limit(count).offset(first)
        sums = [
            func.coalesce(func.sum(each), 0)
            for each in (runs.c.rows, runs.c.data_bytes, runs.c.file_bytes, runs.c.lost)
        ]
        table_rows, data_bytes, file_bytes, lost = connection.execute(
            select(*sums).where(runs.c.state.in_(COUNTED))
        ).one()
        return ExportView(
            *identity,
            runs=[_run(row) for row in connection.execute(chosen)],
            run_count=connection.execute(select(func.count()).select_from(runs)).scalar_one(),
            table_rows=table_rows,
            data_bytes=data_bytes,
            file_bytes=file_bytes,
            lost=lost,
            given_up=_count_given_up(connection),
            rewrite=connection.execute(
                select(func.max(generations.c.id)).where(generations.c.state.in_(OPEN))
            ).scalar_one(),
        )


def read_partitions(path: Path) -> list[PartitionView]:
    """Returns the exported part of each partition, by stream, partition and era. Raises as `read_export`."""
    statement = (
        select(
            ranges.c.stream,
            ranges.c.partition,
            ranges.c.era,
            func.max(ranges.c.made_us),
            func.min(ranges.c.start_index),
            func.max(ranges.c.end_index),
            func.sum(ranges.c.end_index - ranges.c.start_index),
            func.sum(ranges.c.lost),
            func.count(),
        )
        .join(runs)
        .where(runs.c.state.in_(COUNTED))
        .group_by(ranges.c.stream, ranges.c.partition, ranges.c.era)
        .order_by(ranges.c.stream, ranges.c.partition, ranges.c.era)
    )
    with _reading(path) as connection:
        return [PartitionView(*row) for row in connection.execute(statement)]


def read_run(path: Path, run_id: int, count: int) -> tuple[Run, list[Range]] | None:
    """Returns a run with at most `count` of its ranges; None if the ledger has no such run. Raises as `read_export`."""
    with _reading(path) as connection:
        row = connection.execute(select(*_RUN_COLUMNS).where(runs.c.id == run_id)).one_or_none()
        if row is None:
            return None
        found = connection.execute(
            select(*_RANGE_COLUMNS)
            .where(ranges.c.run_id == run_id)
            .order_by(ranges.c.stream, ranges.c.partition)
            .limit(count)
        )
        return _run(row), [Range(*each) for each in found]


@contextmanager
def _reading(path: Path) -> Iterator[Connection]:
    """Opens the ledger for one reading, in which all statements see one state."""
    file = path / LEDGER if path.is_dir() else path
    if not file.is_file():
        raise ExportMismatch(f"{path} holds no export: there is no {LEDGER}, or the node's user may not see it")
    engine = create_engine("sqlite://", creator=lambda: _open(file), poolclass=NullPool)
    try:
        with engine.connect() as connection:
            # The driver begins a transaction only before a write.
            connection.execute(text("BEGIN"))
            _check(connection, file)
            yield connection
    except DBAPIError as error:
        name = getattr(error.orig, "sqlite_errorname", "")
        if name == "SQLITE_INTERRUPT":
            raise LedgerError(
                f"the ledger {file} cannot be read within {READ_S_MAX:g} seconds: `stream-node export history` reads it"
            ) from error
        hint = _HINTS.get(name, "")
        raise LedgerError(f"the ledger {file}: {error.orig}{hint}") from error
    finally:
        engine.dispose()


_HINTS: Final = {
    "SQLITE_READONLY_ROLLBACK": "; an exporter was interrupted, and its next run repairs the file",
    "SQLITE_CANTOPEN": "; the node's user must be able to read it",
    "SQLITE_BUSY": "; an exporter is changing it: look again",
}


def _open(file: Path) -> sqlite3.Connection:
    # mode=ro: the file is neither created nor repaired.
    connection = sqlite3.connect(file.absolute().as_uri() + "?mode=ro", uri=True, timeout=_BUSY_S)
    end_s = time.monotonic() + READ_S_MAX
    connection.set_progress_handler(lambda: time.monotonic() > end_s, _STEPS)
    return connection


def _check(connection: Connection, file: Path) -> None:
    application = connection.execute(text("PRAGMA application_id")).scalar_one()
    version = connection.execute(text("PRAGMA user_version")).scalar_one()
    if version == 0 and application in (0, APPLICATION_ID):
        raise ExportMismatch(f"{file} is empty: no export has run yet")
    if application not in (0, APPLICATION_ID):
        raise ExportMismatch(f"{file} is another program's database")
    if version > LEDGER_VERSION:
        raise ExportMismatch(f"{file} was written by a later version ({version}); this one reads {LEDGER_VERSION}")


def _count_given_up(connection: Connection) -> int:
    if not inspect(connection).has_table(losses.name):
        return 0
    # A loss of a generation that was dropped did not happen.
    statement = (
        select(func.coalesce(func.sum(losses.c.end_index - losses.c.start_index), 0))
        .join(generations, generations.c.id == losses.c.generation)
        .where(generations.c.state == "published")
    )
    return int(connection.execute(statement).scalar_one())


def _run(row: Any) -> Run:
    return Run(row[0], RunState(row[1]), *row[2:])
