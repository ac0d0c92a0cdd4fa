"""Takes over an export of an earlier version, once. The rows stay where they are.

Earlier versions recorded what was exported in a ledger beside the table: an SQLite file of runs, ranges and files.
Afterwards the table's log has the positions. Plain Parquet on a store had a format of its own; it becomes a Delta table
of the same files.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from ockam.files.durable_files import rename_durably
from spark_export.exporter.history import ExportHistory
from spark_export.exporter.verify import Interval, TableRows, covered, total
from spark_export.tables.address import StoreLocation
from spark_export.tables.columns import ROWS
from spark_export.tables.errors import TableRefused
from spark_export.tables.files import Place, read_file
from spark_export.tables.filesystem import locked, open_filesystem, store_errors
from spark_export.tables.log import CatalogChoice, OldRuns, TableLog, open_table
from spark_export.tables.model import DataFile, Incarnation, IndexRange, TablePosition, TableState

LEDGER, STORED_LEDGER, LOCK = "ledger.sqlite", "_export/ledger.sqlite", "exporter.lock"
OLD_CATALOG = "stream_node"
"""The name under which earlier versions opened a catalog that the user had chosen."""


@dataclass(frozen=True)
class OldExport:
    """The contents of an earlier version's ledger. runs: the ranges and the present files of each run.
    unsure: the runs that a crash interrupted; the table's log shows which of them it has. losses: rows that a repair
    gave up."""

    table_id: str
    format: str
    client_id: str
    generation: int
    runs: dict[int, tuple[list[IndexRange], list[DataFile]]]
    unsure: frozenset[int]
    losses: Mapping[Place, list[Interval]]


def migrate(
    place: StoreLocation,
    options: Mapping[str, str],
    catalog: CatalogChoice | None,
    history: ExportHistory,
    ledger: Path | None = None,
) -> dict[str, Any]:
    """Takes over the export at an address. Returns the result, for a report.

    ledger: the ledger's file; None: where earlier versions kept it. Raises TableRefused if there is nothing to take
    over, if the rows are not those of the ledger, or if an exporter of the earlier version is at work; then rows and
    ledger are unchanged. Afterwards the ledger has another name, so that the earlier version does not go on from it.
    """
    filesystem, root = open_filesystem(str(place), options)
    is_stored, stored = ledger is None and not place.is_local, f"{root}/{STORED_LEDGER}"
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as locks:
        path = ledger or (Path(temporary, LEDGER) if is_stored else place.folder / LEDGER)
        if is_stored:
            _fetch(filesystem, stored, path)
        if not path.is_file():
            raise TableRefused(f"{path} is missing: there is no export of an earlier version to take over")
        # An exporter of the earlier version holds these locks while it is open.
        held = [ledger.with_name(f"{ledger.name}.lock")] if ledger is not None else []
        for lock in [*held, place.folder / LOCK] if place.is_local else held:
            refusal = f"{lock} is held: stop the exporter of the earlier version, and migrate again"
            locks.enter_context(locked(lock, refusal))
        old, read = _read_ledger(path), path.read_bytes()

        log = _open_old(place, options, catalog, old)
        lost = {number for number in old.unsure if not log.has_old_run(old.table_id, number)}
        runs = {number: run for number, run in old.runs.items() if number not in lost}
        rows = _prove(log, old, runs, place)
        positions = {each.of: TablePosition(each.end) for number in sorted(runs) for each in runs[number][0]}
        if is_stored:
            # A ledger on a store has no lock, but an exporter writes it before each run.
            _fetch(filesystem, stored, path)
            if path.read_bytes() != read:
                raise TableRefused(f"{stored} has changed meanwhile: stop the exporter of the earlier version")
        log.adopt(old.table_id, runs, positions)
        if is_stored:
            with store_errors(stored):
                filesystem.move(stored, f"{stored}.migrated")
        else:
            rename_durably(path, path.with_name(f"{path.name}.migrated"))
    done = {"rows": rows, "partitions": len({of.place for of in positions}), "runs": len(runs), "format": log.format}
    history.begin(log.table_id(), str(place), log.format, old.client_id)
    history.add_record("migrate", done)
    return done


def _fetch(filesystem: fs.FileSystem, source: str, target: Path) -> None:
    try:
        with filesystem.open_input_stream(source) as file:
            target.write_bytes(file.read())
    except FileNotFoundError as error:
        raise TableRefused(f"{source} is missing: there is no export of an earlier version to take over") from error


def _read_ledger(path: Path) -> OldExport:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:

            def rows(what: str) -> list[Any]:
                return connection.execute(f"SELECT {what}").fetchall()

            table_id, table_format, client_id = rows("table_id, format, client_id FROM export")[0]
            generation = rows("max(id) FROM generations WHERE state = 'published'")[0][0]
            if rows("1 FROM generations WHERE state IN ('planned', 'written')"):
                raise TableRefused(
                    f"{path}: a compaction or repair is unfinished; run `stream-node export compact` of the earlier "
                    "version once more, and then migrate"
                )
            states = dict(rows("id, state FROM runs WHERE state IN ('published', 'saved', 'written')"))
            runs: dict[int, tuple[list[IndexRange], list[DataFile]]] = {number: ([], []) for number in states}
            names = "run_id, stream, partition, era, made_us, start_index, end_index, lost"
            for run, *of, begin, end, lost in rows(f"{names} FROM ranges ORDER BY run_id"):
                if run in runs:
                    runs[run][0].append(IndexRange(Incarnation(*of), begin, end, lost=lost))
            names = "run_id, path, stream, era, date, rows, data_bytes, file_bytes"
            for run, name, stream, era, date, *sizes in rows(f"{names} FROM files WHERE generation = {generation}"):
                if run in runs:
                    runs[run][1].append(DataFile(name, stream, era, {"stream": stream, "date": date}, *sizes))
            losses = defaultdict[Place, list[Interval]](list)
            if rows("1 FROM sqlite_master WHERE name = 'losses'"):
                for *place, begin, end in rows("stream, partition, era, start_index, end_index FROM losses"):
                    losses[place[0], place[1], place[2]].append((begin, end))
    except sqlite3.Error as error:
        raise TableRefused(f"{path} is not the ledger of an export: {error}") from error
    unsure = frozenset(number for number, state in states.items() if state == "written")
    return OldExport(table_id, table_format, client_id, generation, runs=runs, unsure=unsure, losses=losses)


def _open_old(
    place: StoreLocation, options: Mapping[str, str], catalog: CatalogChoice | None, old: OldExport
) -> TableLog:
    """Returns the log of the table. For plain Parquet on an object store, it is that of a Delta table, which `adopt`
    later makes of the same files."""
    if old.format == "parquet" and not place.is_local:
        from spark_export.tables.delta import DeltaLog

        return DeltaLog(place, options, whole=True)
    if old.format == "iceberg" and catalog is None:
        filesystem, root = open_filesystem(str(place), options)
        for name in ("catalog.json", "_export/catalog.json"):
            try:
                with filesystem.open_input_stream(f"{root}/{name}") as file:
                    found = json.loads(file.read())
            except FileNotFoundError:
                continue
            catalog = CatalogChoice(OLD_CATALOG, {**found["options"], "type": found["kind"]}, found["table"])
    log = open_table(place, old.format, options, catalog)
    if not log.exists():
        raise TableRefused(f"{place} has a ledger, and its table is missing")
    if old.format == "iceberg":
        # The table exists, so `create` only writes the chosen catalog into the file where this version looks for it.
        log.create(ROWS)
    return log


def _prove(log: TableLog, old: OldExport, runs: OldRuns, place: StoreLocation) -> int:
    """Returns the number of rows in the table. Raises TableRefused if they are not those of the ledger's runs.

    Rows that other programs have deleted from a table of Delta or Iceberg may be missing.
    """
    rows = TableRows(TableState(0), ())
    for batch in _old_rows(log, old, runs, place):
        rows.add(batch)
    wanted = defaultdict[Place, list[Interval]](list)
    for each in (part for ranges, _ in runs.values() for part in ranges):
        wanted[each.of[:3]].append((each.begin, each.end))
    for found in sorted(wanted.keys() | rows.there.keys()):
        exported = covered(covered(wanted[found]), without=covered(old.losses.get(found, [])))
        there, repeated = covered(rows.there[found]), covered(rows.there[found], 2)
        missing, unexpected = covered(exported, without=there), covered(there, without=exported)
        if unexpected or repeated or (missing and old.format == "parquet"):
            raise TableRefused(
                f"{found[0]}/{found[1]}: the table has not the rows of its ledger ({total(missing)} are missing, "
                f"{total(unexpected)} too many, {total(repeated)} there twice); put the whole folder back, "
                "or export into another one"
            )
    return rows.count


def _old_rows(log: TableLog, old: OldExport, runs: OldRuns, place: StoreLocation) -> Iterator[pa.RecordBatch]:
    if old.format != "parquet":
        yield from log.read(["stream", "partition", "era", "index"])
        return
    filesystem, root = open_filesystem(str(place), log.options)
    data = f"{root}/generations/{old.generation:06d}" if place.is_local else f"{root}/data"
    files = {f"{data}/run={run:06d}/{each.path}": each for run, (_, found) in runs.items() for each in found}
    listed = filesystem.get_file_info(fs.FileSelector(data, recursive=True)) if place.is_local else ()
    for path in {*files, *(each.path for each in listed if each.path.endswith(".parquet"))}:
        if path not in files:
            raise TableRefused(f"{path} is in the table, and no run of the ledger wrote it: take it out")
        file = files[path]
        for rows in read_file(filesystem, path, ["partition", "index"]):
            rows = rows.append_column("stream", pa.repeat(pa.scalar(file.stream), rows.num_rows))
            yield rows.append_column("era", pa.repeat(pa.scalar(file.era), rows.num_rows))
