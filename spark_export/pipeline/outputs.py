"""The silver and gold tables of a pipeline: Delta tables in one folder, which Spark computes and `deltalake` commits.

Spark writes the files of new rows. Where rows replace others, `deltalake` writes the rows of the touched files again.
Either is one commit of the table. The file OUT/pipeline.json names a version of each table, and its replacement
publishes a step of all tables at once. A step that failed before leaves newer versions of some tables; `Outputs`
returns to the named versions before it goes on.

The folder must be on a file system that the executors of Spark and this process see under the same path.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache, reduce
from operator import or_
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.transaction import AddAction
from pyspark.sql import Observation
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from ockam.files.durable_files import write_durably
from spark_export.tables.errors import ExportError, TableRefused
from spark_export.tables.files import count_only
from stream_storage.failpoint import failpoint

MANIFEST = "pipeline.json"
MANIFEST_FORMAT = 3
RANGES_MAX = 200
"""The largest number of ranges in the condition of a commit. If there are more, near ranges are joined."""
SMALL_FILES_MAX = 64
"""The small files of the tables are merged each time after this many steps."""
KEEP_HOURS = 1


@dataclass(frozen=True)
class Manifest:
    """The content of MANIFEST: the state of a pipeline after its last step.

    export: the id of the export's table.
    versions, schemas: the version of each table in this state, and its columns in Spark's JSON.
    chains: the chains of which the export has messages, each with its settled block (number and hash in hex) or None.
    rooted: the chains that have a canonical block.
    """

    export: str
    settings: Mapping[str, Any]
    step: int = 0
    versions: Mapping[str, int] = field(default_factory=dict)
    schemas: Mapping[str, Any] = field(default_factory=dict)
    chains: Mapping[str, Sequence[Any] | None] = field(default_factory=dict)
    rooted: Sequence[str] = ()


def load_manifest(out: Path) -> Manifest | None:
    """Returns the state of the last published step; None if there is none. Raises TableRefused, ExportError."""
    try:
        found = json.loads((out / MANIFEST).read_bytes())
        if found.pop("format") == MANIFEST_FORMAT:
            return Manifest(**found)
    except FileNotFoundError:
        if (out / "latest").is_symlink():
            raise TableRefused(
                f"{out} has tables of an earlier version of this program: choose another folder, or --rebuild"
            ) from None
        return None
    # The file can be JSON that this program has not written.
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise ExportError(f"{out / MANIFEST} is damaged: {error}; build the tables anew with --rebuild") from error
    raise TableRefused(f"{out} is of another version of this program: build it anew with --rebuild")


def table_at(out: Path, name: str) -> DeltaTable:
    """Returns a table, such as `gold/rates`, at the last published step. Raises TableRefused if there is none."""
    manifest = load_manifest(out)
    if manifest is None or name not in manifest.versions:
        raise TableRefused(f"{out} has no table {name}")
    return DeltaTable(str(out / name), version=manifest.versions[name])


@dataclass(frozen=True)
class Touched:
    """The rows of a table that a step replaces: those whose `column` is in one of the ranges (both ends included).

    ranges: each begins with the value of the column `chain`, or None for a table without chains. Times are in
        microseconds since 1970.
    """

    column: str
    ranges: Sequence[tuple[str | None, int, int]]

    @classmethod
    def of(cls, column: str, values: Mapping[str | None, Iterable[int]], unit: int = 1) -> Touched:
        """Returns the touched rows for single values, which are whole multiples of `unit`."""
        ranges = {chain: ranges_of(sorted(found), unit) for chain, found in values.items()}
        return cls(column, [(chain, *ends) for chain, found in ranges.items() for ends in found])

    def condition(self) -> Any:
        column = f.col(self.column) if self.column == "number" else f.unix_micros(self.column)
        parts = [
            column.between(first, last) & (f.lit(True) if chain is None else f.col("chain") == chain)
            for chain, first, last in self.ranges
        ]
        return reduce(or_, parts, f.lit(False))

    def predicate(self) -> str:
        """Returns the condition for `deltalake`."""
        parts = []
        for chain, first, last in self.ranges:
            name = "" if chain is None else "chain = '" + chain.replace("'", "''") + "' AND "
            parts.append(f"({name}{self.column} >= {self._value(first)} AND {self.column} <= {self._value(last)})")
        return " OR ".join(parts) or "false"

    def overlaps(self, ends: tuple[int, int] | None) -> bool:
        """Returns whether a file can have touched rows. ends: the result of `_ends_of` for the file and `column`."""
        return ends is None or any(first <= ends[1] and ends[0] <= last for _, first, last in self.ranges)

    def _value(self, value: int) -> str:
        if self.column == "number":
            return str(value)
        time = datetime.fromtimestamp(value // 1_000_000, UTC)
        return f"'{time:%Y-%m-%dT%H:%M:%S}.{value % 1_000_000:06d}Z'"


def ranges_of(values: Sequence[int], unit: int) -> list[tuple[int, int]]:
    """Returns at most RANGES_MAX ranges that cover all values. values: sorted multiples of `unit`."""
    gap = unit
    while True:
        ranges: list[tuple[int, int]] = []
        for value in values:
            if ranges and value - ranges[-1][1] <= gap:
                ranges[-1] = ranges[-1][0], value
            else:
                ranges.append((value, value))
        if len(ranges) <= RANGES_MAX:
            return ranges
        gap *= 4


def _spark_path(path: Path) -> str:
    """Returns a path for Spark with its scheme, since Spark's default file system can be another one, such as HDFS."""
    return f"file://{path.absolute()}"


@lru_cache(maxsize=100_000)
def _ends_of(path: Path, column: str) -> tuple[int, int] | None:
    """Returns the least and the greatest value of a column, by the footer of a file; None if the footer has none."""
    # The results are kept, because a file never changes, and its name is never used again.
    metadata = pq.read_metadata(path)
    place = next(each for each in range(metadata.num_columns) if metadata.schema.column(each).path == column)
    found = [metadata.row_group(group).column(place).statistics for group in range(metadata.num_row_groups)]
    if not found or not all(each is not None and each.has_min_max for each in found):
        return None
    return min(each.min_raw for each in found), max(each.max_raw for each in found)


class Outputs:
    """The tables during one step. `read` also returns the rows that the step has written.

    before: the state after the last step; None if all tables are built anew, which replaces the existing rows.
    """

    def __init__(self, spark: Any, out: Path, before: Manifest | None) -> None:
        self._spark = spark
        self._out = out
        self._versions = dict(before.versions) if before else {}
        self._schemas = dict(before.schemas) if before else {}
        # Spark's default for times in Parquet is a type that Delta does not have.
        spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        for name, version in self._versions.items():
            table = self._open(name, None)
            if table.version() != version:
                table.restore(version)
                self._versions[name] = table.version()

    def read(self, name: str, schema: str, touched: Touched | None = None) -> Any:
        """Returns the rows of a table. schema: the columns of a table that does not exist yet."""
        if name not in self._versions:
            return self._spark.createDataFrame([], schema)
        columns, paths = StructType.fromJson(self._schemas[name]), self._files(name, touched)
        frame = self._spark.read.schema(columns).parquet(*paths) if paths else self._spark.createDataFrame([], columns)
        return frame if touched is None else frame.where(touched.condition())

    def append(self, name: str, rows: Any) -> None:
        """Adds rows. If the table is built anew, they replace the old rows. Spark's tasks write the files."""
        self._commit_files(name, rows, "append" if name in self._versions else "overwrite")

    def replace(self, name: str, rows: Any, touched: Touched | None = None) -> None:
        """Replaces the touched rows; None: all rows. All given rows must be touched ones."""
        if touched is None or name not in self._versions:
            self._commit_files(name, rows, "overwrite")
        elif not self._files(name, touched):
            self._commit_files(name, rows, "append")
        else:
            table = self._open(name, self._versions[name])
            write_deltalake(table, rows.toArrow(), mode="overwrite", predicate=touched.predicate())
            self._note(name, rows)

    def publish(self, manifest: Manifest) -> Manifest:
        """Publishes the step. Every SMALL_FILES_MAX steps, merges small files, removes files replaced an hour ago."""
        versions, schemas = dict(self._versions), dict(self._schemas)
        published = replace(manifest, step=manifest.step + 1, versions=versions, schemas=schemas)
        failpoint("pipeline_written")
        write_durably(self._out / MANIFEST, json.dumps({"format": MANIFEST_FORMAT, **vars(published)}).encode())
        failpoint("pipeline_published")
        if published.step % SMALL_FILES_MAX:
            return published
        for name in self._versions:
            table = self._open(name, None)
            table.optimize.compact()
            # `full` also finds the files of killed steps, which no version of the table names.
            table.vacuum(KEEP_HOURS, dry_run=False, enforce_retention_duration=False, full=True)
            self._versions[name] = table.version()
        return self.publish(published)

    def _files(self, name: str, touched: Touched | None) -> list[str]:
        """Returns the paths of the files that can have touched rows."""
        actions = pa.table(self._open(name, self._versions[name]).get_add_actions())
        paths = [self._out / name / each for each in actions["path"].to_pylist()]
        # The log has no statistics of these files (see `tables.files.statistics`), so their footers are read.
        chosen = (each for each in paths if touched is None or touched.overlaps(_ends_of(each, touched.column)))
        return [_spark_path(each) for each in chosen]

    def _commit_files(self, name: str, rows: Any, mode: str) -> None:
        place, schema = self._out / name, Schema.from_json(rows.schema.json())
        folder = f"rows-{uuid.uuid4().hex}"
        counted = Observation()
        observed = rows.observe(counted, f.count(f.lit(1)).alias("rows"))
        observed.write.mode("error").option("compression", "zstd").parquet(_spark_path(place / folder))
        if not DeltaTable.is_deltatable(str(place)):
            DeltaTable.create(str(place), schema, mode="ignore")
        actions, found = [], 0
        for path in sorted((place / folder).glob("*.parquet")):
            if count := pq.read_metadata(path).num_rows:
                found, file, stats = found + count, path.stat(), count_only(count)
                time_ms = int(file.st_mtime * 1000)
                actions.append(AddAction(f"{folder}/{path.name}", file.st_size, {}, time_ms, True, stats))
        if found != (wanted := counted.get["rows"]):
            raise ExportError(
                f"Spark wrote {wanted} rows of {name}, and {place / folder} has {found} of them: the folder is not the "
                "same for the executors and this process; choose one that all machines share. Nothing is published"
            )
        if actions or mode == "overwrite":
            table = self._open(name, self._versions.get(name))
            table.create_write_transaction(actions, mode, schema)
        self._note(name, rows)

    def _open(self, name: str, version: int | None) -> DeltaTable:
        return DeltaTable(str(self._out / name), version=version)

    def _note(self, name: str, rows: Any) -> None:
        self._versions[name] = self._open(name, None).version()
        self._schemas[name] = json.loads(rows.schema.json())
        failpoint("pipeline_taken")
