"""Reads an index range of one partition in a Spark task, as record batches.

At the end, the reader checks that every index of the range was read or is lost. Lost messages raise DataLoss, or are
logged and skipped. The driver plans the range.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from spark_export.errors import BadAnswer, DataLoss, SourceError, SourceUnreachable, StreamMissing
from spark_export.source.bulk_pages import BulkPages
from spark_export.source.catalog import database_path
from spark_export.source.node import RetryBound, connected, find_partition
from spark_export.source.options import ReadOptions
from spark_export.source.plan import GONE, MADE_AGAIN, LostRange, ReadRange
from spark_export.source.schema import batch_of_columns, batch_of_messages, check_batch
from stream_client import AccessDenied, RequestRefused, blocking
from stream_service.bulk import BulkHead
from stream_service.extensions import RICH_PULL, FromIndex, RichPull
from stream_storage.sqlite.bulk.arrow_pages import ArrowPage, ArrowPages, Columns, PagesError, StreamGone

PULL_PAGE_MESSAGES = 1_000

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
        if self._options.path is not None:
            yield from self._file(self._options.path)
            self._check()
            return
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
        self._check()

    def _pages(self, client: blocking.StreamClient) -> Iterator[pa.RecordBatch]:
        """Reads by bulk requests, and after a refusal by pulls, which every node supports."""
        left = replace(self.wanted, start=self.next_index)
        try:
            for page, batch in BulkPages(client, left, self._options).pages():
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
            self._lose(self.wanted.end, f"the stream ends at {page.next_index}, before that")

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
                self._lose(self.wanted.end, f"the stream ends at {page.next_index}, before that")
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
            self._lose(index, f"deleted by retention or truncation; the first is now {first_index}")

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

    def _check(self) -> None:
        """Raises BadAnswer if the yielded rows and the lost rows together are not the whole range."""
        if self.rows + self.lost != self.wanted.count or self.next_index != self.wanted.end:
            raise BadAnswer(f"{self.rows} rows, {self.lost} lost, of {self.wanted}: the node did not answer all of it")
