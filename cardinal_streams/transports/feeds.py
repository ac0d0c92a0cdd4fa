"""Subscriptions as a consumer's shell needs them: several at once, each a page ahead, taken when they may be. It
decides nothing: which feed may be handed over, the machine says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import anyio
import anyio.abc

from cardinal_streams.transports.transport import Delivery, Receiver

NO_DELIVERIES: Sequence[Delivery] = ()


class Feed:
    """One subscription, of the normal feed or, with the ancestor's hash, of a reorg's channel.

    Invariant: `page` from `at` on was read and not handed over; the next page is asked for when that is empty.
    """

    def __init__(self, ancestor: bytes | None) -> None:
        self.ancestor = ancestor
        self.page: Sequence[Delivery] = NO_DELIVERIES
        self.at = 0
        self.ended = False
        self.error: Exception | None = None
        self.receiver: Receiver | None = None
        self.scope = anyio.CancelScope()
        self._taken = anyio.Event()

    @property
    def has_page(self) -> bool:
        return self.at < len(self.page)

    def take(self) -> Delivery:
        """The next delivery, which there is."""
        delivery = self.page[self.at]
        self.at += 1
        if self.at >= len(self.page):
            self._taken.set()
        return delivery

    async def pump(
        self, subscribe: Callable[[], AbstractAsyncContextManager[Receiver]], on_change: Callable[[], None]
    ) -> None:
        """Reads page after page, each when the one before has been taken. An error ends it, and is kept."""
        with self.scope:
            try:
                async with subscribe() as receiver:
                    self.receiver = receiver
                    while page := await receiver.receive_some():
                        self._taken = anyio.Event()
                        self.page, self.at = page, 0
                        on_change()
                        await self._taken.wait()
            except Exception as error:
                self.error = error
            self.receiver = None
            self.ended = True
            on_change()


class FeedSet:
    """The feeds of one consumer. The tasks that read run in the task group given."""

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
        """Begins to read; safe to repeat while the feed is open."""
        if ancestor not in self._feeds:
            feed = self._feeds[ancestor] = Feed(ancestor)
            self._tasks.start_soon(feed.pump, lambda: self._subscribe(topics, position), self.wake)

    def close(self, ancestor: bytes | None) -> None:
        """Reads no more; what was read ahead is forgotten."""
        feed = self._feeds.pop(ancestor, None)
        if feed is not None:
            feed.scope.cancel()

    def next_readable(self, is_allowed: Callable[[Feed], bool]) -> Feed | None:
        """An allowed feed that has a page, each in its turn. Raises the error that ended a feed."""
        for ancestor, feed in tuple(self._feeds.items()):
            if feed.error is not None:
                raise feed.error
            if feed.has_page and is_allowed(feed):
                self._feeds[ancestor] = self._feeds.pop(ancestor)
                return feed
        return None

    def all_ended(self, is_allowed: Callable[[Feed], bool]) -> bool:
        """Whether nothing more can come of the allowed feeds, nor change which are allowed."""
        return all(feed.ended and not feed.has_page for feed in self._feeds.values() if is_allowed(feed))

    def receivers(self) -> list[Receiver]:
        """Those that are being read."""
        return [feed.receiver for feed in self._feeds.values() if feed.receiver is not None]

    def wake(self) -> None:
        self._changed.set()

    async def wait(self, timeout_s: float) -> None:
        """Until a page comes, a feed ends or `wake` is called, or the time is over."""
        with anyio.move_on_after(timeout_s):
            await self._changed.wait()
        self._changed = anyio.Event()
