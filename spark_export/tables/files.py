"""Writes the rows of a run as Parquet files, in a thread of the exporter or on a Spark executor.

The files are complete and durable before they are reported, and no reader sees them before a commit names them. A file
has rows of one stream and era, and of one partition of the table. Each attempt at a task writes under names of its own,
so that a repeated task overwrites nothing; the files of other attempts belong to no table.
"""

from __future__ import annotations

import hashlib
import json
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from ockam.files.durable_files import sync
from spark_export.tables import model
from spark_export.tables.errors import RangeIncomplete, TableDamaged
from spark_export.tables.filesystem import one_line, open_filesystem, remove_files, store_errors

FILE_BYTES_MAX = 128 * 1024 * 1024
"""The size in bytes at which a Parquet file is closed. Spark reads this size in one task
(`spark.sql.files.maxPartitionBytes`)."""
GROUP_ROWS_MAX, GROUP_BYTES_MAX = 256 * 1024, 32 * 1024 * 1024
"""The number of rows, and the size of their Arrow data in bytes, at which a row group is written."""
OPEN_FILES_MAX = 16
"""How many files a writer keeps open. The least recently used one is closed for another."""
DICTIONARIES = frozenset({"stream", "partition", "key", "era", "date"})
ENCODINGS = {"index": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"}
"""The Parquet encodings of columns whose values grow by small steps from row to row."""
BOUNDED = ("partition", "index", "timestamp", "era")
"""The columns with minimum and maximum in the statistics of a file. For `data` they would help no query."""
COUNTED = frozenset({*BOUNDED, "key", "stream"})
MILLISECOND = timedelta(milliseconds=1)
FOOTER_MARK = b"crc1"
"""Stands in our files directly before the footer, together with the CRC-32 of the footer. Parquet has checksums for
pages only, and readers ignore bytes between the last page and the footer."""

Place = tuple[str, int, int]
"""A stream, a partition and an era."""
FilePlace = tuple[str, int, tuple[str, ...]]
"""The stream and the era of a file, and the values by which the table is partitioned."""


class FilesWriter:
    """Writes the rows of one attempt at a task, those of each partition in the order of their indexes. Call `close` at
    the end. After an exception, the context removes everything that was written."""

    def __init__(self, plan: model.FilesPlan) -> None:
        self.plan = plan
        self.rows = 0
        self.data_bytes = 0
        self.done: list[model.DataFile] = []
        self._filesystem, self._root = open_filesystem(plan.root, plan.options)
        self._attempt = uuid.uuid4().hex
        self._count = 0
        self._open: dict[FilePlace, _OpenFile] = {}

    def __enter__(self) -> FilesWriter:
        return self

    def __exit__(self, kind: object, *raised: object) -> None:
        if kind is not None:
            for file in self._open.values():
                file.abort()
            remove_files(self.plan, self.done)

    def write(self, stream: str, partition: int, era: int, batch: pa.RecordBatch) -> None:
        batch = forget(batch, self.plan.forgotten.get(stream, {}))
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        self.data_bytes += _data_bytes(batch)
        if self.plan.convert is not None:
            batch = self.plan.convert(batch)
        fixed = {"stream": stream, "partition": partition, "era": era}
        units = [each.unit for each in self.plan.partition_by if each.unit]
        for time, part in split_times(batch, max(units, key=[*model.UNITS].index) if units else ""):
            values = tuple(
                time.strftime(model.UNITS[each.unit]) if time is not None and each.unit else str(fixed[each.source])
                for each in self.plan.partition_by
            )
            place = (stream, era, values)
            # Each use moves a file to the end, so the file that was used longest ago comes first.
            file = self._open.pop(place, None) or self._new_file(place)
            self._open[place] = file
            file.write(self._arranged(part, fixed))
            if file.bytes_written >= FILE_BYTES_MAX:
                self._close(place)

    def close(self) -> list[model.DataFile]:
        """Closes the open files. Returns all written files, complete and durable."""
        while self._open:
            self._close(next(iter(self._open)))
        return self.done

    def discard(self, stream: str) -> None:
        """Removes all files of a stream, which could not be read to its end."""
        for place in [each for each in self._open if each[0] == stream]:
            self._open.pop(place).abort()
        remove_files(self.plan, [each for each in self.done if each.stream == stream])
        self.done = [each for each in self.done if each.stream != stream]

    def _close(self, place: FilePlace) -> None:
        self.done.append(self._open[place].close())
        del self._open[place]

    def _new_file(self, place: FilePlace) -> _OpenFile:
        while len(self._open) >= OPEN_FILES_MAX:
            self._close(next(iter(self._open)))
        self._count += 1
        stream, era, values = place
        partition = {each.name: value for each, value in zip(self.plan.partition_by, values, strict=True)}
        folder = model.hive_folder(partition) if self.plan.folders else ""
        name = f"{folder}part-{self._attempt}-{self._count:05d}.parquet"
        return _OpenFile(self._filesystem, self._root, model.DataFile(name, stream, era, partition, 0, 0, 0), self.plan)

    def _arranged(self, batch: pa.RecordBatch, fixed: Mapping[str, Any]) -> pa.Table:
        """Returns the rows with exactly the columns of the files, in their order and with their types."""
        columns = []
        for each in self.plan.schema:
            if each.name in fixed:
                columns.append(pa.repeat(pa.scalar(fixed[each.name], each.type), batch.num_rows))
            elif each.name in batch.schema.names:
                columns.append(batch.column(each.name).cast(each.type))
            elif each.name == "date":
                # The rows of a table that is rewritten have their own column of this name, if it is not a partition.
                columns.append(pc.cast(batch.column("timestamp"), pa.date32(), safe=False))
            else:
                columns.append(pa.nulls(len(batch), each.type))
        return pa.Table.from_arrays(columns, schema=self.plan.schema)


class _Sink:
    """A file for `pq.ParquetWriter`. `end_footer` writes the bytes since `begin_footer` behind their checksum."""

    closed = False

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self._footer: list[bytes] | None = None

    def write(self, content: pa.Buffer | bytes) -> int:
        if self._footer is None:
            return int(self._stream.write(content))
        self._footer.append(bytes(content))
        return len(content)

    def tell(self) -> int:
        return int(self._stream.tell())

    def flush(self) -> None:
        pass

    def begin_footer(self) -> None:
        self._footer = []

    def end_footer(self) -> None:
        footer = b"".join(self._footer or ())
        self._stream.write(FOOTER_MARK + zlib.crc32(footer).to_bytes(4, "little") + footer)


class _OpenFile:
    """A file that is being written. On a store, it exists only after `close`."""

    def __init__(self, filesystem: fs.FileSystem, root: str, file: model.DataFile, plan: model.FilesPlan) -> None:
        self._filesystem = filesystem
        self._root = Path(root)
        self._path = path = f"{root}/{file.path}"
        self._file = file
        with store_errors(path):
            if isinstance(filesystem, fs.LocalFileSystem):
                filesystem.create_dir(path.rpartition("/")[0], recursive=True)
            self._stream = filesystem.open_output_stream(path)
        self._metadata: list[pq.FileMetaData] = []
        self._sink = _Sink(self._stream)
        self._writer = pq.ParquetWriter(
            self._sink,
            plan.schema,
            compression="zstd",
            use_dictionary=[name for name in plan.schema.names if name in DICTIONARIES],
            column_encoding={name: code for name, code in ENCODINGS.items() if name in plan.schema.names},
            write_statistics=[name for name in plan.schema.names if name in COUNTED],
            # `export verify` finds a damaged page by its checksum, in whatever table the file is.
            write_page_checksum=True,
            metadata_collector=self._metadata,
        )
        self._waiting: list[pa.Table] = []
        self._waiting_rows = self._waiting_bytes = 0

    @property
    def bytes_written(self) -> int:
        return int(self._stream.tell())

    def write(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        self._file = replace(
            self._file, rows=self._file.rows + rows.num_rows, data_bytes=self._file.data_bytes + _data_bytes(rows)
        )
        if self._waiting_rows >= GROUP_ROWS_MAX or self._waiting_bytes >= GROUP_BYTES_MAX:
            self._flush()

    def close(self) -> model.DataFile:
        with store_errors(self._path):
            self._flush()
            self._sink.begin_footer()
            self._writer.close()
            self._sink.end_footer()
            size = self.bytes_written
            try:
                self._stream.close()
            except OSError:
                # On a store, a file of this size is complete even if the answer to the upload was lost: its name is
                # unique, so no other writer has made it.
                if self._filesystem.get_file_info(self._path).size != size:
                    raise
            if isinstance(self._filesystem, fs.LocalFileSystem):
                sync(Path(self._path))
                for folder in Path(self._path).relative_to(self._root).parents:
                    sync(self._root / folder)
        return replace(self._file, file_bytes=size, stats=statistics(self._metadata[0]))

    def abort(self) -> None:
        # The writer is closed, so that a file that cannot be deleted is at least complete; it is in no table. After a
        # failed write, pyarrow's writer raises RuntimeError, because it has no footer.
        with suppress(OSError, pa.ArrowException, RuntimeError):
            self._writer.close()
        with suppress(OSError, pa.ArrowException):
            self._stream.close()
        with suppress(OSError):
            self._filesystem.delete_file(self._path)

    def _flush(self) -> None:
        if self._waiting:
            rows = _in_order(pa.concat_tables(self._waiting))
            with store_errors(self._path):
                self._writer.write_table(rows, row_group_size=rows.num_rows)
            self._waiting.clear()
            self._waiting_rows = self._waiting_bytes = 0


def write_ranges(
    ranges: Sequence[model.IndexRange],
    read: Callable[[model.IndexRange], Iterable[pa.RecordBatch]],
    plan: model.FilesPlan,
    *,
    is_of_stream: Callable[[Exception], bool] = lambda error: isinstance(error, RangeIncomplete),
    on_rows: Callable[[int, int], None] = lambda rows, data_bytes: None,
) -> model.Written:
    """Executes a task once: reads ranges and writes their rows. Removes the files after an error.

    read: yields the rows of a range in order, with the columns of ROWS without `stream`, `partition` and `era`.
    is_of_stream: whether an error of `read` concerns only the stream that was being read, which is then left out.
    on_rows: called after each batch with the number of rows, and of bytes of message data, written so far.
    """
    done, left_out = list[model.IndexRange](), dict[str, model.LeftOutStream]()
    with FilesWriter(plan) as writer:
        for each in ranges:
            of, last_us = each.of, 0
            if of.stream in left_out:
                continue
            try:
                for batch in check_complete(each, read(each)):
                    writer.write(of.stream, of.partition, of.era, batch)
                    last_us = batch.column("timestamp")[-1].value
                    on_rows(writer.rows, writer.data_bytes)
            except Exception as error:
                if not is_of_stream(error):
                    raise
                # The rows that were read before the error must not be published without the rows after them.
                writer.discard(of.stream)
                left_out[of.stream] = model.LeftOutStream(of.stream, f"{of.stream}/{of.partition}: {error}")
            else:
                done.append(replace(each, last_us=last_us))
        ranges = [each for each in done if each.of.stream not in left_out]
        return model.Written(writer.close(), ranges, [*left_out.values()])


def rewrite_rows(plan: model.FilesPlan, batches: Iterable[pa.RecordBatch]) -> tuple[int, list[model.DataFile]]:
    """Writes rows of a table again, except forgotten ones. Returns the number of rows read, and the new files."""
    rows = 0
    with FilesWriter(plan) as writer:
        for batch in batches:
            rows += batch.num_rows
            for (stream, partition, era), part in split_places(batch):
                writer.write(stream, partition, era, part)
        return rows, writer.close()


def read_file(
    filesystem: fs.FileSystem, path: str, columns: Sequence[str], address: str = ""
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a file, without columns that it lacks. address: the name of the file for errors.

    Raises TableDamaged, also for a wrong checksum of a page or of the footer.
    """
    try:
        with filesystem.open_input_file(path) as opened:
            file = open_checked(opened)
            yield from file.iter_batches(columns=[name for name in columns if name in file.schema_arrow.names])
    except (pa.ArrowException, OSError) as error:
        raise TableDamaged(f"{address or path} is missing or damaged: {one_line(error)}") from error


def open_checked(opened: pa.NativeFile) -> pq.ParquetFile:
    """Returns a Parquet file that checks the checksums of its pages. Checks the checksum of the footer, if there is
    one: files of other programs and of earlier versions have none. Raises OSError and ArrowException."""
    # A file ends with the footer, the size of the footer in 4 bytes, and `PAR1`.
    size = opened.size()
    start = size - 8 - int.from_bytes(opened.read_at(4, max(0, size - 8)), "little") - 8
    end = opened.read_at(size - start, start) if start >= 0 else b""
    if end.startswith(FOOTER_MARK) and zlib.crc32(end[8:]) != int.from_bytes(end[4:8], "little"):
        raise pa.ArrowInvalid("the checksum of the footer is wrong")
    try:
        return pq.ParquetFile(opened, page_checksum_verification=True)
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(f"the name of a column is damaged: {error}") from error


def columns_of(paths: Iterable[Path], others: pa.Schema) -> pa.Schema:
    """Returns all columns of some files, and the columns `others`. Raises TableDamaged."""
    found = []
    for path in paths:
        try:
            found.append(pq.read_schema(path).remove_metadata())
        except (pa.ArrowException, OSError) as error:
            raise TableDamaged(f"{path} is missing or damaged: {one_line(error)}") from error
    return pa.unify_schemas([*found, others])


def least_place(path: Path) -> list[int]:
    """Returns the lowest partition and the lowest index of a file; -1 for a value that the file's statistics lack."""
    said = json.loads(statistics(pq.read_metadata(path))).get("minValues", {})
    return [said.get(name, -1) for name in ("partition", "index")]


def split_places(batch: pa.RecordBatch) -> Iterator[tuple[Place, pa.RecordBatch]]:
    """Yields the rows of each stream, partition and era of a batch."""
    # A table of the user's own, and files of earlier versions, can lack the era.
    names = [name for name in ("stream", "partition", "era") if name in batch.schema.names]
    places = pa.table(batch).select(names).group_by(names).aggregate([]).to_pylist()
    for each in places:
        fields = ((pc.field(name), value) for name, value in each.items())
        is_here = reduce(and_, (one.is_null() if value is None else one == value for one, value in fields))
        part = batch.filter(is_here) if len(places) > 1 else batch
        yield (each["stream"], each["partition"], each.get("era") or 0), part


def check_complete(wanted: model.IndexRange, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the batches unchanged. Raises RangeIncomplete unless they have each index of the range once, in order."""
    expected, where = wanted.begin, f"{wanted.of.stream}/{wanted.of.partition}"
    for batch in batches:
        if not batch.num_rows:
            continue
        index = batch.column("index")
        first, last = index[0].as_py(), index[-1].as_py()
        whole = first == expected and last == expected + batch.num_rows - 1
        if whole and batch.num_rows > 2:
            whole = pc.min_max(pc.pairwise_diff(index).slice(1)).as_py() == {"min": 1, "max": 1}
        if not whole:
            raise RangeIncomplete(
                f"{where}: read {batch.num_rows} messages, {first} to {last}, where {expected} comes next"
            )
        expected = last + 1
        yield batch
    if expected != wanted.end:
        raise RangeIncomplete(f"{where}: the messages end at {expected}, {wanted.end} was asked for")


def forget(batch: pa.RecordBatch, until_us: Mapping[str, int]) -> pa.RecordBatch:
    """Returns the rows that need not be forgotten. until_us: a time for each digest of a key; see `TableState`."""
    if not until_us:
        return batch
    whole = until_us.get("", -1)
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    # Of a table without keys, only whole streams are forgotten.
    keys = batch.column("key").to_pylist() if "key" in batch.schema.names else [None] * batch.num_rows
    kept = [
        time > whole and (key is None or time > until_us.get(hashlib.sha256(key).hexdigest(), -1))
        for time, key in zip(times, keys, strict=True)
    ]
    return batch.filter(pa.array(kept, pa.bool_()))


def split_times(batch: pa.RecordBatch, unit: str) -> Iterator[tuple[datetime | None, pa.RecordBatch]]:
    """Yields the rows of each hour, day, month or year, in order, with its beginning; without a unit, all rows."""
    if not unit:
        yield None, batch
        return
    ends = pc.min_max(batch.column("timestamp"))
    first, last = (pc.floor_temporal(ends[name], unit=unit).as_py() for name in ("min", "max"))
    if first == last:
        yield first, batch
        return
    starts = pc.floor_temporal(batch.column("timestamp"), unit=unit)
    for start in pc.unique(starts):
        yield start.as_py(), batch.filter(pc.equal(starts, start))


def _in_order(rows: pa.Table) -> pa.Table:
    """Returns rows in the order of partition and index. Merged files, and files of other programs, can have another
    order."""
    # A table of somebody else can be partitioned by `partition`, whose column is then not in the files.
    names = [name for name in ("partition", "index") if name in rows.schema.names]
    rises, stays = pa.scalar(False), pa.scalar(True)
    for name in names:
        steps = pc.pairwise_diff(rows[name].combine_chunks())
        rises = pc.or_(rises, pc.and_(stays, pc.greater(steps, 0)))
        stays = pc.and_(stays, pc.equal(steps, 0))
    if pc.all(rises.slice(1), min_count=0).as_py():
        return rows
    return rows.sort_by([(name, "ascending") for name in names])


def _data_bytes(rows: pa.RecordBatch | pa.Table) -> int:
    return int(pc.sum(pc.binary_length(rows.column("data"))).as_py() or 0) if "data" in rows.schema.names else 0


def statistics(metadata: pq.FileMetaData) -> str:
    """Returns the row count, minima, maxima and numbers of nulls of a file, as the JSON text of Delta's log.

    If a column other than bytes has no minimum, such as a decoded one, only the row count is returned: deltalake's
    datasets compare the missing minimum of such a column as null, and a filter on the column then finds no row.
    """
    least, greatest, nulls = dict[str, Any](), dict[str, Any](), dict[str, int]()
    for number in range(metadata.num_columns):
        column = metadata.schema.column(number)
        name = column.path
        found = [metadata.row_group(group).column(number).statistics for group in range(metadata.num_row_groups)]
        if name in COUNTED and all(each is not None and each.has_null_count for each in found):
            nulls[name] = sum(each.null_count for each in found)
        if name in BOUNDED and found and all(each is not None and each.has_min_max for each in found):
            least[name] = _bound(min(each.min for each in found), up=False)
            greatest[name] = _bound(max(each.max for each in found), up=True)
        is_bytes = column.physical_type == "BYTE_ARRAY" and column.logical_type.type == "NONE"
        if name not in least and "." not in name and not is_bytes:
            return count_only(metadata.num_rows)
    return json.dumps({"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls})


def count_only(rows: int) -> str:
    return json.dumps({"numRecords": rows})


def _bound(value: int | datetime, *, up: bool) -> int | str:
    """Returns a bound of a column for the log. Times have milliseconds there; a maximum is rounded up."""
    if isinstance(value, int):
        return value
    value = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    if up and value.microsecond % 1000:
        value += MILLISECOND
    return value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03d}Z"
