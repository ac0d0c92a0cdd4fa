"""Reads pages of a range by `node/stream_bulk/1`, with several requests under way at once. The caller checks for
missing messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from spark_export.errors import BadAnswer
from spark_export.node_client import NodeConnection, body_of
from spark_export.node_wire import BareReader, stream_address, uint
from spark_export.options import ReadOptions
from spark_export.plan import Range

PROTOCOL = "node/stream_bulk/1"
PAGES_AHEAD = 2
"""One page is read and sent while another is taken; more only fill memory."""
ROW_OVERHEAD_BYTES = 40
"""What the node counts for a row beside its columns."""
FIRST_ROWS = 4_096
"""Asked for until the size of a row is known."""


@dataclass(frozen=True)
class BulkPage:
    """A page (see `stream_service.bulk.BulkPage`). batch: its Arrow columns; None if the page has no rows."""

    stream_id: int
    created_us: int
    first_index: int
    next_index: int
    start: int
    rows: int
    batch: pa.RecordBatch | None


def read_bulk_page(body: memoryview) -> BulkPage:
    """Decodes an answer. Raises BadAnswer, also if the number of rows or their indexes are not as announced."""
    reader = BareReader(body)
    reader.uint()
    stream_id, created_us = reader.uint(), reader.u64()
    first_index, next_index, start, rows = (reader.uint() for _ in range(4))
    batch = read_batch(reader.data())
    page = BulkPage(stream_id, created_us, first_index, next_index, start, rows, batch)
    # An Arrow stream that is cut between two of its messages is valid, but has fewer rows.
    found = 0 if batch is None else batch.num_rows
    if found != rows:
        raise BadAnswer(f"a page of {found} rows where {rows} were announced: the node's answer was cut")
    if batch is not None and rows:
        indexes = batch.column("index")
        if indexes[0].as_py() != start or indexes[-1].as_py() != start + rows - 1:
            raise BadAnswer(f"a page that does not run from {start} to {start + rows - 1}")
    return page


def read_batch(stream: memoryview) -> pa.RecordBatch | None:
    """The one batch of an Arrow IPC stream, without copying; None if the stream has none. Raises BadAnswer."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
            batches = list(reader)
    except (pa.ArrowInvalid, OSError) as error:
        raise BadAnswer(f"an Arrow stream that cannot be read: {error}") from error
    if len(batches) > 1:
        raise BadAnswer("an Arrow stream of more than one batch")
    return batches[0] if batches else None


class BulkPages:
    """One pass over a range through one connection. Rows come in order, and each is requested once.

    Invariant: the ranges in `_asked` follow each other, from the caller's position to the next request.
    """

    def __init__(self, node: NodeConnection, wanted: Range, options: ReadOptions) -> None:
        self._node = node
        self._address = stream_address(wanted.stream, wanted.partition)
        self._ask_from = wanted.start
        self._end = wanted.end
        self._options = options
        self._rows_per_page = FIRST_ROWS
        self._asked: list[tuple[bytes, int, int]] = []
        self._answers: dict[bytes, BulkPage] = {}

    def pages(self) -> Iterator[BulkPage]:
        """Pages in order of their indexes. Raises RequestRefused, ConnectionBroken, BadAnswer."""
        while True:
            while len(self._asked) < PAGES_AHEAD and self._ask_from < self._end:
                stop = min(self._end, self._ask_from + self._rows_per_page)
                self._asked.append(self._ask(self._ask_from, stop))
                self._ask_from = stop
            if not self._asked:
                return
            wanted, _, stop = self._asked.pop(0)
            page = self._take(wanted)
            reached = page.start + page.rows
            if reached < min(stop, page.next_index):
                # The answer had room for fewer rows. The rest must be requested before the ranges behind it.
                self._asked.insert(0, self._ask(reached, stop))
            if page.rows and page.batch is not None:
                # Some room is added, so that a page that is a little larger needs no second answer.
                row_bytes = ROW_OVERHEAD_BYTES + page.batch.nbytes // page.rows
                fitting = self._options.fetch_bytes * 7 // 8 // row_bytes
                self._rows_per_page = max(1, min(2 * self._rows_per_page, fitting))
            yield page

    def _ask(self, start: int, stop: int) -> tuple[bytes, int, int]:
        options = self._options
        flags = bytes((options.include_data, True, options.verify_checksums))
        body = uint(1) + uint(start) + uint(stop) + uint(options.fetch_bytes) + flags
        return self._node.send(self._address, PROTOCOL, body), start, stop

    def _take(self, wanted: bytes) -> BulkPage:
        while wanted not in self._answers:
            answer = self._node.receive()
            self._answers[answer.return_address] = read_bulk_page(body_of(answer, PROTOCOL))
        return self._answers.pop(wanted)
