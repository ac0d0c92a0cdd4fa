"""Implements the log of messages (`stream_storage.contract.Log`) on one SQLite connection, inside the caller's
transactions."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

from stream_storage.checksum import checksum_full, checksum_plain, checksums_plain, seed_base
from stream_storage.contract import Append, Record
from stream_storage.errors import DatabaseCorrupt, IndexConflict, corrupt_text
from stream_storage.sqlite import statements
from stream_storage.sqlite.errors import storage_error
from stream_storage.sqlite.page import ASSUMED_BYTES, can_join, read_page
from stream_storage.sqlite.rows import execute
from stream_storage.stream_rows import DELETE_BELOW, INDEX_MAX, StreamRows, stream_ends

RUN_ROWS_MIN = 64
"""An append with at least this many messages, without keys and headers, gets INSERT statements of its own, in which
stream and time are parameters once. Smaller appends share statements with stream and time in each row: each statement
releases the interpreter's lock (GIL) and must acquire it again, which costs more for few rows."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _mapped(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Maps SQLite's errors as `stream_storage.sqlite.errors.mapped` does, but faster than a context manager."""

    @wraps(method)
    def mapped(*arguments: _P.args, **named: _P.kwargs) -> _R:
        try:
            return method(*arguments, **named)
        except sqlite3.Error as error:
            raise storage_error(error) from error

    return mapped


class SqliteLog(StreamRows):
    """The log of messages on one SQLite connection: a `stream_storage.contract.Log`.

    appended_bytes: the number of bytes of data passed to `append` so far (for `stream_storage.sqlite.checkpointer`)."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(partial(execute, connection))
        self._connection = connection
        self._joins = can_join(connection)
        self.appended_bytes = 0
        self._assumed_bytes = ASSUMED_BYTES

    @_mapped
    def append(self, appends: Sequence[Append]) -> None:
        self._check_transaction()
        # Move the next index of every stream first. This checks the indexes, so no inserted row can be a duplicate or
        # leave a gap.
        self._advance(stream_ends(appends))
        # The rows of small appends are collected in one flat list of parameters, in the column order of the table.
        rows: list[Any] = []
        for append in appends:
            base = seed_base(append.stream_id, append.time_us)
            # Ways to store the same rows: with keys or headers, a single message, a few messages of one of several
            # appends, and all others as a run of one stream.
            if append.keys is not None or append.headers is not None:
                rows += _flat_rows(append, base)
            elif len(append.data) == 1:
                data = append.data[0]
                checksum = checksum_plain(base, append.first_index, data)
                rows += (append.stream_id, append.first_index, append.time_us, checksum, None, None, data)
            elif len(append.data) < RUN_ROWS_MIN and len(appends) > 1:
                rows += _plain_rows(append, base)
            else:
                self._insert_run(append, checksums_plain(base, append.first_index, append.data))
        for statement, _, values in _chunks(rows, _COLUMNS, statements.INSERT_ROWS):
            self._connection.execute(statement, values)

    @_mapped
    def truncate_before(self, stream_id: int, index: int) -> int:
        self._check_transaction()
        stream = self.get_stream(stream_id)
        end = min(index, stream.next_index)
        if end <= stream.first_index:
            return 0
        # The size is summed before the rows are gone. Index, size and seal of the stream then change in one statement.
        deleted_bytes = self._connection.execute(statements.SIZE_BELOW, (stream_id, end)).fetchone()[0]
        deleted = self._connection.execute(DELETE_BELOW, (stream_id, end)).rowcount
        self._connection.execute(statements.TRUNCATE_STREAM, (end, deleted_bytes, stream_id))
        return deleted

    @_mapped
    def read(
        self, stream_id: int, index: int, limit: int, bytes_max: int, *, first_bytes_max: int | None = None
    ) -> list[Record]:
        # A page takes several statements, which must all see the same state of the database. So they need a
        # transaction.
        if self._connection.in_transaction:
            return self._read(stream_id, index, limit, bytes_max, first_bytes_max)
        self._connection.execute("BEGIN")
        try:
            return self._read(stream_id, index, limit, bytes_max, first_bytes_max)
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _check_transaction(self) -> None:
        assert self._connection.in_transaction, "writing needs a transaction"

    def _read(
        self, stream_id: int, index: int, limit: int, bytes_max: int, first_bytes_max: int | None
    ) -> list[Record]:
        records, at_end = read_page(
            self._connection,
            stream_id,
            min(index, INDEX_MAX),
            limit,
            bytes_max,
            first_bytes_max,
            joins=self._joins,
            assumed_bytes=self._assumed_bytes,
        )
        # The next page mostly has messages of a similar size. Measuring rows that do not fit would be a waste.
        if records:
            self._assumed_bytes = len(records[-1][1])
        # `read_page` has checked that the indexes are consecutive. Messages can still be missing at both ends.
        if at_end or not records or records[0][0] != index:
            self._check_page(stream_id, index, records, at_end)
        return records

    def _advance(self, ends: dict[int, list[int]]) -> None:
        """Moves the next index of several streams. Raises UnknownStreamId and IndexConflict.

        ends: for each stream id, the expected next index, the new next index, and the number of appended bytes."""
        flat: list[int] = []
        for stream_id, (first_index, next_index, size_bytes) in ends.items():
            flat += (stream_id, first_index, next_index, size_bytes)
            self.appended_bytes += size_bytes
        # If several streams are moved, the error must report the next indexes from before the first move. The
        # savepoint keeps these indexes.
        if len(ends) > 1:
            self._connection.execute("SAVEPOINT ends")
        # A few statements of fixed sizes move any number of streams, largest first.
        moved = sum(
            self._connection.execute(statement, values).rowcount
            for statement, _, values in _chunks(flat, 4, statements.ADVANCE_STREAMS)
        )
        # A statement changes only the streams with the expected next index, so the number of changed rows shows
        # whether all streams had it.
        if moved != len(ends):
            self._refuse_ends(ends)
        if len(ends) > 1:
            self._connection.execute("RELEASE ends")

    def _refuse_ends(self, ends: dict[int, list[int]]) -> NoReturn:
        # The streams that have moved already get their old next index back, which the error reports.
        if len(ends) > 1:
            self._connection.execute("ROLLBACK TO ends")
        for stream_id, (first_index, _, _) in ends.items():
            found = self.get_stream(stream_id).next_index
            if found != first_index:
                raise IndexConflict(stream_id, found, first_index)
        raise DatabaseCorrupt(corrupt_text("the table of streams and its index disagree"))

    def _insert_run(self, append: Append, checksums: list[int]) -> None:
        # Checksum and data alternate. The slices fill the list without a loop in Python.
        flat: list[Any] = [None] * (2 * len(checksums))
        flat[0::2] = checksums
        flat[1::2] = append.data
        for statement, row, values in _chunks(flat, 2, statements.INSERT_RUN):
            self._connection.execute(statement, (append.stream_id, append.first_index + row, append.time_us, *values))


_COLUMNS = 7


def _chunks(flat: list[Any], columns: int, sized: Sequence[tuple[int, str]]) -> Iterator[tuple[str, int, list[Any]]]:
    """Yields the statements of fixed sizes that together take all rows, largest first. Each comes with the number of
    its first row and the values of its rows."""
    start = 0
    for count, statement in sized:
        width = columns * count
        while len(flat) - start >= width:
            yield statement, start // columns, flat[start : start + width]
            start += width


def _plain_rows(append: Append, base: int) -> list[Any]:
    """Returns the flat parameters of `INSERT_ROWS` for an append without keys and headers. base: see `seed_base`."""
    count, width = len(append.data), _COLUMNS
    flat: list[Any] = [None] * (width * count)
    # Each column is filled as a whole. Key and headers stay None.
    flat[0::width] = [append.stream_id] * count
    flat[1::width] = range(append.first_index, append.first_index + count)
    flat[2::width] = [append.time_us] * count
    flat[3::width] = checksums_plain(base, append.first_index, append.data)
    flat[6::width] = append.data
    return flat


def _flat_rows(append: Append, base: int) -> list[Any]:
    """Returns the flat parameters of `INSERT_ROWS` for an append with keys or headers."""
    nothing: list[bytes | None] = [None] * len(append.data)
    flat: list[Any] = []
    index = append.first_index
    for data, key, headers in zip(append.data, append.keys or nothing, append.headers or nothing, strict=True):
        checksum = checksum_full(base, index, data, key, headers)
        flat += (append.stream_id, index, append.time_us, checksum, key, headers, data)
        index += 1
    return flat
