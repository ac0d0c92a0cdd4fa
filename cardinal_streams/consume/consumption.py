"""The I/O code around a consumer machine, which itself does no I/O: it reads the feeds (subscriptions) that the machine
asks for, gives each message to the machine, and saves checkpoints. `consuming` defines the items of an iteration."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Generic, Self, TypeAlias, TypeVar

import anyio
import anyio.abc
import anyio.lowlevel
import msgspec

from cardinal_streams.application import Application
from cardinal_streams.consume.checkpoints import CheckpointStore
from cardinal_streams.limits import RecentMap
from cardinal_streams.machines.consumer_machine import ChainConsumer
from cardinal_streams.machines.events import (
    Checkpoint,
    CloseReorgChannel,
    Missing,
    OpenReorgChannel,
    PrefixUnmet,
    ReadAgain,
)
from cardinal_streams.machines.unordered_machine import UnorderedConsumer
from cardinal_streams.prefixes import Tracked
from cardinal_streams.transports.transport import Delivery, Receiver, Transport, reorg_topic, source_of, split_source
from stream_client import PositionBeyondEnd, StreamNotFound, StreamRemade
from stream_client.shell.async_shell import background_tasks

# The errors of a stream that was deleted, and perhaps made again.
GONE = (StreamNotFound, StreamRemade, PositionBeyondEnd)


class Feed:
    """One subscription: to the application's topics if `ancestor` is None, else to the channel of the reorg that begins
    after the block `ancestor`.
    Invariant: the deliveries in `page` were read and not yet given to the machine. The next page is read when `page` is
    empty."""

    def __init__(self, ancestor: bytes | None) -> None:
        self.ancestor = ancestor
        self.page: deque[Delivery] = deque()
        self.ended = False
        self.error: Exception | None = None
        self.receiver: Receiver | None = None
        self.scope = anyio.CancelScope()
        self._taken = anyio.Event()

    @property
    def ends(self) -> Mapping[str, int]:
        """By source, the offset after the last record, as far as the receiver knows it."""
        return {} if self.receiver is None else self.receiver.ends

    def take(self) -> Delivery:
        """Takes the next delivery of the page, which must not be empty."""
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
        """Reads the next page whenever a page was taken. An error ends the reading, and is stored in `error`. If a
        reorg channel was deleted, the next channel of that name is read from its beginning."""
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


# The number of reorg channels whose offsets are remembered, so that a channel that is opened again continues there.
CHANNELS_REMEMBERED = 64

OnEvent: TypeAlias = Callable[[Any], None]
"""A function that receives the events that do not become items of the iteration (`events.ConsumerEvent`)."""


M = TypeVar("M", bound=ChainConsumer | UnorderedConsumer)
T = TypeVar("T")


class Consumption(Generic[M, T]):
    """An iteration over the items of one consumer machine, for one task. Other tasks may call `done` on items.
    Invariant: each event of the machine either became an item in `_items` or was passed to `on_event`."""

    def __init__(
        self,
        machine: M,
        application: Application,
        topics: tuple[str, ...],
        transport: Transport,
        store: CheckpointStore | None,
        save_interval_s: float,
        on_event: OnEvent | None,
    ) -> None:
        self.machine = machine
        self._application = application
        self._topics = topics
        self._transport = transport
        self._tasks: anyio.abc.TaskGroup
        self._stop_at_end = False
        self._feeds: dict[bytes | None, Feed] = {}
        self._changed = anyio.Event()
        self._store = store
        self._save_interval_s = save_interval_s
        self._on_event = on_event
        self._items: deque[T] = deque()
        self._save_due_s = self._check_due_s = math.inf
        self._ends: dict[str, int] = {}
        self._sources: dict[tuple[str, int], str] = {}
        self._read: dict[str, int] = {}
        self._created: dict[str, int] = {}
        self._channel_offsets: RecentMap[bytes, int] = RecentMap(CHANNELS_REMEMBERED)

    @asynccontextmanager
    async def running(self, known: Checkpoint, wants: Tracked, stop_at_end: bool) -> AsyncIterator[None]:
        """Reads the feeds, beginning at the checkpoint `known`, until the `async with` block ends. If it ends without
        an exception, a checkpoint is saved."""
        async with background_tasks() as self._tasks:
            self._stop_at_end = stop_at_end
            self.handle([PrefixUnmet(pattern) for pattern in self._application.unmet(wants)])
            await self._begin(known)
            yield
            await self.save()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """Returns the next item, and waits until there is one. Raises the error that ended a feed (subscription)."""
        while not self._items:
            await self._save_if_due()
            # Messages that have arrived come first. At the end of all feeds, the machine may still return events, for
            # blocks that were put off or at the beginning of a chain. Otherwise the iteration ends or waits.
            feed = self._next_readable()
            if feed is not None:
                self._hand_over(feed)
                await anyio.lowlevel.checkpoint()
            elif self._is_at_end() and (events := self.machine.at_end()):
                self.handle(events)
            # While unfinished updates forbid every feed, the iteration only waits.
            elif (self.machine.feeds.normal or self.machine.feeds.channels) and self._all_ended():
                await self.save()
                raise StopAsyncIteration
            else:
                await self._do_when_idle()
                # Until a page arrives, a feed ends, `_wake` is called, or something is due.
                with anyio.move_on_after(min(self._save_due_s, self._check_due_s) - anyio.current_time()):
                    await self._changed.wait()
                self._changed = anyio.Event()
        await self._save_if_due()
        # The item stays in the queue until it is delivered for certain, so that a cancellation loses none.
        await self._deliver(self._items[0])
        await anyio.lowlevel.checkpoint()
        return self._items.popleft()

    def checkpoint(self) -> Checkpoint:
        """Returns the checkpoint after the last item that is done. Another consumer can continue with it."""
        topics = {*self._topics, *map(self._channel_of, self.machine.channels)}
        self._created = {source: at for source, at in self._created.items() if split_source(source)[0] in topics}
        return msgspec.structs.replace(self.machine.checkpoint(), created=self._created)

    async def save(self) -> None:
        """Saves a checkpoint durably, if items were done since the last save."""
        if self._store is not None and self._save_due_s < math.inf:
            # The time is cleared first: an item that is done during this save makes another save due.
            self._save_due_s = math.inf
            try:
                await self._store.save(self.checkpoint())
            except BaseException:
                self._save_due_s = anyio.current_time()
                raise

    def why_incomplete(self, hash_: bytes) -> Missing:
        return self.machine.why_incomplete(hash_)

    def lags(self) -> dict[str, int]:
        """Returns, by source (`topic:partition`), the number of messages that the consumer has not taken yet. During a
        reorg the normal feed is not read; then the transport is asked where its topics end."""
        ends = dict(self._ends)
        for feed in self._feeds.values():
            for source, end in feed.ends.items():
                ends[source] = max(end, ends.get(source, 0))
        return {source: end - self._read.get(source, 0) for source, end in ends.items()}

    def finished(self, *, at_once: bool = False) -> None:
        """Notes that an item is done: a save becomes due, now (`at_once`) or after the interval, and feeds that had to
        wait may be read again."""
        if self._store is not None and (at_once or self._save_due_s == math.inf):
            self._save_due_s = anyio.current_time() + (0 if at_once else self._save_interval_s)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()

    def handle(self, events: list[Any]) -> None:
        """Makes each event an item or passes it to `on_event`. Some events also open or close feeds."""
        for event in events:
            item = self._item_of(event)
            if item is not None:
                self._items.append(item)
                continue
            if isinstance(event, OpenReorgChannel):
                self.open_channel(event.hash)
            elif isinstance(event, CloseReorgChannel):
                self._close_feed(event.hash)
            # The feed is opened anew at the lower offsets; pages that were read ahead are dropped.
            elif isinstance(event, ReadAgain):
                self._close_feed(event.ancestor)
                if event.ancestor is None:
                    self._read.update(event.position)
                    self._open_feed(None, self._topics, event.position)
                else:
                    self._channel_offsets.put(event.ancestor, min(event.position.values()))
                    self.open_channel(event.ancestor)
            if self._on_event is not None:
                self._on_event(event)

    async def _begin(self, checkpoint: Checkpoint) -> None:
        """Gives the consumer machine the messages from the offsets in `Checkpoint.history` on, then opens the feeds."""
        ends = {self._channel_of(reorg.hash): reorg.offset for reorg in checkpoint.open_reorgs}
        for source, offset in checkpoint.history.items():
            topic, _ = split_source(source)
            # The channel of an open reorg is opened below at `reorg.offset`, so its history ends at that offset.
            end = ends.get(topic, math.inf)
            async with self._transport.subscribe((topic,), {source: offset}, stop_at_end=True) as receiver:
                while page := await receiver.receive_some():
                    for each in page:
                        if each.offset < end:
                            self.handle(self.machine.receive_history(each.key, each.value, source, each.offset))
        self._created = dict(checkpoint.created)
        self._read.update(checkpoint.position)
        for reorg in checkpoint.open_reorgs:
            self._channel_offsets.put(reorg.hash, reorg.offset)
        self._open_feed(None, self._topics, checkpoint.position)
        for ancestor in self.machine.channels:
            self.open_channel(ancestor)

    def open_channel(self, ancestor: bytes) -> None:
        """Begins to read the channel (topic) of the reorg with this common ancestor, where reading stopped earlier."""
        topic = self._channel_of(ancestor)
        source = source_of(topic, 0)
        # Messages before the offset count as read, also after a restart. Else the channel would never be at its end.
        offset = self._read[source] = self._channel_offsets.get(ancestor) or 0
        self._open_feed(ancestor, (topic,), {source: offset})

    def _open_feed(self, ancestor: bytes | None, topics: Collection[str], position: Mapping[str, int]) -> None:
        """Begins to read a feed at the offsets of `position`, unless it is open."""
        if ancestor not in self._feeds:
            feed = self._feeds[ancestor] = Feed(ancestor)
            subscribe = partial(self._transport.subscribe, topics, stop_at_end=self._stop_at_end)
            self._tasks.start_soon(feed.pump, subscribe, position, self._wake)

    def _close_feed(self, ancestor: bytes | None) -> None:
        """Ends the reading of a feed, and drops the deliveries that were read but not taken."""
        feed = self._feeds.pop(ancestor, None)
        if feed is not None:
            feed.scope.cancel()

    def _next_readable(self) -> Feed | None:
        """Returns a feed that may be read and has deliveries, or None. The feeds take turns. Raises the error that
        ended a feed."""
        for ancestor, feed in tuple(self._feeds.items()):
            if feed.error is not None:
                raise feed.error.with_traceback(None)
            if feed.page and self._is_allowed(feed):
                self._feeds[ancestor] = self._feeds.pop(ancestor)
                return feed
        return None

    def _channel_of(self, ancestor: bytes) -> str:
        return reorg_topic(self._application.default_topic, ancestor)

    def _hand_over(self, feed: Feed) -> None:
        receive, receive_reorg = self.machine.receive, self.machine.receive_reorg
        ancestor = feed.ancestor
        # The receiver learns from pages when reorg channels, and topics younger than this consumer, were created. The
        # times are noted with the first message: until then the machine's offset can be that of an earlier channel.
        if feed.receiver is not None:
            self._created.update(feed.receiver.created)
        while feed.page:
            delivery = feed.take()
            where = (delivery.topic, delivery.partition)
            source = self._sources.get(where)
            if source is None:
                source = self._sources[where] = delivery.source
            self._read[source] = delivery.offset + 1
            if ancestor is None:
                events = receive(delivery.key, delivery.value, source, delivery.offset)
            else:
                self._channel_offsets.put(ancestor, delivery.offset + 1)
                events = receive_reorg(ancestor, delivery.key, delivery.value, source, delivery.offset)
            # An event can forbid reading this feed, so the rest of the page waits.
            if events:
                self.handle(events)
                return

    def _is_allowed(self, feed: Feed) -> bool:
        feeds = self.machine.feeds
        return feeds.normal if feed.ancestor is None else feed.ancestor in feeds.channels

    def _is_at_end(self) -> bool:
        """Whether all feeds that may be read now were read to their present ends, as far as these are known."""
        ends = [each for feed in self._feeds.values() if self._is_allowed(feed) for each in feed.ends.items()]
        is_read = bool(ends) and all(self._read.get(source, 0) >= end for source, end in ends)
        return is_read or self._all_ended()

    def _all_ended(self) -> bool:
        return all(feed.ended and not feed.page for feed in self._feeds.values() if self._is_allowed(feed))

    def _item_of(self, event: object) -> T | None:
        """Returns the item that an event of the machine becomes; None for an event without an item."""
        raise NotImplementedError

    async def _deliver(self, item: T) -> None:
        """Called before an item is returned, perhaps more than once."""

    async def _do_when_idle(self) -> None:
        """Called each time before the iteration waits, because no feed that may be read has a message."""

    async def _save_if_due(self) -> None:
        if anyio.current_time() >= self._save_due_s:
            await self.save()
