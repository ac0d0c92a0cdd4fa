"""Reads an index range of one partition in a Spark task, as record batches.

A node is read in pages by the protocol `node/stream_bulk/1`. Several requests wait for their answers at the same time.
At the end, the reader checks that every index of the range was read or is lost. Lost messages raise DataLoss, or are
logged and skipped. The driver plans the range.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

import pyarrow as pa

from ockam.protocol import ProtocolError
from spark_export.errors import BadAnswer, DataLoss, SourceError, SourceUnreachable, StreamMissing
from spark_export.source.catalog import database_path
from spark_export.source.node import RetryBound, connected, find_partition
from spark_export.source.options import ReadOptions
from spark_export.source.plan import GONE, MADE_AGAIN, LostRange, ReadRange, deleted_below, ends_at
from spark_export.source.schema import batch_of_columns, batch_of_messages, check_batch
from stream_client import AccessDenied, RequestRefused, blocking
from stream_client.arguments import encoded
from stream_client.core.calls import Call
from stream_service.bulk import BULK, BulkHead, BulkRead, split_page
from stream_service.extensions import RICH_PULL, FromIndex, RichPull
from stream_storage.sqlite.bulk.arrow_pages import ArrowPage, ArrowPages, Columns, PagesError, StreamGone

PAGES_AHEAD = 2
"""The number of unanswered requests: the node sends one page while the caller handles another."""
PATIENCE_CHECKS = 5
"""The number of checks for late answers (ten seconds in all) before a request is sent again. A loaded node may need
seconds for a page, and each further copy of the request would cost the node one more page."""
ROW_OVERHEAD_BYTES = 40
"""The bytes that the node adds to the size of each row when it measures a page."""
FIRST_ROWS = 4_096
"""The rows that the first requests ask for; the first page then shows how many rows fit into one page."""
PULL_PAGE_MESSAGES = 1_000
PageBatch: TypeAlias = tuple[BulkHead, pa.RecordBatch | None]
"""A page of consecutive messages of one partition, and its rows; None without rows."""

logger = logging.getLogger("stream_node.spark")


def report_losses(losses: list[LostRange], fail: bool) -> None:
    """Raises DataLoss for losses if `fail` is True, and otherwise logs each loss."""
    if losses and fail:
        more = f", and {len(losses) - 1} more ranges" if len(losses) > 1 else ""
        raise DataLoss(f"data is lost: {losses[0]}{more}; set failOnDataLoss=false to go on without it")
    for loss in losses:
        logger.warning("skipped, failOnDataLoss=false: %s", loss)


class RangeReader:
    """A single read of an index range. `batches` yields all rows of the range in order, each row once.

    bulk_refusal: why the node refused a bulk read, so that the rest was read by pulls; else None.

    Invariant: every row of the range with an index less than `next_index` was yielded or counted in `lost`.
    """

    def __init__(self, wanted: ReadRange, options: ReadOptions) -> None:
        self.wanted = wanted
        self.next_index = wanted.start
        self.rows = 0
        self.lost = 0
        self.bulk_refusal: str | None = None
        self._options = options

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows of the range. Raises DataLoss, SourceUnreachable and other SourceErrors."""
        yield from self._node() if self._options.path is None else self._file(self._options.path)
        if self.rows + self.lost != self.wanted.count or self.next_index != self.wanted.end:
            raise BadAnswer(f"{self.rows} rows, {self.lost} lost, of {self.wanted}: the node did not answer all of it")

    def _node(self) -> Iterator[pa.RecordBatch]:
        bound = RetryBound(self._options.request_timeout_s)
        while self.next_index < self.wanted.end:
            reached = self.next_index
            try:
                with connected(self._options, bound) as client:
                    self._check_same(self._created_us(client))
                    if self.next_index < self.wanted.end:
                        yield from self._pages(client)
            except StreamMissing:
                # The stream was deleted meanwhile. The next turn finds out whether it exists again.
                continue
            except SourceUnreachable as error:
                if self.next_index > reached:
                    bound.renew()
                where = f"{self.wanted.stream}/{self.wanted.partition}"
                error.add_note(f"{where} was read up to {self.next_index} of {self.wanted.end} and no further")
                bound.wait(error)

    def _pages(self, client: blocking.StreamClient) -> Iterator[pa.RecordBatch]:
        """Reads by bulk requests, and after a refusal by pulls, which every node supports."""
        left = replace(self.wanted, start=self.next_index)
        try:
            for page, batch in bulk_pages(client, left, self._options):
                yield from self._page(page, page.stream_id, batch)
                if self.next_index == self.wanted.end:
                    return
        except AccessDenied:
            raise
        except RequestRefused as error:
            self.bulk_refusal = str(error)
            logger.debug("%s refuses a bulk read: %s", client.address, error)
            yield from self._pulls(client)

    def _file(self, path: str) -> Iterator[pa.RecordBatch]:
        options, wanted = self._options, self.wanted
        columns = Columns(options.include_data, True, options.verify_checksums)
        try:
            with ArrowPages(database_path(path)) as pages:
                stream_id = pages.find_stream(wanted.stream, wanted.partition)
                while stream_id is not None and self.next_index < wanted.end:
                    page = pages.read(stream_id, self.next_index, wanted.end, options.fetch_bytes, columns)
                    yield from self._page(page, stream_id, page.batch)
                if stream_id is None:
                    self._check_same(None)
        except StreamGone:
            self._check_same(None)
        except PagesError as error:
            raise SourceError(str(error)) from error

    def _page(
        self, page: BulkHead | ArrowPage, stream_id: int, batch: pa.RecordBatch | None
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a page, and handles the loss of the rows before them."""
        self._check_same(page.created_us)
        if self.next_index == self.wanted.end:
            return
        self._skip_to(min(page.start, self.wanted.end), page.first_index)
        if batch is not None and page.rows:
            if self._options.verify_checksums:
                check_batch(stream_id, batch)
            yield self._given(batch_of_columns(batch, self.wanted.stream, self.wanted.partition, self._options))
        elif self.next_index < self.wanted.end and page.next_index <= self.next_index:
            self._lose(self.wanted.end, ends_at(page.next_index))

    def _pulls(self, client: blocking.StreamClient) -> Iterator[pa.RecordBatch]:
        name, partition = self.wanted.stream, self.wanted.partition
        self._check_same(self._created_us(client))
        (handle,) = client.session.core.find_handles(name, [partition])
        while self.next_index < self.wanted.end:
            limit = min(PULL_PAGE_MESSAGES, self.wanted.end - self.next_index)
            page = client.session.ask(handle, RICH_PULL, RichPull(0, FromIndex(self.next_index), limit, 0))
            messages = [each for each in page.messages if each.index < self.wanted.end]
            if messages:
                first, last = messages[0].index, messages[-1].index
                self._skip_to(first, page.first_index)
                if [each.index for each in messages] != list(range(first, last + 1)):
                    raise BadAnswer(f"{name}/{partition}: a page from {first} to {last} has not all indexes between")
                yield self._given(batch_of_messages(messages, name, partition, self._options))
            elif page.next_index <= self.next_index:
                self._lose(self.wanted.end, ends_at(page.next_index))
            else:
                self._skip_to(min(page.first_index, self.wanted.end), page.first_index)

    def _created_us(self, client: blocking.StreamClient) -> int | None:
        """Returns when the partition was created; None if it does not exist."""
        found = find_partition(client, (self.wanted.stream, self.wanted.partition))
        return None if found is None else found.created_us

    def _given(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.rows += batch.num_rows
        self.next_index += batch.num_rows
        return batch

    def _skip_to(self, index: int, first_index: int) -> None:
        """Counts the rows from `next_index` to `index` as lost. Raises DataLoss if the query does not skip losses."""
        if index > self.next_index:
            if self._options.fail_on_data_loss:
                # A page may end before the first message that still exists. The error names all lost indexes.
                index = max(index, min(first_index, self.wanted.end))
            self._lose(index, deleted_below(first_index))

    def _check_same(self, created_us: int | None) -> None:
        """Handles the loss of the remaining rows if the stream was deleted, or deleted and created again."""
        if created_us is None:
            self._lose(self.wanted.end, GONE)
        elif self.wanted.created_us not in (0, created_us):
            self._lose(self.wanted.end, MADE_AGAIN)

    def _lose(self, end: int, reason: str) -> None:
        gone = replace(self.wanted, start=self.next_index, end=end)
        report_losses([LostRange(gone, reason)], self._options.fail_on_data_loss)
        self.lost += gone.count
        self.next_index = end


def read_page(payload: bytes) -> PageBatch:
    """Decodes the node's answer. Raises BadAnswer, also if the rows are not the announced ones."""
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


def bulk_pages(client: blocking.StreamClient, wanted: ReadRange, options: ReadOptions) -> Iterator[PageBatch]:
    """Yields the pages of an index range in the order of their indexes. Raises BadAnswer and ClientErrors."""
    session = client.session
    (handle,) = session.core.find_handles(wanted.stream, [wanted.partition])
    columns = options.include_data, True, options.verify_checksums

    def ask(start: int, stop: int) -> tuple[Call, int]:
        request = encoded(BULK, BulkRead(1, start, stop, options.fetch_bytes, *columns))
        return session.core.call(handle, request, patience=PATIENCE_CHECKS), stop

    # The unanswered requests, each with the end of its range. Their ranges are consecutive: they begin at the next
    # index to yield and end at `ask_from`, where the next request begins.
    asked: deque[tuple[Call, int]] = deque()
    ask_from, rows_per_page = wanted.start, FIRST_ROWS
    try:
        while True:
            while len(asked) < PAGES_AHEAD and ask_from < wanted.end:
                asked.append(ask(ask_from, min(wanted.end, ask_from + rows_per_page)))
                ask_from = asked[-1][1]
            if not asked:
                return
            call, stop = asked.popleft()
            page, batch = read_page(session.answered(call).answers[0])
            end = page.start + page.rows
            if end < min(stop, page.next_index):
                # The page has fewer rows than requested. The remaining rows are read before the later ranges.
                asked.appendleft(ask(end, stop))
            if batch is not None and batch.num_rows:
                # Only 7/8 of the page is planned, so that slightly larger rows still fit in one page.
                row_bytes = ROW_OVERHEAD_BYTES + batch.nbytes // batch.num_rows
                rows_per_page = max(1, min(2 * rows_per_page, options.fetch_bytes * 7 // 8 // row_bytes))
            yield page, batch
    finally:
        for call, _ in asked:
            session.core.calls.forget(call)
