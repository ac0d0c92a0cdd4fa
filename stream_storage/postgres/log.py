"""Implements the log of messages (`stream_storage.contract.Log`) in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any, Final, Protocol

import psycopg

from stream_storage.checksum import checksum_full, checksums_plain, seed_base
from stream_storage.contract import Append, Record
from stream_storage.errors import DatabaseCorrupt, IndexConflict, StorageReadOnly, corrupt_text, damaged_message
from stream_storage.postgres.server import as_literal, integers_literal
from stream_storage.seal import FIRST_FACTOR, MODULUS, NEXT_FACTOR, SIZE_FACTOR
from stream_storage.statement import Rows, Statement, Values
from stream_storage.stream_rows import INDEX_MAX, StreamRows, stream_ends

COPY_BYTES_MIN = 16 * 1024
"""A single message of this size or more is stored by COPY, though that takes one trip more: in the text of a command,
each byte takes two."""
WINDOW_MAX = 1024
"""The largest number of messages that one statement measures for a page."""

_GROWN: Final = (
    "size_bytes = streams.size_bytes + {size}, seal = "
    f"(seal + {NEXT_FACTOR} * ({{next}} - next_index) + {SIZE_FACTOR} * {{size}}) % {MODULUS}"
)

ADVANCE: Final = (
    f"UPDATE streams SET next_index = ends.next, {_GROWN.format(next='ends.next', size='ends.size')} "
    "FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) AS ends(id, first, next, size) "
    "WHERE streams.id = ends.id AND streams.next_index = ends.first RETURNING streams.id"
)
"""Moves the next index of several streams. Parameters: ids, expected next indexes, new next indexes, added sizes."""

_ALL_MOVED: Final = "SELECT ln((count(*) = {streams})::int) FROM moved"
"""Fails if not all streams have moved, because 0 has no logarithm. Commands such as COMMIT are on their way to the
server behind it, and only a failure keeps the server from doing them."""

PREPARED: Final = (
    "PREPARE append_one (bigint, bigint, bigint, bigint, bigint, bytea, bytea, bytea) AS "
    f"WITH moved AS (UPDATE streams SET next_index = $2 + 1, {_GROWN.format(next='$2 + 1', size='$3')} "
    "WHERE id = $1 AND next_index = $2 RETURNING id), "
    "stored AS (INSERT INTO messages (stream_id, idx, time_us, checksum, key, headers, data) "
    f"SELECT id, $2, $4, $5, $6, $7, $8 FROM moved) {_ALL_MOVED.format(streams=1)}",
    "PREPARE advance_one (bigint, bigint, bigint, bigint) AS "
    f"WITH moved AS (UPDATE streams SET next_index = $3, {_GROWN.format(next='$3', size='$4')} "
    f"WHERE id = $1 AND next_index = $2 RETURNING id) {_ALL_MOVED.format(streams=1)}",
    f"PREPARE advance (bigint[], bigint[], bigint[], bigint[]) AS WITH moved AS ({ADVANCE}) "
    f"{_ALL_MOVED.format(streams='cardinality($1)')}",
)
"""Prepares the statements of appends whose failure a later command may report. Their parameters:

append_one: stream id, index, size, time, checksum, key, headers and data of one message.
advance: the arrays of ADVANCE. advance_one: the same for one stream; the server would plan arrays anew each time."""

TRUNCATE: Final = (
    "WITH gone AS (DELETE FROM messages WHERE stream_id = $1 AND idx < $2 RETURNING octet_length(data) AS size_bytes) "
    "SELECT count(*), coalesce(sum(size_bytes), 0)::bigint FROM gone"
)
TRUNCATE_STREAM: Final = (
    "UPDATE streams SET first_index = $2, size_bytes = size_bytes - $3, seal = (seal + "
    f"{FIRST_FACTOR} * ($2::bigint - first_index) + {MODULUS} - ({SIZE_FACTOR} * $3::bigint) % {MODULUS}) % {MODULUS} "
    "WHERE id = $1"
)

PAGE: Final = (
    "SELECT idx, data, time_us, key, headers, checksum, measured FROM ("
    "SELECT *, count(*) OVER () AS measured, row_number() OVER found AS place, "
    "sum(octet_length(data)) OVER found AS total, first_value(octet_length(data)) OVER found AS first_bytes FROM ("
    "SELECT idx, data, time_us, key, headers, checksum FROM messages "
    "WHERE stream_id = $1 AND idx >= $2 ORDER BY idx LIMIT $3) AS page "
    "WINDOW found AS (ORDER BY idx ROWS UNBOUNDED PRECEDING)) AS sized "
    "WHERE (total <= $4 OR place = 1) AND first_bytes <= $5 ORDER BY idx"
)
"""Reads the messages that fit into a page, and how many were measured; lengths are known without reading values.
Parameters: stream id, first index, messages to measure, largest total size, largest first size."""
IS_THERE: Final = "SELECT 1 FROM messages WHERE stream_id = $1 AND idx = $2"


class LogSession(Protocol):
    """The part of `stream_storage.postgres.session.PostgresSession` that the log uses."""

    @property
    def writes(self) -> bool: ...

    @property
    def in_transaction(self) -> bool: ...

    def begin(self) -> None: ...

    def rollback(self) -> None: ...

    def execute(self, statement: Statement, values: Values = ()) -> Rows: ...

    def run(self, text: str, values: Sequence[Any]) -> psycopg.Cursor[Any]: ...

    def copy(self, text: str, payload: bytes) -> None: ...

    @property
    def defers(self) -> bool: ...

    def later(self, text: bytes, payload: bytes | None = None) -> None: ...


class PostgresLog(StreamRows):
    """The log of messages in one session: a `stream_storage.contract.Log`."""

    def __init__(self, session: LogSession) -> None:
        super().__init__(session.execute)
        self._session = session

    def append(self, appends: Sequence[Append]) -> None:
        self._check_transaction()
        ends = stream_ends(appends)
        if self._session.defers:
            self._append_later(appends, ends)
            return
        # Moving the ends first checks the indexes, so no stored row can be a duplicate or leave a gap.
        self._advance(ends)
        if any(append.data for append in appends):
            self._session.copy(COPY_MESSAGES, copy_rows(appends))

    def truncate_before(self, stream_id: int, index: int) -> int:
        self._check_transaction()
        stream = self.get_stream(stream_id)
        end = min(index, stream.next_index)
        if end <= stream.first_index:
            return 0
        deleted, deleted_bytes = self._session.run(TRUNCATE, (stream_id, end)).fetchone()
        self._session.run(TRUNCATE_STREAM, (stream_id, end, deleted_bytes))
        return int(deleted)

    def read(
        self, stream_id: int, index: int, limit: int, bytes_max: int, *, first_bytes_max: int | None = None
    ) -> list[Record]:
        # A page takes several statements, which must all see the same state of the database. A session that writes
        # sees its own transaction.
        if self._session.in_transaction:
            return self._read(stream_id, index, limit, bytes_max, first_bytes_max)
        self._session.begin()
        try:
            return self._read(stream_id, index, limit, bytes_max, first_bytes_max)
        finally:
            self._session.rollback()

    def _append_later(self, appends: Sequence[Append], ends: dict[int, list[int]]) -> None:
        rows = sum(len(append.data) for append in appends)
        if len(appends) == rows == 1 and len(appends[0].data[0]) < COPY_BYTES_MIN:
            # The usual push: one statement checks the index, moves it and stores the message, with no trip of its own.
            self._session.later(_append_one_text(appends[0]))
            return
        if len(ends) == 1:
            ((stream_id, end),) = ends.items()
            self._session.later(b"EXECUTE advance_one(%d, %d, %d, %d)" % (stream_id, *end))
        elif ends:
            columns = (ends, *zip(*ends.values(), strict=True))
            self._session.later(b"EXECUTE advance(%s)" % b",".join(map(integers_literal, columns)))
        # The check of the indexes comes first. If it fails, the server does not do the COPY behind it.
        if rows:
            self._session.later(COPY_MESSAGES.encode(), copy_rows(appends))

    def _advance(self, ends: dict[int, list[int]]) -> None:
        columns = list(zip(*ends.values(), strict=True))
        moved = self._session.run(ADVANCE, (list(ends), *map(list, columns))).fetchall() if ends else []
        if len(moved) != len(ends):
            known = {stream_id for (stream_id,) in moved}
            refused = next(stream_id for stream_id in ends if stream_id not in known)
            raise IndexConflict(refused, self.get_stream(refused).next_index, ends[refused][0])

    def _read(
        self, stream_id: int, index: int, limit: int, bytes_max: int, first_bytes_max: int | None
    ) -> list[Record]:
        stream = self.get_stream(stream_id)
        begin = max(index, stream.first_index)
        records: list[Record] = []
        room_bytes = bytes_max
        first_max = INDEX_MAX if first_bytes_max is None else min(first_bytes_max, INDEX_MAX)
        while (at := begin + len(records)) < stream.next_index and len(records) < limit:
            # 1. Ask for the next messages, at most as many as there are.
            asked = min(limit - len(records), WINDOW_MAX, stream.next_index - at)
            values = (stream_id, at, asked, min(room_bytes, INDEX_MAX), INDEX_MAX if records else first_max)
            rows = self._session.run(PAGE, values).fetchall()
            # The statement returns its first message whatever its size. Only the first message of a page may exceed the
            # room.
            if records and rows and len(rows[0][1]) > room_bytes:
                break
            if not rows and self._is_too_large(stream_id, at, first_bytes_max):
                break
            # 2. Check that no message is missing, and that each one is what was written.
            if not rows or rows[0][0] != at or rows[-1][0] != at + len(rows) - 1 or rows[0][6] != asked:
                raise _missing(stream_id, at, rows)
            records += _checked(stream_id, rows)
            # 3. Go on, unless the page is full.
            if len(rows) < asked:
                break
            room_bytes -= sum(len(row[1]) for row in rows)
        return records

    def _is_too_large(self, stream_id: int, index: int, first_bytes_max: int | None) -> bool:
        return first_bytes_max is not None and self._session.run(IS_THERE, (stream_id, index)).fetchone() is not None

    def _check_transaction(self) -> None:
        if not self._session.writes:
            raise StorageReadOnly("this session only reads; write in the session that writes")
        assert self._session.in_transaction, "writing needs a transaction"


def _append_one_text(append: Append) -> bytes:
    index, data = append.first_index, append.data[0]
    key = None if append.keys is None else append.keys[0]
    headers = None if append.headers is None else append.headers[0]
    checksum = checksum_full(seed_base(append.stream_id, append.time_us), index, data, key, headers)
    values = (append.stream_id, index, len(data), append.time_us, checksum, key, headers, data)
    return b"EXECUTE append_one(%s)" % b",".join(map(as_literal, values))


_Row = tuple[int, bytes, int, bytes | None, bytes | None, int, int]


def _checked(stream_id: int, rows: list[_Row]) -> list[Record]:
    records: list[Record] = []
    base_of_us, base = -1, 0
    for index, data, time_us, key, headers, checksum, _ in rows:
        if time_us != base_of_us:
            base_of_us, base = time_us, seed_base(stream_id, time_us)
        if checksum != checksum_full(base, index, data, key, headers):
            raise DatabaseCorrupt(corrupt_text(damaged_message(stream_id, index)))
        records.append((index, data, time_us, key, headers))
    return records


def _missing(stream_id: int, index: int, rows: list[_Row]) -> DatabaseCorrupt:
    for row in rows:
        if row[0] != index:
            break
        index += 1
    return DatabaseCorrupt(corrupt_text(f"message {index} of stream {stream_id} is missing"))


COPY_MESSAGES = "COPY messages (stream_id, idx, time_us, checksum, key, headers, data) FROM STDIN (FORMAT BINARY)"

_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END = b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"
_NUMBERS = Struct(">h iq iq iq iq")
"""The number of columns, and the first four columns, each with its length."""
_PLAIN = Struct(">h iq iq iq iq i i i")
"""The fields of `_NUMBERS`, then two columns that are NULL, and the length of the data."""
_LENGTH = Struct(">i")


def copy_rows(appends: Sequence[Append]) -> bytes:
    """Returns the bytes with which COPY stores messages, three times as fast as INSERT. All numbers are big-endian.

    file    "PGCOPY\\n\\377\\r\\n\\0", u32 flags, u32 length of the extension, rows, i16 -1
    row     i16 number of columns, columns
    column  i32 length, value; the length -1 stands for NULL"""
    pieces = [_HEAD]
    for append in appends:
        pieces += _rows(append) if append.keys is None and append.headers is None else _attributed_rows(append)
    pieces.append(_END)
    return b"".join(pieces)


def _rows(append: Append) -> Iterator[bytes]:
    stream_id, index, time_us = append.stream_id, append.first_index, append.time_us
    pack = _PLAIN.pack
    checksums = checksums_plain(seed_base(stream_id, time_us), index, append.data)
    for data, checksum in zip(append.data, checksums, strict=True):
        yield pack(7, 8, stream_id, 8, index, 8, time_us, 8, checksum, -1, -1, len(data))
        yield data
        index += 1


def _attributed_rows(append: Append) -> Iterator[bytes]:
    stream_id, index, time_us = append.stream_id, append.first_index, append.time_us
    base = seed_base(stream_id, time_us)
    nothing: list[bytes | None] = [None] * len(append.data)
    for data, key, headers in zip(append.data, append.keys or nothing, append.headers or nothing, strict=True):
        checksum = checksum_full(base, index, data, key, headers)
        yield _NUMBERS.pack(7, 8, stream_id, 8, index, 8, time_us, 8, checksum)
        for value in (key, headers, data):
            yield _NULL if value is None else _LENGTH.pack(len(value)) + value
        index += 1
