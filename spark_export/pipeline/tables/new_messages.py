"""Finds the messages of an export that the pipeline has not read yet, and reads these messages file by file."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_export.exporter.errors import ExportError, TableDamaged
from spark_export.exporter.tables.hive_names import NO_NAME
from spark_export.exporter.tables.rewrite import REPAIR
from spark_export.pipeline.tables.export_identity import read_checksums
from spark_export.pipeline.tables.intervals import Intervals, Source, Span, spans_of

COLUMNS = ("partition", "index", "timestamp", "key", "headers", "data")


@dataclass
class ReadFiles:
    """The record of the messages that the pipeline has read from an export.

    files: the size in bytes of each file that was read completely, by its path in the table.
    """

    files: dict[str, int] = field(default_factory=dict)
    intervals: dict[Source, Intervals] = field(default_factory=lambda: defaultdict(Intervals))

    def dump(self) -> dict[str, Any]:
        spans = [
            [*source, [[span.first, span.last, span.first_us, span.last_us] for span in found.spans]]
            for source, found in sorted(self.intervals.items())
        ]
        return {"files": self.files, "intervals": spans}

    @classmethod
    def load(cls, dumped: Any) -> ReadFiles:
        taken = cls(dict(dumped["files"]))
        for stream, era, partition, spans in dumped["intervals"]:
            taken.intervals[stream, era, partition] = Intervals(Span(*span) for span in spans)
        return taken


@dataclass(frozen=True)
class ExportFile:
    """A Parquet file of an export. `path` is relative to `root`; `sha256` is None if unknown."""

    root: Path
    path: str
    size_bytes: int
    sha256: str | None = None

    def read(self) -> bytes:
        """Returns the content. Raises TableDamaged if it is not what the exporter wrote."""
        content = (self.root / self.path).read_bytes()
        if self.sha256 is not None and hashlib.sha256(content).hexdigest() != self.sha256:
            raise TableDamaged(f"{self.root / self.path} is not what the exporter wrote: {REPAIR}")
        return content

    @property
    def stream(self) -> str:
        """The stream of the file, from its path. Raises ExportError."""
        folder = next((part for part in Path(self.path).parts if part.startswith("stream=")), None)
        if folder is None:
            raise ExportError(f"{self.root / self.path} is no file of an export in plain Parquet files")
        name = folder.removeprefix("stream=")
        return "" if name == NO_NAME else unquote(name)

    def loaded_bytes(self) -> int:
        metadata = pq.read_metadata(self.root / self.path)
        return sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))


def list_new(export: Path, taken: ReadFiles) -> list[ExportFile]:
    """Returns the files that the pipeline has not read completely, by path, in the present version of the table.

    Files that no longer exist, as after a compaction, are removed from `taken`. Raises FileNotFoundError without a
    table.
    """
    root = (export / "messages").resolve()
    if not root.is_dir():
        raise FileNotFoundError(f"{export} holds no table: {export / 'messages'} is missing")
    sizes = {str(path.relative_to(root)): path.stat().st_size for path in sorted(root.rglob("*.parquet"))}
    taken.files = {path: size for path, size in taken.files.items() if path in sizes}
    sums = read_checksums(export, root)
    return [
        ExportFile(root, path, size, sums.get(path)) for path, size in sizes.items() if taken.files.get(path) != size
    ]


def take_file(file: ExportFile, taken: ReadFiles) -> pa.Table:
    """Reads the new rows of a file, sorted by era, partition and index, and adds them to the record `taken`."""
    with pq.ParquetFile(pa.BufferReader(file.read())) as opened:
        names = [name for name in ("era", *COLUMNS) if name in opened.schema_arrow.names]
        if not set(COLUMNS) <= set(names):
            raise ExportError(
                f"{file.root / file.path} lacks columns of an export: {sorted(set(COLUMNS) - set(names))}"
            )
        places = opened.read([name for name in names if name in ("era", "partition", "index")])
        if _all_known(places, taken, file.stream):
            # After a compaction, the file contains only known rows. The other columns of the file are not needed.
            taken.files[file.path] = file.size_bytes
            return opened.schema_arrow.empty_table()
        rows = opened.read(names)
    era = rows["era"] if "era" in rows.column_names else pa.nulls(rows.num_rows, pa.int32())
    rows = rows.select(COLUMNS)
    rows = rows.add_column(0, "era", pc.fill_null(era.cast(pa.int32()), 0))
    rows = rows.add_column(0, "stream", pa.array([file.stream], pa.string()).take(pa.array([0] * rows.num_rows)))
    rows = rows.sort_by([("era", "ascending"), ("partition", "ascending"), ("index", "ascending")])
    fresh = (_drop_known(part, taken, source) for source, part in _by_source(rows, file.stream))
    new = [part for part in fresh if part.num_rows]
    for part in new:
        source = (file.stream, part["era"][0].as_py(), part["partition"][0].as_py())
        times_us = part["timestamp"].cast(pa.int64()).to_pylist()
        for span in spans_of(part["index"].to_pylist(), times_us):
            taken.intervals[source].add(span)
    taken.files[file.path] = file.size_bytes
    return pa.concat_tables(new) if new else rows.slice(0, 0)


def _all_known(places: pa.Table, taken: ReadFiles, stream: str) -> bool:
    """Returns whether the pipeline has read all these rows before."""
    eras = places["era"].to_pylist() if "era" in places.column_names else [0] * places.num_rows
    known = {(era, partition): found for (name, era, partition), found in taken.intervals.items() if name == stream}
    rows = zip(eras, places["partition"].to_pylist(), places["index"].to_pylist(), strict=True)
    none = Intervals()
    return all(known.get((era or 0, partition), none).covers(index) for era, partition, index in rows)


def _by_source(rows: pa.Table, stream: str) -> Iterator[tuple[Source, pa.Table]]:
    """Yields each source (stream, era, partition) and its rows. rows: sorted by era and partition."""
    for (era, partition), part in sorted_groups(rows, ["era", "partition"]):
        yield (stream, era, partition), part


def sorted_groups(rows: pa.Table, keys: list[str]) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """Yields each combination of values of the columns `keys`, and the rows with these values."""
    counts = rows.group_by(keys).aggregate([([], "count_all")]).to_pylist()
    at = 0
    # Arrow returns the groups in any order. Python sorts numbers, texts and bytes in the same order as Arrow.
    for *values, count in sorted((*(each[key] for key in keys), each["count_all"]) for each in counts):
        yield tuple(values), rows.slice(at, count)
        at += count


def _drop_known(rows: pa.Table, taken: ReadFiles, source: Source) -> pa.Table:
    """Returns the rows of one source that the pipeline has not read before."""
    known = taken.intervals.get(source)
    if known is None or not known.touches(rows["index"][0].as_py(), rows["index"][-1].as_py()):
        return rows
    return rows.filter(pa.array([not known.covers(index) for index in rows["index"].to_pylist()], pa.bool_()))
