"""Reads an index range of a partition in pages, by the protocol `node/stream_bulk/1`.

Several requests wait for their answers at the same time. The caller checks for missing messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from spark_export.errors import BadAnswer
from spark_export.source.node_client import NodeConnection, body_of
from spark_export.source.node_wire import BareReader, stream_address, uint
from spark_export.source.options import ReadOptions
from spark_export.source.plan import ReadRange

PROTOCOL = "node/stream_bulk/1"
PAGES_AHEAD = 2
"""The number of unanswered requests: the node sends one page while the caller handles another."""
ROW_OVERHEAD_BYTES = 40
"""What the node adds to the size of each row when it measures a page, in bytes."""
FIRST_ROWS = 4_096
"""The rows that the first requests ask for; the first page then shows how many rows fit into one page."""


@dataclass(frozen=True)
class PageBatch:
    """A page of consecutive messages of one partition (see `stream_service.bulk.BulkPage`). `batch` is None without
    rows."""

    stream_id: int
    created_us: int
    first_index: int
    next_index: int
    start: int
    rows: int
    batch: pa.RecordBatch | None


def read_bulk_page(body: memoryview) -> PageBatch:
    """Decodes a page from the body of the node's answer. Raises BadAnswer, also for other rows than announced."""
    reader = BareReader(body)
    reader.uint()
    stream_id, created_us = reader.uint(), reader.u64()
    first_index, next_index, start, rows = (reader.uint() for _ in range(4))
    batch = read_batch(reader.data())
    page = PageBatch(stream_id, created_us, first_index, next_index, start, rows, batch)
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
    """Returns the batch of an Arrow IPC stream without copying data; None without a batch. Raises BadAnswer."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
            batches = list(reader)
    except (pa.ArrowInvalid, OSError) as error:
        raise BadAnswer(f"an Arrow stream that cannot be read: {error}") from error
    if len(batches) > 1:
        raise BadAnswer("an Arrow stream of more than one batch")
    return batches[0] if batches else None


class BulkPages:
    """A single read of an index range through one connection. Pages arrive in the order of their indexes.

    Invariant: the ranges in `_asked`, the unanswered requests, are consecutive. They begin at the next index that
    `pages` will yield and end at `_ask_from`, where the next request begins.
    """

    def __init__(self, node: NodeConnection, wanted: ReadRange, options: ReadOptions) -> None:
        self._node = node
        self._address = stream_address(wanted.stream, wanted.partition)
        self._ask_from = wanted.start
        self._end = wanted.end
        self._options = options
        self._rows_per_page = FIRST_ROWS
        self._asked: list[tuple[bytes, int, int]] = []
        self._answers: dict[bytes, PageBatch] = {}

    def pages(self) -> Iterator[PageBatch]:
        """Yields the pages in the order of their indexes. Raises NodeRefused, ConnectionBroken, BadAnswer."""
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
                # The page has fewer rows than requested. The remaining rows are read before the later ranges.
                self._asked.insert(0, self._ask(reached, stop))
            if page.rows and page.batch is not None:
                # Only 7/8 of the page is planned, so that slightly larger rows still fit in one page.
                row_bytes = ROW_OVERHEAD_BYTES + page.batch.nbytes // page.rows
                fitting = self._options.fetch_bytes * 7 // 8 // row_bytes
                self._rows_per_page = max(1, min(2 * self._rows_per_page, fitting))
            yield page

    def _ask(self, start: int, stop: int) -> tuple[bytes, int, int]:
        options = self._options
        flags = bytes((options.include_data, True, options.verify_checksums))
        body = uint(1) + uint(start) + uint(stop) + uint(options.fetch_bytes) + flags
        return self._node.send(self._address, PROTOCOL, body), start, stop

    def _take(self, wanted: bytes) -> PageBatch:
        while wanted not in self._answers:
            answer = self._node.receive()
            self._answers[answer.return_address] = read_bulk_page(body_of(answer, PROTOCOL))
        return self._answers.pop(wanted)
