"""Stream and PartitionedStream: one partition of a stream, and several partitions of one stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Unpack

from stream_client.admin import StreamAdmin
from stream_client.arguments import (
    FIRST,
    NEW,
    BytesLike,
    HeadersLike,
    StartLike,
    encoded,
    start_of,
    to_bytes,
    to_headers,
    to_key,
)
from stream_client.arrow import ArrowBatches
from stream_client.consume.consumer import Consumer, Follower, PartitionedConsumer
from stream_client.consume.page import PAGE_MESSAGES, ConsumerArguments, OnHole, Page, page_of, with_options_shown
from stream_client.consume.reader import patience_for
from stream_client.core.calls import answer_of, pulled
from stream_client.core.partition_handle import PartitionHandle
from stream_client.partitions import WINDOW, ByPartition, make_sequences
from stream_client.positions import Positions
from stream_client.publish import PartitionedPublisher, Publisher
from stream_client.session import ClientSession
from stream_client.share.membership import LeaseMember
from stream_client.share.shared_consumer import SharedConsumer
from stream_service.extensions import INFO, RICH_PULL, InfoRequest, RichPull, StreamInfo
from stream_service.names import partition_of
from stream_service.page_codec import decode_rich_page
from stream_service.protocol import StreamMessage


class Stream(StreamAdmin):
    """One partition of a stream: pushes, pulls and consumes its messages. The tasks of one event loop can share it."""

    async def push(self, data: BytesLike, *, key: BytesLike | None = None, headers: HeadersLike = ()) -> int:
        """Stores one message, and returns its index when the node has stored it on disk.

        data: bytes, or text, which is stored in UTF-8.
        key, headers: stored with the data; they need the protocol `node/stream_push/1`. The headers are a dictionary,
            or a list of (name, value) pairs. The key chooses a partition only in `PartitionedStream.push`.

        Raises PushFailed if the node could not store the message, and other ClientErrors, for example RequestTimeout.
        """
        queue = self.handle.queue
        data, key, headers = to_bytes(data, "the data of a message"), to_key(key), to_headers(headers)
        push = queue.push_keyed(data, key, headers) if key is not None or headers else queue.push(data)
        # If the caller gives up, a push that still waits for a connection must not be sent later.
        try:
            await self.session.finished(push, self.session.answer_timeout_s)
        except BaseException:
            queue.forget(push)
            raise
        return push.index

    async def pull(self, index: int = 0, limit: int = PAGE_MESSAGES) -> Sequence[StreamMessage]:
        """Returns up to `limit` messages from `index` on, in order; none if no message is stored at `index` or later.
        Index 0 begins at the earliest stored message."""
        return pulled(await self.session.answered(self.session.core.pull(self.handle, index, limit)))

    async def pull_page(self, start: StartLike = FIRST, limit: int = PAGE_MESSAGES, *, wait_s: float = 0.0) -> Page:
        """Returns a page of up to `limit` messages from `start` on, with times, keys, headers and the stream's first
        and next index. Needs `node/stream_pull/1`. The node waits for a message for at most `wait_s` seconds (5 at
        most), and then answers with an empty page."""
        request = RichPull(0, start_of(start), limit, int(wait_s * 1000))
        payload = encoded(RICH_PULL, request)
        call = self.session.core.call(self.handle, payload, patience=patience_for(wait_s))
        return page_of(answer_of(await self.session.answered(call, wait_s), RICH_PULL, decode_rich_page))

    def follow(
        self,
        start: StartLike = FIRST,
        *,
        stop_at_end: bool = False,
        page_messages: int = PAGE_MESSAGES,
        on_hole: OnHole | None = None,
    ) -> Follower:
        """Returns an iterator over the messages, beginning at `start`.

        stop_at_end: whether the iteration stops at the end of the stream; otherwise it waits for new messages for ever.
        page_messages: the number of messages pulled with one request.
        on_hole: a function called for each range of missing indexes.

        If `start` is a time, LAST or NEW, the node must have the protocol `node/stream_pull/1`; otherwise the iteration
        raises RequestRefused.
        """
        return Follower(
            self.session,
            self.handle,
            start_of(start),
            page_messages=page_messages,
            stop_at_end=stop_at_end,
            on_hole=on_hole,
        )

    @with_options_shown
    def consumer(self, positions: Positions | str, **options: Unpack[ConsumerArguments]) -> Consumer:
        """Returns an iterator over the messages from the saved position, which it saves as it goes.

        positions: the name under which the node saves the position, or an object that saves it (`Positions`).
        page_messages: the number of messages pulled with one request.
        save_messages: save the position after this many messages; None: after each page.
        save_interval_s: the longest time in seconds between the processing of a message and the next save.
        on_hole: called for missing indexes: with the partition, the first missing and the next existing index.
        on_event: a function called with a StreamRemade or a PositionReset. The consumer then goes on at the beginning
            of the new stream, or at the position that somebody has set. None: log a warning.
        idle_delay_s: the seconds before the next request to a node that answers at once although it has no message.
        """
        return Consumer(self, positions, **options)

    def publisher(
        self,
        window: int = WINDOW,
        *,
        idempotent: bool = False,
        publisher_id: BytesLike | None = None,
        first_number: int = 0,
        keep_failed: bool = False,
    ) -> Publisher:
        """Returns a publisher: a context manager that pushes messages without waiting for each confirm.

        The end of its `with` block waits until all pushes are answered.

        window: the largest number of unanswered pushes.
        idempotent: store each message only once, even if the client sends it again after a lost confirm.
        publisher_id: an id that stays the same when the program restarts; it makes the publisher idempotent. The
            program then numbers its messages itself, and a message whose number was stored before is not stored again.
        first_number: with `publisher_id`, the number of the first message of this block; the next ones follow.
        keep_failed: if true, the end of the block does not raise PushesFailed.
        """
        sequences = make_sequences(idempotent, publisher_id, first_number)
        return Publisher(self.session, self.handle, window, sequences, keep_failed)

    async def find_index(self, start: StartLike) -> int:
        """Returns the index of the first stored message that a reader beginning at `start` gets. If there is no such
        message yet, returns the index from which that reader waits for a message."""
        page = await self.pull_page(start, 1)
        return page.messages[0].index if page.messages else page.resume_index

    async def to_arrow(
        self,
        start: StartLike = FIRST,
        end: int | None = None,
        *,
        decode: Callable[[Any], Any] | None = None,
        page_messages: int = PAGE_MESSAGES,
        on_hole: OnHole | None = None,
    ) -> Any:
        """Returns the messages from `start` on as a `pyarrow.RecordBatchReader`, which DuckDB, Polars and pandas read.
        Needs the package `pyarrow` and the protocol `node/stream_pull/1`.

        The columns are `stream`, `partition`, `index`, `timestamp`, `key`, `data` and `headers`. The blocking client
        fetches the messages while the reader is read, on this connection, so read it before you use the client for
        anything else. The async client has fetched them all when this method returns.

        end: the index of the first message that is not read; None: the end of the stream at this moment.
        decode: adds columns to each record batch, such as `spark_export.decoder("json", "id INT")`.
        page_messages: the largest number of messages of a record batch.
        on_hole: a function called for each range of missing indexes.
        """
        last = await self.find_index(NEW) if end is None else end
        arrow = ArrowBatches(self.name, self.partition, decode)
        follower = self.follow(start, stop_at_end=True, page_messages=page_messages, on_hole=on_hole)

        async def next_batch() -> Any:
            page = await follower.next_page()
            if page and page[-1].index >= last - 1:
                follower.stop()
            return arrow.batch([message for message in page if message.index < last]) if page else None

        return arrow.reader(await self.session.shell.iterated(next_batch))


class PartitionedStream(ByPartition[Stream]):
    """Some or all existing partitions of one stream.

    partitions: these partitions, in order of their numbers.

    If the object has all partitions of the stream (for example, from `StreamClient.get_stream`), its publishers,
    consumers and pushes also use partitions that are added later, within some seconds. Then a key can belong to another
    partition than before, for all publishers alike. The earlier messages with this key stay where they are.
    """

    def __init__(self, partitions: Sequence[Stream], *, is_whole: bool = False) -> None:
        """is_whole: whether these are all partitions of the stream."""
        first = partitions[0]
        items = {stream.partition: stream for stream in partitions}
        super().__init__(first.session, first.name, items, is_whole, lambda handle: type(first)(first.session, handle))

    @property
    def partitions(self) -> tuple[Stream, ...]:
        """These partitions, in order of their numbers."""
        return self._items

    def __repr__(self) -> str:
        there = len(self.partitions)
        noun = "partition" if self.count == 1 else "partitions"
        which = f"{self.count} {noun}" if there == self.count else f"{there} of {self.count} {noun}"
        return f"<PartitionedStream {self.name!r}, {which}, of {self.partitions[0].session.address}>"

    @property
    def name(self) -> str:
        return self._name

    @property
    def count(self) -> int:
        """The highest number of these partitions plus one, so a deleted partition below it counts too. The partition of
        a key depends on it."""
        return self._count

    def partition_for(self, key: BytesLike) -> Stream:
        """Returns the partition that stores messages with this key (`stream_service.names.partition_of`). Raises
        StreamNotFound if that partition was deleted."""
        return self.get_partition(partition_of(to_bytes(key, "a key"), self.count))

    def get_partition(self, partition: int) -> Stream:
        """Returns the partition with this number. Raises StreamNotFound if it does not exist."""
        return self._get(partition)

    async def push(
        self,
        data: BytesLike,
        *,
        key: BytesLike | None = None,
        headers: HeadersLike = (),
        partition_key: BytesLike | None = None,
    ) -> int:
        """Stores one message in the partition of its key, and returns its index in that partition. Messages without a
        key are distributed over the partitions in turn. The parameters and errors are those of `Stream.push`.

        partition_key: chooses the partition instead of the key, and is not stored.
        """
        key, partition_key = to_key(key), to_key(partition_key, "a partition key")
        return await self._chosen(key, partition_key).push(data, key=key, headers=headers)

    def publisher(
        self, window: int = WINDOW, *, idempotent: bool = False, keep_failed: bool = False
    ) -> PartitionedPublisher:
        """Returns a publisher that pushes each message to the partition of its key, or to the partitions in turn if
        the message has no key. Each partition has its own `window`. The options are those of `Stream.publisher`."""

        session = self.partitions[0].session

        def open_publisher(handle: PartitionHandle) -> Publisher:
            return Publisher(session, handle, window, make_sequences(idempotent, None, 0), keep_failed)

        publishers = {stream.partition: open_publisher(stream.handle) for stream in self.partitions}
        return PartitionedPublisher(session, self.name, publishers, self._is_whole, open_publisher)

    @with_options_shown
    def consumer(
        self,
        positions: Positions | str,
        *,
        partitions: Sequence[int] | None = None,
        **options: Unpack[ConsumerArguments],
    ) -> PartitionedConsumer:
        """Returns an iterator over the messages of all or some partitions. Each partition begins at its saved position.
        Raises StreamNotFound if a chosen partition does not exist.

        partitions: the numbers of the partitions to read; None: all. The other options are those of `Stream.consumer`.
        """
        chosen = self.partitions if partitions is None else [self.get_partition(partition) for partition in partitions]
        consumer = PartitionedConsumer(chosen, positions, **options)
        if partitions is None and self._is_whole:
            consumer.watch_partitions(self.count)
        return consumer

    @with_options_shown
    def shared_consumer(self, membership: LeaseMember | str, **options: Unpack[ConsumerArguments]) -> SharedConsumer:
        """Returns an iterator over the messages of the partitions that a consumer group assigns to this member. Raises
        StreamNotFound if a partition was deleted, since a group needs all partitions of its stream.

        membership: the name of the group, or a LeaseMember. The options are those of `Stream.consumer`.
        """
        for partition in range(self.count):
            self.get_partition(partition)
        return SharedConsumer(self.partitions, membership, **options)

    async def to_arrow(
        self,
        *,
        decode: Callable[[Any], Any] | None = None,
        page_messages: int = PAGE_MESSAGES,
        on_hole: OnHole | None = None,
    ) -> Any:
        """Returns the messages of all partitions, one partition after the other, as `Stream.to_arrow` does."""
        options: dict[str, Any] = {"decode": decode, "page_messages": page_messages, "on_hole": on_hole}
        readers = [await stream.to_arrow(**options) for stream in self.partitions]
        return ArrowBatches(self.name, 0, decode).reader(chain.from_iterable(readers))

    async def info(self) -> list[StreamInfo]:
        """Returns the description of each partition, in order, as `Stream.info` does."""
        session = self.partitions[0].session
        # All requests go out at once, so this takes one round trip however many partitions there are.
        calls = [session.call(stream.handle, INFO, InfoRequest(0)) for stream in self.partitions]
        return [answer.info for answer in await session.answers_of(calls, INFO)]

    async def delete(self, *, keep_positions: bool = False) -> int:
        """Deletes all partitions as `Stream.delete` does, and returns the number of deleted messages."""
        return sum([await stream.delete(keep_positions=keep_positions) for stream in self.partitions])


async def create_streams(session: ClientSession, name: str | None, partitions: int = 1) -> list[Stream]:
    call = session.core.create(name, partitions)
    await session.answered(call)
    return [Stream(session, handle) for handle in session.core.streams.handles(call)]
