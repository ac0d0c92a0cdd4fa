"""Reads messages and writes them as the files of an exported table, in Spark's tasks.

The format `stream_node_pages` reads a node as `stream_node` does, but each row is a whole page of messages in one
binary value. The format `stream_node_files` writes the pages. The tasks only write files, with
`spark_export.tables.files`, as the exporter without Spark does. The program on the driver commits the files:
`write_files` returns them. Messages that the table has already are left out. So a micro-batch that Spark repeats, or a
checkpoint that is older than the table, changes nothing.

Pages exist because Spark takes some ten microseconds for each row that it hands to a Python process: it measures the
batch after each row (spark.sql.execution.arrow.maxBytesPerBatch).
"""

from __future__ import annotations

import base64
import pickle
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StructField, StructType

from spark_export.session import work_folder
from spark_export.shipping import Shipped, register_format
from spark_export.source.options import read_options
from spark_export.source.readers import BatchReader, PlannedReader, StreamReader
from spark_export.source.source import StreamNodeSource
from spark_export.tables.files import FilesWriter, check_complete, split_places
from spark_export.tables.filesystem import remove_files
from spark_export.tables.model import FilesPlan, IndexRange, Written

FORMAT = "stream_node_files"
PAGES = "stream_node_pages"
PAGE = "page"
"""The only column of the format `stream_node_pages`: an Arrow IPC stream with the rows of a page."""
BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
BATCH_PAGES = 16
"""The largest number of pages, of 4 MiB each, that Spark hands to a task at once: it collects a batch in memory."""
Starts = Mapping[tuple[str, int], IndexRange]
"""The ranges behind the table's positions, by stream and partition. Rows before the beginning are left out."""


class _PagedReader(PlannedReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in super().read(partition):
            stream = pa.BufferOutputStream()
            with pa.ipc.new_stream(stream, batch.schema) as writer:
                writer.write_batch(batch)
            yield pa.RecordBatch.from_arrays([pa.array([stream.getvalue().to_pybytes()], pa.binary())], [PAGE])


class _PagedBatchReader(_PagedReader, BatchReader):
    pass


class _PagedStreamReader(_PagedReader, StreamReader):
    pass


class PagesSource(StreamNodeSource):
    """The format `stream_node_pages`. Its options are those of the format `stream_node`."""

    @classmethod
    def name(cls) -> str:
        return PAGES

    def schema(self) -> StructType:
        return StructType([StructField(PAGE, BinaryType())])

    def reader(self, schema: StructType) -> DataSourceReader:
        return _PagedBatchReader(read_options(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _PagedStreamReader(read_options(self.options))


def write_files(rows: Any, plan: FilesPlan, starts: Starts, *, is_remote: bool = False) -> Written:
    """Writes messages as files, and returns them when all are complete. Nothing is committed. Raises errors of Spark.

    rows: a DataFrame of the format `stream_node_pages`, with the columns of `spark_export.tables.columns.ROWS` without
        `era` in its pages. Each task has whole ranges of indexes in order.
    is_remote: whether the session is one of Spark Connect, whose server cannot write a file for this process.
    """
    # A streaming query has a session of its own. For another query, the caller's session has this setting until the
    # end.
    conf, bound = rows.sparkSession.conf, str(BATCH_PAGES)
    before = conf.get(BATCH_ROWS)
    conf.set(BATCH_ROWS, bound)
    try:
        return _write_pages(rows, plan, starts, is_remote)
    finally:
        # If another export at work in this session has set the bound before, it restores what the caller has chosen.
        if before != bound:
            conf.set(BATCH_ROWS, before)


def _write_pages(rows: Any, plan: FilesPlan, starts: Starts, is_remote: bool) -> Written:
    if is_remote:
        # `mapInArrow` needs pandas, which a client of Spark Connect has anyway. The server is another machine, so
        # its answer is read as data, and not as code like a pickle.
        found = rows.mapInArrow(partial(_mapped, plan, dict(starts)), "part binary").collect()
        return Written.together([msgspec.json.decode(row["part"], type=Written) for row in found])
    # For a write, Spark looks the format up in the active session of this thread. This call activates the session.
    register_format(rows.sparkSession, FilesSink)
    with tempfile.TemporaryDirectory(prefix="export-", dir=work_folder()) as folder:
        result = Path(folder) / "written"
        job = base64.b64encode(pickle.dumps((plan, dict(starts)))).decode()
        rows.write.format(FORMAT).mode("append").option("job", job).option("result", str(result)).save()
        return Written.together(pickle.loads(result.read_bytes()))


def _mapped(plan: FilesPlan, starts: Starts, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The task for Spark Connect: writes the pages of a task, and yields what was written as one row."""
    part = msgspec.json.encode(write_rows(_unpacked(batches), plan, starts))
    yield pa.RecordBatch.from_arrays([pa.array([part], pa.binary())], ["part"])


class FilesSink(Shipped):
    """The data source behind `write_files`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        plan, starts = pickle.loads(base64.b64decode(self.options["job"]))
        return FilesTaskWriter(plan, starts, self.options["result"])


@dataclass
class _Part(WriterCommitMessage):
    written: Written


@dataclass
class FilesTaskWriter(DataSourceArrowWriter):
    plan: FilesPlan
    starts: Starts
    result: str

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _Part(write_rows(_unpacked(iterator), self.plan, self.starts))

    def commit(self, messages: list[Any]) -> None:
        # Spark calls this method in a process of its own, on the machine of the driver.
        Path(self.result).write_bytes(pickle.dumps([each.written for each in messages if each is not None]))

    def abort(self, messages: list[Any]) -> None:
        # The tasks that failed have removed their own files.
        for each in filter(None, messages):
            remove_files(self.plan, each.written.files)


def _unpacked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for pages in batches:
        for page in pages.column(PAGE):
            with pa.ipc.open_stream(page.as_buffer()) as rows:
                yield from rows


def write_rows(batches: Iterator[pa.RecordBatch], plan: FilesPlan, starts: Starts) -> Written:
    """Executes one task: writes the rows that the table does not have yet. Raises RangeIncomplete at a gap."""
    done = list[IndexRange]()
    with FilesWriter(plan) as writer:
        for batch in batches:
            for place, rows in split_places(batch):
                wanted = starts[place[:2]]
                first = rows["index"][0].as_py()
                rows = rows.slice(min(rows.num_rows, max(0, wanted.begin - first)))
                if not rows.num_rows:
                    continue
                first = rows["index"][0].as_py()
                end = first + rows.num_rows
                # The rows have each index once, in order.
                list(check_complete(IndexRange(wanted.of, first, end), [rows]))
                is_next = bool(done) and done[-1].of == wanted.of and done[-1].end == first
                begin = done.pop().begin if is_next else first
                writer.write(wanted.of.stream, wanted.of.partition, wanted.of.era, rows)
                lost = wanted.lost if begin == wanted.begin else 0
                last_us = rows["timestamp"][-1].cast(pa.int64()).as_py()
                done.append(IndexRange(wanted.of, begin, end, lost=lost, last_us=last_us))
        return Written(writer.close(), done)
