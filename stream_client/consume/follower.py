"""Follower: iterates over the messages of one partition and waits for new ones. It fetches messages page by page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from stream_client.consume.page import OnHole, Page, find_holes
from stream_client.consume.reader import LONG_POLL_S, Merge, Reader
from stream_client.core.partition_handle import PartitionHandle
from stream_client.errors import PositionBeyondEnd, RequestTimeout, StreamRemade
from stream_client.session import ClientSession
from stream_service.extensions import FromIndex, RichMessage, Start


class Follower:
    """An iterator over the messages of one partition, to the stream's end or without end. `Stream.follow` returns it.

    Iterate over messages, or take whole pages with `next_page`. You can stop and iterate again later: the follower
    continues after the last message that it has returned.
    """

    def __init__(
        self,
        session: ClientSession,
        handle: PartitionHandle,
        start: Start,
        *,
        page_messages: int,
        stop_at_end: bool,
        on_hole: OnHole | None,
    ) -> None:
        self._session = session
        self._merge = Merge(session.shell)
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

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RichMessage:
        if self._at >= len(self._rest) and not await self._has_more():
            raise StopAsyncIteration
        message = self._rest[self._at]
        self._at += 1
        return message

    @property
    def next_index(self) -> int | None:
        """The index after the last message of the latest page; None before the first page with messages."""
        return self._next_index

    @property
    def holes(self) -> int:
        """The number of missing indexes before and between messages. Retention and deletion cause them."""
        return self._holes

    async def next_page(self) -> Sequence[RichMessage]:
        """Returns the messages of the current page that have not been returned yet, or waits for the next page. The
        result is empty only at the end of the iteration. Raises RequestTimeout if the follower stops at the stream's
        end and the node does not answer."""
        if self._at >= len(self._rest) and not await self._has_more():
            return ()
        page, self._rest = self._rest[self._at :], ()
        return page

    def stop(self) -> None:
        """Ends the iteration. A page that arrives later is dropped."""
        self._merge.drop(self._reader)
        self._ended = True

    async def _has_more(self) -> bool:
        """Waits for the next page with messages, and requests the page after it. False at the end of the iteration."""
        while not self._ended:
            self._reader.ask()
            await self._wait_page()
            page = self._reader.take()
            self._check(page)
            self._ended = self._stop_at_end and page.at_end
            if page.messages:
                # The reader will not fetch this page again, so the page is stored before any code can raise an error.
                self._rest, self._at = page.messages, 0
                expected = self._first_wanted if self._next_index is None else self._next_index
                self._next_index = page.messages[-1].index + 1
                self._report_holes(page.messages, expected)
            # The next page travels while the program uses this page. Without this, every page would cost a round trip.
            if not self._ended:
                self._reader.ask()
                await self._session.shell.yield_control()
            if page.messages:
                return True
        return False

    def _check(self, page: Page) -> None:
        """Raises StreamRemade if the stream was made again, and PositionBeyondEnd if it ends before the position."""
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

    async def _wait_page(self) -> None:
        # A follower without end may wait for a page for ever. One that stops at the end must not hang if the node is
        # silent.
        timeout_s = self._session.answer_timeout_s
        if not self._stop_at_end or timeout_s is None:
            while await self._merge.next_ready() is None:
                pass
        elif await self._merge.next_ready(timeout_s + LONG_POLL_S) is None:
            raise RequestTimeout(f"{self._session.address} has not answered a pull for {timeout_s + LONG_POLL_S:g} s")

    def _report_holes(self, messages: Sequence[RichMessage], expected: int | None) -> None:
        for first_missing, next_there in find_holes(messages, expected):
            self._holes += next_there - first_missing
            if self._on_hole is not None:
                self._on_hole(self._reader.handle.partition, first_missing, next_there)
