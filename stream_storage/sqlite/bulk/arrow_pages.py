"""Reads a range of one stream from the database file as Arrow record batches, in a process other than the node's.

The database driver (ADBC) contains its own copy of SQLite. Two copies in one process do not see each other's locks, and
when one closes the file, the locks of both are lost. So the node reads through a child process
(`stream_storage.sqlite.bulk.child_main`); Spark's workers read the file directly. This module imports nothing else of
the project, which is perhaps not installed on those workers."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

import pyarrow as pa

BUSY_TIMEOUT_MS = 5_000
"""How long a read waits for another connection. Without a timeout, which the driver does not set, a read fails while
another connection opens or closes the write-ahead log."""
MAPPED_BYTES = 2 * 1024**3
"""The bytes of the file that are read through a memory mapping, in a fifth less time. SQLite allows no more."""
ROWS_MAX = 16_384
"""The largest number of rows in a page. Keys and headers (at most 20 KiB a row) have no known size before the read."""
ASSUMED_ROW_BYTES = 1_024
"""The assumed size of a row of a stream from which no row has been read yet."""
ROW_OVERHEAD_BYTES = 40
"""The most that index, time, checksum and the offsets of the other columns take in one row."""
MEMORY_BYTES_MAX = 128 * 1024 * 1024
"""The most data that one statement for several rows reads into memory. If a row has more than its equal share, the
range is read again with a statement for fewer rows."""


class PagesError(Exception):
    """The error of a database file that could not be read. Its text gives the reason."""


class StreamGone(PagesError):
    """The error of reading a stream that is no longer in the database."""


class PagesDamaged(PagesError):
    """The error of reading damaged rows: a message is missing, or a value has the wrong type."""


@dataclass(frozen=True)
class ArrowPage:
    """One page of a stream: rows with consecutive indexes, and the bounds of the stream after they were read.

    created_us: the time of the stream's creation, in microseconds since 1970.
    start: the index of the first row; if the page has no rows, the index at which the next read has to start.
    batch: the columns `index` and `time_us`, and if requested, `checksum`, `key`, `beside` (the headers) and `data`.
        The columns `key` and `beside` are omitted if no row has a value in them."""

    created_us: int
    first_index: int
    next_index: int
    start: int
    batch: pa.RecordBatch

    @property
    def rows(self) -> int:
        return int(self.batch.num_rows)


@dataclass(frozen=True)
class Columns:
    """The columns to read in addition to index and time. beside: keys and headers."""

    data: bool = True
    beside: bool = True
    checksum: bool = False


class ArrowPages:
    """A read-only connection to the database file that reads pages as Arrow, for one thread. It is a context manager,
    and raises PagesError if the file cannot be opened."""

    def __init__(self, path: str) -> None:
        import adbc_driver_sqlite.dbapi as driver

        self._error: type[Exception] = driver.Error
        self._row_bytes: dict[int, int] = {}
        self._with_beside: set[int] = set()
        try:
            # Without autocommit, the first read would begin a transaction that never ends, and no later commit would
            # become visible.
            self._connection = driver.connect(f"file:{quote(path)}?mode=ro", autocommit=True)
            self._fetch(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
            self._fetch(f"PRAGMA mmap_size={MAPPED_BYTES}")
            self._fetch("SELECT count(*) FROM streams")
        except driver.Error as error:
            raise PagesError(f"{path} cannot be read: {error}") from error

    def __enter__(self) -> ArrowPages:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(self._error):
            self._connection.close()

    def find_stream(self, name: str, partition: int) -> int | None:
        """Returns the id of a stream-partition, or None. Raises PagesError."""
        quoted = name.replace("'", "''")
        statement = f"SELECT id FROM streams WHERE name = '{quoted}' AND partition = {int(partition)}"
        try:
            found = self._fetch(statement)
        except self._error as error:
            raise PagesError(f"the database cannot be read: {error}") from error
        return int(found.column(0)[0].as_py()) if found.num_rows else None

    def read(self, stream_id: int, start: int, end: int, bytes_max: int, columns: Columns) -> ArrowPage:
        """Reads rows from `start` up to, not including, `end`: as many as fit into `bytes_max` bytes, but one at least.
        Raises StreamGone, PagesDamaged, PagesError."""
        try:
            return self._read(stream_id, start, end, bytes_max, columns)
        except self._error as error:
            raise PagesError(f"the database cannot be read: {error}") from error

    def _read(self, stream_id: int, start: int, end: int, bytes_max: int, columns: Columns) -> ArrowPage:
        row_bytes = self._row_bytes.get(stream_id, ASSUMED_ROW_BYTES)
        rows = max(1, min(ROWS_MAX, end - start, bytes_max // row_bytes))
        batch = self._rows(stream_id, start, min(end, start + rows), columns)
        # One of the rows is large. Fewer rows have a larger share of the memory each, and a single row has no limit.
        while batch is None:
            rows = max(1, rows // 16)
            batch = self._rows(stream_id, start, min(end, start + rows), columns)
        batch = _fitting(batch, bytes_max)
        if batch.num_rows:
            # The estimated row size falls to half its value at most, so that one page of small rows does not make the
            # next page far too large.
            seen_bytes = _size(batch) // batch.num_rows
            self._row_bytes[stream_id] = max(seen_bytes, ROW_OVERHEAD_BYTES, min(row_bytes, bytes_max // rows) // 2)
        bounds = self._bounds(stream_id)
        unread = range(max(start, bounds[1]), min(end, start + rows, bounds[2]))
        if unread and not batch.num_rows:
            # These messages were stored after the rows were read, or they are missing. Reading the first one once more
            # tells which.
            start, rows = unread.start, 1
            batch = self._rows(stream_id, start, start + 1, columns)
            assert batch is not None, "a single row may have any size"
            bounds = self._bounds(stream_id)
        return ArrowPage(*bounds, _checked(batch, start, rows, end, bounds), batch)

    def _rows(self, stream_id: int, start: int, end: int, columns: Columns) -> pa.RecordBatch | None:
        """Returns the rows of a range, or None if one of several rows is larger than its share of the memory."""
        # If several rows are read, each row may take an equal share of the memory.
        share_bytes = MEMORY_BYTES_MAX // (end - start) if columns.data and end - start > 1 else None
        names = ['idx AS "index"', "time_us", *(["checksum"] if columns.checksum else [])]
        # Most streams have neither keys nor headers, and not reading these saves a tenth of the time. So this is tried
        # unless the last page had some.
        if columns.beside and stream_id not in self._with_beside:
            condition = "key IS NULL AND headers IS NULL"
            if share_bytes is not None:
                condition += f" AND length(data) <= {share_bytes}"
            plain = [*names, *(["data"] if columns.data else [])]
            batch = self._fetch(_select(plain, stream_id, start, end, condition), end - start)
            if batch.num_rows == end - start:
                return _typed(batch)
        if columns.beside:
            names += ["key", "headers AS beside"]
        if columns.data:
            is_small = share_bytes is not None
            names.append(f"CASE WHEN length(data) <= {share_bytes} THEN data END AS data" if is_small else "data")
        batch = self._fetch(_select(names, stream_id, start, end), end - start)
        if share_bytes is not None and batch.column("data").null_count:
            return None
        typed = _typed(batch)
        has_beside = not {"key", "beside"}.isdisjoint(typed.schema.names)
        (self._with_beside.add if has_beside else self._with_beside.discard)(stream_id)
        return typed

    def _bounds(self, stream_id: int) -> tuple[int, int, int]:
        found = self._fetch(f"SELECT created_us, first_index, next_index FROM streams WHERE id = {int(stream_id)}")
        if not found.num_rows:
            raise StreamGone(f"there is no stream {stream_id}; it has been deleted")
        created_us, first_index, next_index = (column[0].as_py() for column in found.columns)
        return created_us, first_index, next_index

    def _fetch(self, statement: str, rows_max: int = 1) -> pa.RecordBatch:
        """Runs a statement of at most `rows_max` rows, and returns all of them in one batch: the driver guesses the
        type of a column from the first batch."""
        with self._connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(max(1, rows_max))})
            cursor.execute(statement)
            with cursor.fetch_record_batch() as reader:
                batches = [batch for batch in reader if batch.num_rows]
                if len(batches) > 1:
                    raise PagesError("the driver gave more than one batch; report this mistake")
                return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=reader.schema)


INTEGERS = ("index", "time_us", "checksum")


def _select(names: Sequence[str], stream_id: int, start: int, end: int, condition: str = "true") -> str:
    return (
        f"SELECT {', '.join(names)} FROM messages WHERE stream_id = {int(stream_id)} "
        f"AND idx >= {int(start)} AND idx < {int(end)} AND {condition} ORDER BY idx"
    )


def _typed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the batch with the right type for every column, because the driver may have guessed a wrong one, and
    without empty columns `key` and `beside`. Raises PagesDamaged if a value has another type than its column."""
    columns: dict[str, pa.Array] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        wanted = pa.int64() if name in INTEGERS else pa.binary()
        if column.type == wanted:
            columns[name] = column
        elif column.null_count == len(column):
            columns[name] = pa.nulls(len(column), wanted)
        else:
            raise PagesDamaged(f"a message has {column.type} in its column {name}; run `stream-node verify`")
        if columns[name].null_count and name not in ("key", "beside"):
            raise PagesDamaged(f"a message has nothing in its column {name}; run `stream-node verify`")
    for name in ("key", "beside"):
        if name in columns and columns[name].null_count == len(batch):
            del columns[name]
    return pa.RecordBatch.from_pydict(columns)


def _fitting(batch: pa.RecordBatch, bytes_max: int) -> pa.RecordBatch:
    """Returns as many of the first rows of a batch as fit into `bytes_max` bytes, but at least one row."""
    if _size(batch) <= bytes_max or batch.num_rows <= 1:
        return batch
    fitting = bisect_right(range(1, batch.num_rows + 1), bytes_max, key=lambda rows: _size(batch.slice(0, rows)))
    return batch.slice(0, max(1, fitting))


def _size(batch: pa.RecordBatch) -> int:
    return int(batch.nbytes) + ROW_OVERHEAD_BYTES * int(batch.num_rows)


def _checked(batch: pa.RecordBatch, start: int, rows: int, end: int, bounds: Sequence[int]) -> int:
    """Returns the index of the first row of a page, or without rows, the index at which the next read has to start.
    Raises PagesDamaged if a message is missing, but not below the first index: retention can delete those meanwhile."""
    _, first_index, next_index = bounds
    if not batch.num_rows:
        missing_to = min(end, start + rows, next_index)
        if max(start, first_index) < missing_to:
            raise PagesDamaged(f"messages {max(start, first_index)} to {missing_to - 1} are missing")
        return max(start, min(first_index, start + rows))
    first, last = batch.column("index")[0].as_py(), batch.column("index")[-1].as_py()
    if last - first + 1 != batch.num_rows or first > max(start, first_index):
        raise PagesDamaged(f"messages are missing between {max(start, min(first, first_index))} and {last}")
    return int(first)


def ipc_size_bytes(batch: pa.RecordBatch) -> int:
    """Returns the number of bytes that `write_ipc` writes for a batch. No row is copied."""
    sink = pa.MockOutputStream()
    _write(batch, sink)
    return int(sink.size())


def write_ipc(batch: pa.RecordBatch, room: memoryview) -> None:
    """Writes a batch as an Arrow IPC stream into memory of `ipc_size_bytes(batch)` bytes."""
    _write(batch, pa.FixedSizeBufferWriter(pa.py_buffer(room)))


def _write(batch: pa.RecordBatch, sink: pa.NativeFile) -> None:
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
