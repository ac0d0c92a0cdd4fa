"""The feeds of a consumer: several subscriptions that are read at the same time, each one page ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager

import anyio
import anyio.abc

from cardinal_streams.transports.transport import Delivery, Receiver
from stream_client import PositionBeyondEnd, StreamNotFound, StreamRemade

# The errors of a stream that was deleted, and perhaps made again.
GONE = (StreamNotFound, StreamRemade, PositionBeyondEnd)


class Feed:
    """One subscription: the normal feed, i.e. the application's topics, or for an `ancestor`, the channel of its reorg.
    Invariant: the deliveries of `page` were read and not yet given to the machine. The next page is read when none is
    left."""

    def __init__(self, ancestor: bytes | None) -> None:
        self.ancestor = ancestor
        self.page: deque[Delivery] = deque()
        self.ended = False
        self.error: Exception | None = None
        self.receiver: Receiver | None = None
        self.scope = anyio.CancelScope()
        self._taken = anyio.Event()

    @property
    def has_page(self) -> bool:
        return bool(self.page)

    def take(self) -> Delivery:
        """Takes the next delivery of the page. The caller must have checked `has_page`."""
        delivery = self.page.popleft()
        if not self.page:
            self._taken.set()
        return delivery

    async def pump(
        self,
        subscribe: Callable[[Mapping[str, int]], AbstractAsyncContextManager[Receiver]],
        position: Mapping[str, int],
        on_change: Callable[[], None],
    ) -> None:
        """Reads page after page, each when the one before was taken. An error ends the reading, and is stored in
        `error`. If a reorg channel was deleted, the next channel of that name is read from its beginning."""
        with self.scope:
            try:
                while not self.ended:
                    try:
                        await self._read(subscribe(position), on_change)
                        self.ended = True
                    except GONE:
                        if self.ancestor is None:
                            raise
                        position = {}
            except Exception as error:
                self.error = error
            self.receiver = None
            self.ended = True
            on_change()

    async def _read(self, subscription: AbstractAsyncContextManager[Receiver], on_change: Callable[[], None]) -> None:
        async with subscription as receiver:
            self.receiver = receiver
            while page := await receiver.receive_some():
                self._taken = anyio.Event()
                self.page = deque(page)
                on_change()
                await self._taken.wait()


class FeedSet:
    def __init__(
        self,
        tasks: anyio.abc.TaskGroup,
        subscribe: Callable[[Collection[str], Mapping[str, int]], AbstractAsyncContextManager[Receiver]],
    ) -> None:
        self._tasks = tasks
        self._subscribe = subscribe
        self._feeds: dict[bytes | None, Feed] = {}
        self._changed = anyio.Event()

    def open(self, ancestor: bytes | None, topics: Collection[str], position: Mapping[str, int]) -> None:
        """Begins to read a feed at the offsets of `position`, unless it is open."""
        if ancestor not in self._feeds:
            feed = self._feeds[ancestor] = Feed(ancestor)
            self._tasks.start_soon(feed.pump, lambda at: self._subscribe(topics, at), position, self.wake)

    def close(self, ancestor: bytes | None) -> None:
        """Ends the reading of a feed, and drops the deliveries that were read but not taken."""
        feed = self._feeds.pop(ancestor, None)
        if feed is not None:
            feed.scope.cancel()

    def next_readable(self, is_allowed: Callable[[Feed], bool]) -> Feed | None:
        """Returns an allowed feed that has deliveries, or None. The feeds take turns. Raises the error that ended a
        feed."""
        for ancestor, feed in tuple(self._feeds.items()):
            if feed.error is not None:
                raise feed.error.with_traceback(None)
            if feed.has_page and is_allowed(feed):
                self._feeds[ancestor] = self._feeds.pop(ancestor)
                return feed
        return None

    def all_ended(self, is_allowed: Callable[[Feed], bool]) -> bool:
        return all(feed.ended and not feed.has_page for feed in self._feeds.values() if is_allowed(feed))

    def receivers(self, is_allowed: Callable[[Feed], bool] = lambda feed: True) -> list[Receiver]:
        return [feed.receiver for feed in self._feeds.values() if feed.receiver is not None and is_allowed(feed)]

    def wake(self) -> None:
        self._changed.set()

    async def wait(self, timeout_s: float) -> None:
        """Waits until a page arrives, a feed ends, `wake` is called, or `timeout_s` seconds are over."""
        with anyio.move_on_after(timeout_s):
            await self._changed.wait()
        self._changed = anyio.Event()
