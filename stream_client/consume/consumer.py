"""Consumers: iterators that resume at their saved position, over one or several partitions of a stream.
Follower: an iterator over one partition, without a saved position.

A message counts as processed when the program asks for the next message. The position of a partition is the next index
to read, as in the real Ockam clients. Saves are sent in order, and never cover an unprocessed message: after a crash,
the consumer gets the messages after the last save again.

A position belongs to one incarnation of the stream. If the stream is made again, or somebody sets the position while
the consumer runs, the consumer continues elsewhere and reports an event (`StreamRemade`, `PositionReset`). With a node
that does not tell incarnations apart, only a position beyond the stream's end shows that it was made again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Self, TypeVar, Unpack

from stream_client.admin import StreamAdmin
from stream_client.consume.page import ConsumerArguments, ConsumerOptions, OnHole, Page, find_holes, with_options_shown
from stream_client.consume.reader import LONG_POLL_S, Merge, Reader
from stream_client.consume.readings import PartitionReading, ReadingLoop
from stream_client.core.partition_handle import PartitionHandle
from stream_client.errors import PositionBeyondEnd, RequestTimeout, StreamRemade
from stream_client.positions import Positions, to_positions
from stream_client.session import ClientSession
from stream_service.extensions import FromIndex, RichMessage, Start

T = TypeVar("T")


class BaseConsumer:
    """The base class of all consumers, a context manager; subclasses add the iteration. The end of its block saves the
    positions. After a block without an error, the last message counts as processed."""

    def __init__(self, streams: Sequence[StreamAdmin], positions: Positions, options: ConsumerOptions) -> None:
        self._loop = ReadingLoop(streams[0].session, streams[0].handle.name, positions, options)
        self._handles = [stream.handle for stream in streams]
        self._name: str | None = getattr(positions, "client_id", None)

    def __repr__(self) -> str:
        name = "" if self._name is None else f" {self._name!r}"
        where = ", ".join(str(handle.partition) for handle in self._handles)
        return (
            f"<{type(self).__name__}{name} of {self._handles[0].name!r}, partition {where}: {self.processed} processed>"
        )

    @property
    def holes(self) -> int:
        """The number of missing indexes between messages since the start. Retention and deletion cause them."""
        return self._loop.holes

    @property
    def processed(self) -> int:
        """The number of messages that the program has processed since the start."""
        return self._loop.processed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error, the program perhaps has not processed its last message, so that message does not count.
        try:
            if kind is None:
                await self.save(with_last=True)
            else:
                self._loop.save_nowait()
        finally:
            self._loop.stop()

    async def save(self, *, with_last: bool = False) -> None:
        """Saves the changed positions now: when this method returns, they are safely stored. `with_last`: whether the
        last message that the program has received counts as processed."""
        if with_last:
            self._loop.commit()
        await self._loop.save()


class Consumer(BaseConsumer):
    """Iterates over the messages of one partition, beginning at the saved position."""

    @with_options_shown
    def __init__(self, stream: StreamAdmin, positions: Positions | str, **options: Unpack[ConsumerArguments]) -> None:
        super().__init__((stream,), to_positions(stream, positions), ConsumerOptions(**options))
        self._partition = stream.handle.partition

    def __aiter__(self) -> Messages[RichMessage]:
        return self.messages()

    @property
    def next_index(self) -> int | None:
        """The next index to read: all messages with lower indexes are processed. None before the first iteration."""
        reading = self._loop.readings.get(self._partition)
        return None if reading is None else reading.next_index

    def messages(self, *, stop_at_end: bool = False) -> Messages[RichMessage]:
        """Returns an iterator over the messages in order, to the end of the stream (`stop_at_end`) or without end. You
        can stop at any message, and continue with a new iterator."""
        return Messages(self._loop, self._handles, stop_at_end, PartitionReading.hand_out)


class PartitionedConsumer(BaseConsumer):
    """Iterates over the messages of several partitions, page by page, in the order in which the pages arrive."""

    @with_options_shown
    def __init__(
        self, partitions: Sequence[StreamAdmin], positions: Positions | str, **options: Unpack[ConsumerArguments]
    ) -> None:
        super().__init__(partitions, to_positions(partitions[0], positions), ConsumerOptions(**options))

    def watch_partitions(self, known: int) -> None:
        """Makes the consumer read partitions that are added later, too. known: the present number of partitions."""
        self._loop.watch_partitions(self._handles, known)

    def __aiter__(self) -> Messages[tuple[int, RichMessage]]:
        return self.messages()

    @property
    def next_indexes(self) -> dict[int, int]:
        """The next index to read of each partition, by partition number. Empty before the first iteration."""
        return {partition: reading.next_index for partition, reading in self._loop.readings.items()}

    def messages(self, *, stop_at_end: bool = False) -> Messages[tuple[int, RichMessage]]:
        """Returns an iterator over pairs of partition number and message, in order within each partition, to the end of
        all partitions (`stop_at_end`) or without end."""
        return Messages(self._loop, self._handles, stop_at_end, PartitionReading.hand_out_named)


class Messages(Generic[T]):
    """An iterator over the messages of a consumer. You can stop at any message and continue later."""

    def __init__(
        self,
        loop: ReadingLoop,
        handles: Sequence[PartitionHandle],
        stop_at_end: bool,
        show: Callable[[PartitionReading], T],
    ) -> None:
        self._loop = loop
        self._handles = handles
        self._stop_at_end = stop_at_end
        self._show = show
        self._begun = self._ended = False
        self._reading: PartitionReading | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """Returns the next item. This call counts all messages returned before as processed."""
        reading = self._current()
        if reading is None:
            reading = self._reading = None if self._ended else await self._find_reading()
            if reading is None:
                self._ended = True
                raise StopAsyncIteration
        return self._show(reading)

    def _current(self) -> PartitionReading | None:
        """Counts all messages returned before as processed. Returns the partition whose page has the next message; None
        if this page has ended."""
        # A blocking client sends saves and lease renewals inside calls only, so also between two messages of one page.
        if self._loop.shell.is_blocking:
            self._loop.shell.send_lagging()
        self._loop.commit()
        reading = self._reading
        return reading if reading is not None and reading.has_messages else None

    async def aclose(self) -> None:
        """Does nothing, since there is nothing to close. `contextlib.aclosing` calls this method."""

    async def _find_reading(self) -> PartitionReading | None:
        if not self._begun:
            await self._loop.add(self._handles)
            self._loop.begin()
            self._begun = True
        return await self._loop.next_reading(self._stop_at_end)


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

    def _take(self, page: Page) -> None:
        """Stores a page. Raises StreamRemade, and PositionBeyondEnd if the stream ends before `next_index`."""
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
