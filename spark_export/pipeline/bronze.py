"""Reads the bronze table, which is the table of an export, as a DataFrame or as a stream of its new rows.

The format `stream_node_table` reads an exported table of any format without jars: the table's own library says which
files are alive, and Spark's tasks read these files with pyarrow. The offsets of a streaming query are the positions of
the export, so a row is read once, in whatever files other programs have put it meanwhile. Rows that were removed before
they were read are not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import reduce
from operator import and_, or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from spark_export.exporter.planning import take_step
from spark_export.shipping import Shipped, register_format
from spark_export.source.schema import KAFKA_HEADERS
from spark_export.source.spark_versions import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
from spark_export.tables.address import parse_place
from spark_export.tables.columns import ROWS
from spark_export.tables.files import read_file
from spark_export.tables.filesystem import open_filesystem
from spark_export.tables.log import CatalogChoice, TableFile, TableLog, open_table
from spark_export.tables.model import Incarnation, IndexRange

FORMAT = "stream_node_table"
COLUMNS = pa.schema([pa.field(each.name, KAFKA_HEADERS if each.name == "headers" else each.type) for each in ROWS])
"""The columns of the bronze table (`spark_export.tables.columns.ROWS`) for Spark: each part of a header can be null."""
TASK_BYTES = 64 * 1024 * 1024
"""The size of the files that one task reads. A larger file is one task."""
Key = tuple[str, int, int]
"""A stream, partition and era."""
Ends = dict[Key, int]
"""By key, the index after the last row."""
Ranges = dict[Key, tuple[int, int]]
"""By key, the first index and the index after the last one."""
Part = tuple[list[TableFile] | None, Ranges | None]
"""What a task reads: files (None: the whole table, through its own library), and the rows in them (None: all)."""


@dataclass(frozen=True)
class BronzeTable:
    """The address of the table of an export; see `spark_export.tables.log.open_table`."""

    path: str
    table_format: str = "parquet"
    store_options: Mapping[str, str] | None = None
    catalog: CatalogChoice | None = None

    def open(self) -> TableLog:
        return open_table(parse_place(self.path), self.table_format, self.store_options, self.catalog)

    def options(self) -> dict[str, str]:
        """Returns the options of the data source for this table."""
        return {"table": json.dumps(asdict(self))}

    @classmethod
    def of(cls, options: Mapping[str, str]) -> BronzeTable:
        found = json.loads(options["table"])
        return cls(**{**found, "catalog": found["catalog"] and CatalogChoice(**found["catalog"])})


def read_bronze(spark: Any, table: BronzeTable) -> Any:
    """Returns the rows of the bronze table at this moment as a DataFrame."""
    register_format(spark, TableSource)
    return spark.read.format(FORMAT).options(**table.options()).load()


class TableSource(Shipped):
    """The format `stream_node_table`, for batch and streaming queries. Spark sends the names of options in lower case.

    table: the table of the export, see `BronzeTable.options`.
    starting_ends: where a new streaming query begins: a JSON array of `[stream, partition, era, index]`.
    rows_max: about how many rows a micro-batch reads at most.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return from_arrow_schema(COLUMNS)

    def reader(self, schema: Any) -> DataSourceReader:
        return TableReader(BronzeTable.of(self.options))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        start = _from_json(json.loads(self.options.get("starting_ends", "[]")))
        return TableStreamReader(BronzeTable.of(self.options), start, int(self.options["rows_max"]))


@dataclass
class TableReader(DataSourceReader):
    table: BronzeTable

    def partitions(self) -> list[InputPartition]:
        return plan_files(self.table, None)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_part(self.table, partition.value)


class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, table: BronzeTable, start: Ends, rows_max: int) -> None:
        self._table = table
        self._start = start
        self._rows_max = rows_max
        self._target: Ends | None = None

    def initialOffset(self) -> dict[str, Any]:
        return _to_json(self._start)

    def getDefaultReadLimit(self) -> ReadMaxRows:
        return ReadMaxRows(self._rows_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = find_ends(self._table.open())

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        now = find_ends(self._table.open()) if self._target is None else self._target
        if start is None or isinstance(limit, ReadAllAvailable):
            return _to_json(now)
        begin = _from_json(start["ends"])
        ranges = [IndexRange(Incarnation(*key, 0), *each) for key, each in _ranges(begin, now).items()]
        step = take_step(ranges, self._rows_max, 1)
        return _to_json(begin | {(each.of.stream, each.of.partition, each.of.era): each.end for each in step})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return plan_files(self._table, _ranges(_from_json(start["ends"]), _from_json(end["ends"])))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_part(self._table, partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: the tables that a query makes contain their own positions."""


def find_ends(log: TableLog) -> Ends:
    return {(of.stream, of.partition, of.era): each.end for of, each in log.load().positions.items()}


def plan_files(table: BronzeTable, ranges: Ranges | None) -> list[InputPartition]:
    """Returns the tasks that read the rows in `ranges`. Spark needs at least one task."""
    if ranges == {}:
        return [InputPartition(([], {}))]
    files = table.open().list_files()
    if any(each.has_removed_rows for each in files):
        # Only the table's own library knows which rows of a file were removed.
        return [InputPartition((None, ranges))]
    tasks, size = list[list[TableFile]]([[]]), 0
    for each in files:
        if ranges is not None and not _overlaps(each, ranges):
            continue
        if size + each.file_bytes > TASK_BYTES and tasks[-1]:
            tasks, size = [*tasks, []], 0
        tasks[-1].append(each)
        size += each.file_bytes
    return [InputPartition((each, ranges)) for each in tasks]


def read_part(table: BronzeTable, part: Part) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a task. Raises TableDamaged if a file is missing, or a page of it has a wrong checksum."""
    files, ranges = part
    if files is None:
        yield from _chosen(table.open().read(ROWS.names), {}, ranges)
    for each in files or ():
        filesystem, path = open_filesystem(each.address, table.store_options or {})
        yield from _chosen(read_file(filesystem, path, ROWS.names, each.address), each.partition, ranges)


def _chosen(
    batches: Iterator[pa.RecordBatch], values: Mapping[str, Any], ranges: Ranges | None
) -> Iterator[pa.RecordBatch]:
    """Yields the rows in `ranges` with all columns. values: the values of the columns that are not in the file."""
    for batch in batches:
        rows = pa.RecordBatch.from_arrays([_column(batch, field, values) for field in COLUMNS], schema=COLUMNS)
        if ranges is not None and rows.num_rows:
            streams = set(pc.unique(rows["stream"]).to_pylist())
            wanted = [_condition(key, each) for key, each in ranges.items() if key[0] in streams]
            rows = rows.filter(reduce(or_, wanted)) if wanted else rows.slice(0, 0)
        if rows.num_rows:
            yield rows


def _column(batch: pa.RecordBatch, field: pa.Field, values: Mapping[str, Any]) -> pa.Array:
    if field.name in batch.schema.names:
        column = batch.column(field.name).cast(field.type)
    else:
        column = pa.repeat(pa.scalar(values.get(field.name)).cast(field.type), batch.num_rows)
    return pc.fill_null(column, 0) if field.name == "era" else column


def _condition(key: Key, indexes: tuple[int, int]) -> pc.Expression:
    same = [pc.field(name) == value for name, value in zip(("stream", "partition", "era"), key, strict=True)]
    return reduce(and_, [*same, pc.field("index") >= indexes[0], pc.field("index") < indexes[1]])


def _overlaps(file: TableFile, ranges: Ranges) -> bool:
    chosen = (each for key, each in ranges.items() if file.partition.get("stream", key[0]) == key[0])
    if file.indexes is None:
        return any(True for _ in chosen)
    first, last = file.indexes
    return any(first < end and begin <= last for begin, end in chosen)


def _ranges(start: Ends, end: Ends) -> Ranges:
    return {key: (start.get(key, 0), last) for key, last in end.items() if last > start.get(key, 0)}


def _to_json(ends: Ends) -> dict[str, Any]:
    return {"ends": [[*key, end] for key, end in sorted(ends.items())]}


def _from_json(ends: Any) -> Ends:
    return {(stream, partition, era): end for stream, partition, era, end in ends}
