"""The part of the log that reads and writes the table of streams, the same in every database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mypy_extensions import mypyc_attr

from ockam.files.text_order import prefix_end
from stream_storage.contract import Record, StreamRecord
from stream_storage.errors import DatabaseCorrupt, IndexConflict, UnknownStreamId, corrupt_text
from stream_storage.log_statements import (
    BEGIN_STREAM_AT,
    DELETE_FROM,
    DELETE_MESSAGES,
    DELETE_STREAM,
    FIND_FITTING,
    FIND_STREAM,
    GET_STREAM,
    INSERT_STREAM,
    LIST_STREAMS,
    LIST_STREAMS_BELOW,
    SEALED_STREAM,
    SET_STREAM_BOUNDS,
    SIZE_FROM,
)
from stream_storage.seal import stream_seal
from stream_storage.statement import Rows, Statement

INDEX_MAX = 2**63 - 1
"""The largest index, and the largest integer of a database."""


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
        self._set_bounds(stream, index, index, stream.size_bytes)

    def cut_from(self, stream_id: int, index: int) -> int:
        self._check_transaction()
        stream = self.get_stream(stream_id)
        if index >= stream.next_index:
            return 0
        deleted_bytes = int(self._execute(SIZE_FROM, (stream_id, index)).fetchone()[0])
        deleted = self._execute(DELETE_FROM, (stream_id, index)).rowcount
        self._set_bounds(stream, min(stream.first_index, index), index, stream.size_bytes - deleted_bytes)
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
        found = self._execute(FIND_FITTING, (stream_id, min(index, INDEX_MAX), min(bytes_max, INDEX_MAX), 1))
        row = found.fetchone()
        return None if row is None else int(row[0])

    def _set_bounds(self, stream: StreamRecord, first_index: int, next_index: int, size_bytes: int) -> None:
        """Sets the bounds and the size of a stream. Raises DatabaseCorrupt if its row is damaged."""
        name, partition, created_us, attributes, *bounds, seal = self._execute(
            SEALED_STREAM, (stream.stream_id,)
        ).fetchone()
        # A new seal over a damaged row would hide the damage, so the old seal is checked first.
        if seal != stream_seal(name, partition, created_us, attributes, *bounds):
            raise DatabaseCorrupt(corrupt_text(f"the row of the stream {stream.name!r} is not what was written"))
        values = (first_index, next_index, size_bytes)
        made = stream_seal(name, partition, created_us, attributes, *values)
        self._execute(SET_STREAM_BOUNDS, (*values, made, stream.stream_id))

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
