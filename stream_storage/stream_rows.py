"""The part of the log that reads and changes the table of streams, the same in every database, with its statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final

from mypy_extensions import mypyc_attr
from sqlalchemy import Integer, bindparam, literal_column, select, tuple_

from ockam.files.text_order import prefix_end
from stream_storage.contract import Append, Log, Record, StreamRecord
from stream_storage.errors import DatabaseCorrupt, IndexConflict, UnknownStreamId, corrupt_text
from stream_storage.schema import streams
from stream_storage.seal import STREAM_COLUMNS, stream_seal
from stream_storage.statement import Rows, Statement, compiled, sql

# Streams.

_record = streams.c["id", "name", "partition", "first_index", "next_index", "size_bytes", "created_us"]
_by_id = streams.c.id == bindparam("stream_id")
_listed = (
    select(*_record)
    .where(tuple_(streams.c.name, streams.c.partition) > tuple_(bindparam("after_name"), bindparam("after_partition")))
    .order_by(streams.c.name, streams.c.partition)
    .limit(bindparam("limit", type_=Integer))
    .offset(literal_column("0", Integer))
)

INSERT_STREAM: Final = sql(
    "INSERT INTO streams (name, partition, created_us, seal, first_index, next_index, size_bytes) "
    "VALUES (:name, :partition, :created_us, :seal, 0, 0, 0) ON CONFLICT DO NOTHING"
)
FIND_STREAM: Final = compiled(
    select(*_record).where(streams.c.name == bindparam("name"), streams.c.partition == bindparam("partition")),
    *("name", "partition"),
)
GET_STREAM: Final = compiled(select(*_record).where(_by_id), "stream_id")
LIST_STREAMS: Final = compiled(_listed, *("after_name", "after_partition", "limit"))
LIST_STREAMS_BELOW: Final = compiled(
    _listed.where(streams.c.name < bindparam("end_name")),
    *("after_name", "after_partition", "end_name", "limit"),
)
"""`LIST_STREAMS` for names below `end_name`, to list the names that begin with a prefix."""
BEGIN_STREAM_AT: Final = sql(
    "UPDATE streams SET first_index = :first, next_index = :next, seal = :seal WHERE id = :stream_id AND next_index = 0"
)
SEALED_STREAM: Final = compiled(select(*streams.c[*STREAM_COLUMNS, "seal"]).where(_by_id), "stream_id")
"""Reads the arguments of `stream_storage.seal.stream_seal`, and the seal."""
DELETE_STREAM: Final = sql("DELETE FROM streams WHERE id = :stream_id")


@cache
def set_columns(*names: str) -> Statement:
    """Returns the statement that sets these columns of a stream, in the order of the table, and its seal."""
    changes = ", ".join(f"{name} = :{name}" for name in (*names, "seal"))
    return sql(f"UPDATE streams SET {changes} WHERE id = :stream_id")


# Messages.

DELETE_BELOW: Final = sql("DELETE FROM messages WHERE stream_id = :stream_id AND idx < :end")
DELETE_MESSAGES: Final = sql("DELETE FROM messages WHERE stream_id = :stream_id")
SIZE_FROM: Final = sql(
    "SELECT coalesce(sum(length(data)), 0) FROM messages WHERE stream_id = :stream_id AND idx >= :start"
)
DELETE_FROM: Final = sql("DELETE FROM messages WHERE stream_id = :stream_id AND idx >= :start")
FIND_FITTING: Final = sql(
    "SELECT idx FROM messages WHERE stream_id = :stream_id AND idx >= :index AND length(data) <= :bytes_max "
    "ORDER BY idx LIMIT 1"
)
"""Finds the first message, from an index on, that is small enough; the length is known without reading the value."""


INDEX_MAX = 2**63 - 1
"""The largest index, and the largest integer of a database."""
LIST_PAGE = 10_000


@mypyc_attr(allow_interpreted_subclasses=True)
class StreamRows:
    """The part of `stream_storage.contract.Log` for streams. execute: runs a statement in the session of the log."""

    def __init__(self, execute: Callable[[Statement, tuple[Any, ...]], Rows]) -> None:
        self._execute = execute

    def ensure_stream(self, name: str, partition: int, created_us: int) -> StreamRecord:
        self._check_transaction()
        record = self.find_stream(name, partition)
        if record is None:
            seal = stream_seal(name, partition, created_us, None, 0, 0, 0)
            self._execute(INSERT_STREAM, (name, partition, created_us, seal))
            record = self.find_stream(name, partition)
            assert record is not None, "it was inserted"
        return record

    def begin_at(self, stream_id: int, index: int) -> None:
        self._check_transaction()
        stream = self.get_stream(stream_id)
        # The seal covers the attributes too, which are not in the record.
        name, partition, created_us, attributes, *_ = self._execute(SEALED_STREAM, (stream_id,)).fetchone()
        seal = stream_seal(name, partition, created_us, attributes, index, index, stream.size_bytes)
        if self._execute(BEGIN_STREAM_AT, (index, index, seal, stream_id)).rowcount == 0:
            raise IndexConflict(stream_id, stream.next_index, index)

    def skip_to(self, stream_id: int, index: int) -> None:
        self._check_transaction()
        stream = self.get_stream(stream_id)
        if stream.first_index != stream.next_index or index < stream.next_index:
            raise IndexConflict(stream_id, stream.next_index, index)
        change_stream(self._execute, stream_id, first_index=index, next_index=index)

    def cut_from(self, stream_id: int, index: int) -> int:
        self._check_transaction()
        stream = self.get_stream(stream_id)
        if index >= stream.next_index:
            return 0
        deleted_bytes = int(self._execute(SIZE_FROM, (stream_id, index)).fetchone()[0])
        deleted = self._execute(DELETE_FROM, (stream_id, index)).rowcount
        first_index, size_bytes = min(stream.first_index, index), stream.size_bytes - deleted_bytes
        change_stream(self._execute, stream_id, first_index=first_index, next_index=index, size_bytes=size_bytes)
        return deleted

    def delete_stream(self, stream_id: int) -> None:
        self._check_transaction()
        if self._execute(DELETE_STREAM, (stream_id,)).rowcount == 0:
            raise UnknownStreamId(stream_id)
        self._execute(DELETE_MESSAGES, (stream_id,))

    def find_stream(self, name: str, partition: int) -> StreamRecord | None:
        row = self._execute(FIND_STREAM, (name, partition)).fetchone()
        return None if row is None else StreamRecord(*row)

    def get_stream(self, stream_id: int) -> StreamRecord:
        row = self._execute(GET_STREAM, (stream_id,)).fetchone()
        if row is None:
            raise UnknownStreamId(stream_id)
        return StreamRecord(*row)

    def list_streams(
        self, prefix: str = "", after: tuple[str, int] | None = None, limit: int = 1000
    ) -> list[StreamRecord]:
        name, partition = max(after, (prefix, -1)) if after is not None else (prefix, -1)
        end = prefix_end(prefix)
        limit = min(limit, INDEX_MAX)
        if end is None:
            rows = self._execute(LIST_STREAMS, (name, partition, limit))
        else:
            rows = self._execute(LIST_STREAMS_BELOW, (name, partition, end, limit))
        return [StreamRecord(*row) for row in rows.fetchall()]

    def find_fitting(self, stream_id: int, index: int, bytes_max: int) -> int | None:
        row = self._execute(FIND_FITTING, (stream_id, min(index, INDEX_MAX), min(bytes_max, INDEX_MAX))).fetchone()
        return None if row is None else int(row[0])

    def _check_transaction(self) -> None:
        raise NotImplementedError

    def _check_page(self, stream_id: int, index: int, records: list[Record], at_end: bool) -> None:
        """Raises UnknownStreamId, or DatabaseCorrupt if a page lacks messages or has some outside the stream's
        bounds. at_end: whether the read has found that no stored message follows the page."""
        stream = self.get_stream(stream_id)
        # `expected` is the first index that should be stored and was not read.
        expected = max(index, stream.first_index)
        if records:
            first, last = records[0][0], records[-1][0]
            if first < expected or last >= stream.next_index:
                reason = f"stream {stream_id} has messages outside {stream.first_index}..{stream.next_index - 1}"
                raise DatabaseCorrupt(corrupt_text(reason))
            if first == expected:
                expected = last + 1 if at_end else stream.next_index
        elif not at_end:
            # The page is empty since the first message is too large for a page.
            return
        if expected < stream.next_index:
            raise DatabaseCorrupt(corrupt_text(f"message {expected} of stream {stream_id} is missing"))


def each_stream(log: Log) -> Iterator[StreamRecord]:
    """Yields all streams, sorted by name and partition. They are read page by page."""
    after = None
    while page := log.list_streams(after=after, limit=LIST_PAGE):
        yield from page
        after = (page[-1].name, page[-1].partition)


def change_stream(execute: Callable[[Statement, tuple[Any, ...]], Rows], stream_id: int, **changes: object) -> None:
    """Changes columns of the row of a stream, if there is one, and its seal. changes: by column, in the order of the
    table. Raises DatabaseCorrupt if the row is damaged: a new seal would hide that."""
    row = execute(SEALED_STREAM, (stream_id,)).fetchone()
    if row is None:
        return
    if row[-1] != stream_seal(*row[:-1]):
        raise DatabaseCorrupt(corrupt_text(f"the row of the stream {row[0]!r} is not what was written"))
    changed = dict(zip(STREAM_COLUMNS, row, strict=False)) | changes
    execute(set_columns(*changes), (*changes.values(), stream_seal(*changed.values()), stream_id))


def stream_ends(appends: Sequence[Append]) -> dict[int, list[int]]:
    """Returns for each stream id: its first new index, the index after its last new message, and the new bytes. Raises
    IndexConflict if an append does not begin where the previous append to the same stream ends."""
    ends: dict[int, list[int]] = {}
    for append in appends:
        end = ends.get(append.stream_id)
        if end is None:
            end = ends[append.stream_id] = [append.first_index, append.first_index, 0]
        elif append.first_index != end[1]:
            raise IndexConflict(append.stream_id, end[1], append.first_index)
        end[1] += len(append.data)
        end[2] += append.size_bytes
    return ends
