"""Following: how far a follower has read its partition. It never waits.

The async and the blocking `Follower` (`stream_client.consume.follower`) share it.
"""

from __future__ import annotations

from collections.abc import Sequence

from stream_client.consume.page import OnHole, Page, find_holes
from stream_client.consume.reader import Merge, Reader
from stream_client.core.partition_handle import PartitionHandle
from stream_client.errors import PositionBeyondEnd, StreamRemade
from stream_client.requests import Requests
from stream_service.extensions import FromIndex, RichMessage, Start


class Following:
    """The reader of one partition, its current page, and the indexes that were missing so far."""

    def __init__(
        self,
        session: Requests,
        handle: PartitionHandle,
        start: Start,
        *,
        page_messages: int,
        stop_at_end: bool,
        on_hole: OnHole | None,
    ) -> None:
        self._session = session
        self._merge = Merge()
        self._reader = Reader(
            session,
            handle,
            start,
            page_messages=page_messages,
            waits=not stop_at_end,
            on_page=self._merge.arrived,
        )
        self._stop_at_end = stop_at_end
        self._on_hole = on_hole
        self._ended = False
        self._rest: Sequence[RichMessage] = ()
        self._at = 0
        self._next_index: int | None = None
        # A start at 0 means the earliest stored message, so no message before it is missing.
        self._first_wanted = start.index or None if isinstance(start, FromIndex) else None
        self._holes = 0

    def __repr__(self) -> str:
        handle = self._reader.handle
        read = "nothing read" if self._next_index is None else f"read to before {self._next_index}"
        return f"<Follower of {handle.name!r}, partition {handle.partition}: {read}>"

    @property
    def next_index(self) -> int | None:
        """The index after the last message of the latest page; None before the first page with messages."""
        return self._next_index

    @property
    def holes(self) -> int:
        """The number of missing indexes before and between messages. Retention and deletion cause them."""
        return self._holes

    def stop(self) -> None:
        """Ends the iteration. A page that arrives later is dropped."""
        self._merge.drop(self._reader)
        self._ended = True

    def _take(self, page: Page) -> None:
        """Stores a page. Raises StreamRemade if the stream was made again, and PositionBeyondEnd if it ends before the
        position."""
        handle, created_us = self._reader.handle, page.created_us
        if created_us is not None:
            if self._reader.created_us not in (0, created_us):
                raise StreamRemade(handle.name, handle.partition, self._next_index or 0)
            self._reader.created_us = created_us
        if page.next_index is not None and self._next_index is not None and page.next_index < self._next_index:
            raise PositionBeyondEnd(
                f"{handle.name!r}, partition {handle.partition} has been read up to {self._next_index} and now ends at "
                f"{page.next_index}: it was made again or has lost messages; follow it anew"
            )
        self._ended = self._stop_at_end and page.at_end
        if page.messages:
            # The reader will not fetch this page again, so the page is stored before any code can raise an error.
            self._rest, self._at = page.messages, 0
            expected = self._first_wanted if self._next_index is None else self._next_index
            self._next_index = page.resume_index
            for first_missing, next_there in find_holes(page.messages, expected):
                self._holes += next_there - first_missing
                if self._on_hole is not None:
                    self._on_hole(handle.partition, first_missing, next_there)
