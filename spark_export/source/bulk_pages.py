"""Reads an index range of a partition in pages, by the protocol `node/stream_bulk/1`.

Several requests wait for their answers at the same time. The caller checks for missing messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TypeAlias

import pyarrow as pa

from ockam.protocol import ProtocolError
from spark_export.errors import BadAnswer
from spark_export.source.options import ReadOptions
from spark_export.source.plan import ReadRange
from stream_client import blocking
from stream_client.arguments import encoded
from stream_client.core.calls import Call
from stream_service.bulk import BULK, BulkHead, BulkRead, split_page

PAGES_AHEAD = 2
"""The number of unanswered requests: the node sends one page while the caller handles another."""
PATIENCE_CHECKS = 5
"""The number of checks for late answers (ten seconds in all) before a request is sent again. A loaded node may need
seconds for a page, and each further copy of the request would cost the node one more page."""
ROW_OVERHEAD_BYTES = 40
"""The bytes that the node adds to the size of each row when it measures a page."""
FIRST_ROWS = 4_096
"""The rows that the first requests ask for; the first page then shows how many rows fit into one page."""


PageBatch: TypeAlias = tuple[BulkHead, pa.RecordBatch | None]
"""A page of consecutive messages of one partition, and its rows; None without rows."""


def read_page(payload: bytes) -> PageBatch:
    """Decodes the node's answer. Raises BadAnswer, also for other rows than announced."""
    try:
        page, arrow = split_page(payload)
    except ProtocolError as error:
        raise BadAnswer(f"not an answer to a {BULK.name}: {error}") from error
    batch = read_batch(arrow)
    # An Arrow stream that is cut between two of its messages is valid, but has fewer rows.
    found = 0 if batch is None else batch.num_rows
    if found != page.rows:
        raise BadAnswer(f"a page of {found} rows where {page.rows} were announced: the node's answer was cut")
    if batch is not None and found:
        indexes = batch.column("index")
        if (indexes[0].as_py(), indexes[-1].as_py()) != (page.start, page.start + found - 1):
            raise BadAnswer(f"a page that does not run from {page.start} to {page.start + found - 1}")
    return page, batch


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
    """A single read of an index range through one client. Pages arrive in the order of their indexes.

    Invariant: the ranges in `_asked`, the unanswered requests, are consecutive. They begin at the next index that
    `pages` will yield and end at `_ask_from`, where the next request begins.
    """

    def __init__(self, client: blocking.StreamClient, wanted: ReadRange, options: ReadOptions) -> None:
        self._session = client.session
        (self._handle,) = self._session.core.find_handles(wanted.stream, [wanted.partition])
        self._ask_from = wanted.start
        self._end = wanted.end
        self._options = options
        self._rows_per_page = FIRST_ROWS
        self._asked: deque[tuple[Call, int]] = deque()

    def pages(self) -> Iterator[PageBatch]:
        """Yields the pages in the order of their indexes. Raises BadAnswer and ClientErrors."""
        try:
            while True:
                while len(self._asked) < PAGES_AHEAD and self._ask_from < self._end:
                    stop = min(self._end, self._ask_from + self._rows_per_page)
                    self._asked.append((self._ask(self._ask_from, stop), stop))
                    self._ask_from = stop
                if not self._asked:
                    return
                call, stop = self._asked.popleft()
                page, batch = read_page(self._session.answered(call).answers[0])
                end = page.start + page.rows
                if end < min(stop, page.next_index):
                    # The page has fewer rows than requested. The remaining rows are read before the later ranges.
                    self._asked.appendleft((self._ask(end, stop), stop))
                if batch is not None and batch.num_rows:
                    # Only 7/8 of the page is planned, so that slightly larger rows still fit in one page.
                    row_bytes = ROW_OVERHEAD_BYTES + batch.nbytes // batch.num_rows
                    fitting = self._options.fetch_bytes * 7 // 8 // row_bytes
                    self._rows_per_page = max(1, min(2 * self._rows_per_page, fitting))
                yield page, batch
        finally:
            for call, _ in self._asked:
                self._session.core.calls.forget(call)

    def _ask(self, start: int, stop: int) -> Call:
        options = self._options
        columns = options.include_data, True, options.verify_checksums
        request = encoded(BULK, BulkRead(1, start, stop, options.fetch_bytes, *columns))
        return self._session.core.call(self._handle, request, patience=PATIENCE_CHECKS)
