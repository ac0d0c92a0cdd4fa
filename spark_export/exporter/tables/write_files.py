"""Writes the rows of a task as Parquet files. Each file has rows of one stream and date.

All files are written into one existing folder, and synced before the task returns them. This module runs on Spark
executors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_export.exporter.errors import RangeIncomplete
from spark_export.exporter.model import FileEntry, RangePart
from spark_export.exporter.tables.file_target import FileTarget, FolderTarget
from spark_export.exporter.tables.hive_names import hive_folder

FILE_BYTES_MAX = 128 * 1024 * 1024
"""The size in bytes at which a Parquet file is closed.

Spark reads this size in one task (`spark.sql.files.maxPartitionBytes`).
"""
GROUP_ROWS_MAX = 256 * 1024
GROUP_BYTES_MAX = 32 * 1024 * 1024
"""The size of Arrow data, in bytes, at which a row group of a Parquet file is written."""
ERA = "era"
"""The column that tells a stream from an earlier stream of the same name."""
DICTIONARIES = ["stream", "partition", "key", ERA]
ENCODINGS = {"index": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"}
"""The Parquet encodings of columns whose values grow by small steps from row to row."""
STATISTICS = {"stream", "partition", "index", "timestamp", "key", ERA}
"""The columns with minimum and maximum in the footer. For `data` they would help no query and be slow to compute."""
OPEN_FILES_MAX = 16
"""How many files a writer keeps open, one for each stream and date. The least recently used is closed for another."""

FILE_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("index", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field(
            "headers",
            pa.list_(
                pa.field(
                    "element",
                    pa.struct([pa.field("key", pa.string(), False), pa.field("value", pa.binary(), False)]),
                    nullable=False,
                )
            ),
        ),
        pa.field("data", pa.binary(), nullable=False),
        pa.field(ERA, pa.int32()),
    ]
)
"""The columns of a file.

era: how often the exporter had found the stream deleted and created again; 0 for never. A stream that is created again
repeats its indexes, so `stream`, `partition`, `era` and `index` together name one message. The column is nullable only
because files of earlier versions lack it. The run, the stream and the date are not columns, since the path or the log
of the table has them.
"""
FILE_SCHEMA_WITH_STREAM = FILE_SCHEMA.insert(0, pa.field("stream", pa.string(), nullable=False))
"""The columns of a file in a table that needs the stream as a column (Iceberg)."""


class TableWriter:
    """Writes rows into Parquet files in a target or existing folder, with own files for each stream and date.

    hive: whether each file is in a folder `stream=…/date=…`.
    """

    def __init__(
        self,
        folder: Path | FileTarget,
        prefix: str,
        *,
        with_stream: bool = False,
        hive: bool = False,
        codec: str = "zstd",
    ) -> None:
        self._target = FolderTarget(folder) if isinstance(folder, Path) else folder
        self._prefix = prefix
        self._hive = hive
        self._schema = FILE_SCHEMA_WITH_STREAM if with_stream else FILE_SCHEMA
        self._codec = codec
        self._open: dict[tuple[str, int, str], _OpenFile] = {}
        self._count = 0
        self.done: list[FileEntry] = []
        self.rows = 0
        self.data_bytes = 0

    def write(self, stream: str, era: int, batch: pa.RecordBatch) -> None:
        """Writes rows of one stream in order. Rows of different eras are in different files; `era` is added here."""
        self.rows += batch.num_rows
        self.data_bytes += _data_bytes(batch)
        if ERA in batch.schema.names:
            # Files of earlier versions lack the column, so without it all batches of a compaction have one schema.
            batch = batch.drop_columns(ERA)
        for date, part in _by_date(batch):
            place = (stream, era, date)
            file = self._open.pop(place, None) or self._new_file(place)
            self._open[place] = file
            file.write(part)
            if file.bytes_written >= FILE_BYTES_MAX:
                self.done.append(self._open.pop(place).close())

    def close(self) -> list[FileEntry]:
        """Closes the open files. Returns all written files, complete and synced."""
        while self._open:
            _, file = self._open.popitem()
            self.done.append(file.close())
        return self.done

    def discard(self, stream: str) -> None:
        """Drops all files of a stream from the result. The caller removes the files with their folder."""
        for place in [each for each in self._open if each[0] == stream]:
            self._open.pop(place).abort()
        self.done = [entry for entry in self.done if entry.stream != stream]

    def abort(self) -> None:
        """Closes the open files without completing them. The caller removes them together with their folder."""
        for file in self._open.values():
            file.abort()
        self._open.clear()

    def _new_file(self, place: tuple[str, int, str]) -> _OpenFile:
        while len(self._open) >= OPEN_FILES_MAX:
            # Each use moves a file to the end, so the file that was used longest ago comes first.
            self.done.append(self._open.pop(next(iter(self._open))).close())
        self._count += 1
        stream, _, date = place
        name = f"{self._prefix}-{self._count:05d}.parquet"
        name = f"{hive_folder(stream, date)}/{name}" if self._hive else name
        return _OpenFile(self._target, name, place, self._schema, self._codec)


class _OpenFile:
    def __init__(
        self, target: FileTarget, name: str, place: tuple[str, int, str], schema: pa.Schema, codec: str
    ) -> None:
        self._name = name
        self._place = place
        self._schema = schema
        self._file = target.open(name)
        self._sink = _HashingSink(self._file)
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression=codec,
            use_dictionary=DICTIONARIES,
            column_encoding=ENCODINGS,
            write_statistics=[name for name in schema.names if name in STATISTICS],
        )
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._rows = self._data_bytes = 0

    @property
    def bytes_written(self) -> int:
        return self._sink.written

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        self._data_bytes += _data_bytes(batch)
        if self._waiting_rows >= GROUP_ROWS_MAX or self._waiting_bytes >= GROUP_BYTES_MAX:
            self._flush()

    def close(self) -> FileEntry:
        try:
            self._flush()
            self._writer.close()
        except BaseException:
            self._file.abandon()
            raise
        self._file.complete(self._sink.written)
        stream, era, date = self._place
        return FileEntry(
            path=self._name,
            stream=stream,
            era=era,
            date=date,
            rows=self._rows,
            data_bytes=self._data_bytes,
            file_bytes=self._sink.written,
            sha256=self._sink.hexdigest(),
        )

    def abort(self) -> None:
        # Closing the writer would add a footer, and the incomplete file would look complete. The writer also closes
        # itself when it is deleted, so the sink must ignore the footer.
        self._sink.is_abandoned = True
        self._file.abandon()

    def _flush(self) -> None:
        if not self._waiting:
            return
        _, era, _ = self._place
        table = pa.Table.from_batches(self._waiting)
        table = table.append_column(ERA, pa.repeat(pa.scalar(era, pa.int32()), table.num_rows))
        table = table.select(self._schema.names).cast(self._schema)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._rows += table.num_rows
        self._waiting.clear()
        self._waiting_rows = self._waiting_bytes = 0


class _HashingSink:
    """A file object for pyarrow that appends to a file and computes the SHA-256 of everything written."""

    closed = False

    def __init__(self, file: Any) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.written = 0
        self.is_abandoned = False

    def write(self, data: Any) -> int:
        view = memoryview(data)
        size = len(view)
        if self.is_abandoned:
            return size
        self._hash.update(view)
        while view:
            view = view[self._file.write(view) :]
        self.written += size
        return size

    def tell(self) -> int:
        return self.written

    def flush(self) -> None:
        """Does nothing: this file object does not buffer."""

    def close(self) -> None:
        """Does nothing: `_OpenFile` closes the file after it has synced it."""

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def check_complete(piece: RangePart, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the batches unchanged. Raises RangeIncomplete unless they have each index of the piece once, in order."""
    expected = piece.start_index
    for batch in batches:
        if not batch.num_rows:
            continue
        index = batch.column("index")
        first, last = index[0].as_py(), index[-1].as_py()
        whole = first == expected and last == expected + batch.num_rows - 1
        if whole and batch.num_rows > 2:
            steps = pc.min_max(pc.pairwise_diff(index).slice(1)).as_py()
            whole = steps == {"min": 1, "max": 1}
        if not whole:
            raise RangeIncomplete(
                f"{piece.stream}/{piece.partition}: read {batch.num_rows} messages, {first} to {last}, "
                f"where {expected} comes next"
            )
        expected = last + 1
        yield batch
    if expected != piece.end_index:
        raise RangeIncomplete(
            f"{piece.stream}/{piece.partition}: the messages end at {expected}, {piece.end_index} was asked for"
        )


def _data_bytes(batch: pa.RecordBatch) -> int:
    column = batch.column("data")
    if not len(column):
        return 0
    ends = memoryview(column.buffers()[1]).cast("i")
    return int(ends[column.offset + len(column)] - ends[column.offset])


def _by_date(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yields each UTC date with the rows of this date, in order."""
    ends = pc.min_max(batch.column("timestamp")).as_py()
    first, last = ends["min"].date(), ends["max"].date()
    if first == last:
        yield first.isoformat(), batch
        return
    dates = pc.cast(batch.column("timestamp"), pa.date32(), safe=False)
    for date in pc.unique(dates):
        yield date.as_py().isoformat(), batch.filter(pc.equal(dates, date))
