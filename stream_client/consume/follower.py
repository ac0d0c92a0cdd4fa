"""Follower: iterates over the messages of one partition and waits for new ones. It fetches messages page by page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from stream_client.consume.reader import LONG_POLL_S, Following
from stream_client.errors import RequestTimeout
from stream_client.session import ClientSession
from stream_service.extensions import RichMessage


class Follower(Following):
    """An iterator over the messages of one partition, to the stream's end or without end. `Stream.follow` returns it.

    Iterate over messages, or take whole pages with `next_page`. You can stop and iterate again later: the follower
    continues after the last message that it has returned.
    """

    _session: ClientSession

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RichMessage:
        if self._at >= len(self._rest) and not await self._has_more():
            raise StopAsyncIteration
        # The slice turns a packed page (`PackedMessages`) into a list of messages, all at once.
        if not self._at:
            self._rest = self._rest[:]
        message = self._rest[self._at]
        self._at += 1
        return message

    async def next_page(self) -> Sequence[RichMessage]:
        """Returns the messages of the current page that have not been returned yet, or waits for the next page. The
        result is empty only at the end of the iteration. Raises RequestTimeout if the follower stops at the stream's
        end and the node does not answer."""
        if self._at >= len(self._rest) and not await self._has_more():
            return ()
        page, self._rest = self._rest[self._at :], ()
        return page

    async def _has_more(self) -> bool:
        """Waits for the next page with messages, and requests the page after it. False at the end of the iteration."""
        while not self._ended:
            self._reader.ask()
            await self._wait_page()
            page = self._reader.take()
            self._take(page)
            # The next page travels while the program uses this page. Without this, every page would cost a round trip.
            if not self._ended:
                self._reader.ask()
                await self._session.shell.yield_control()
            if page.messages:
                return True
        return False

    async def _wait_page(self) -> None:
        # A follower without end may wait for a page for ever. One that stops at the end must not hang if the node is
        # silent.
        timeout_s = self._session.answer_timeout_s
        if not self._stop_at_end or timeout_s is None:
            while self._merge.next_nowait() is None:
                await self._session.shell.wait(self._merge.arrival())
            return
        await self._session.shell.wait(self._merge.arrival(), timeout_s + LONG_POLL_S)
        if self._merge.next_nowait() is None:
            raise RequestTimeout(f"{self._session.address} has not answered a pull for {timeout_s + LONG_POLL_S:g} s")
