"""A transport over the partitioned streams of a node. Each topic is a stream.

The key of a message is stored with the message, and chooses its partition. The channel of a reorg is a stream with one
partition. The module `checkpoints` saves offsets. The first client that sends to a topic decides how many partitions it
has. Reading creates a topic only if the node cannot list its streams. Topics and partitions that are added later are
noticed within some seconds, by subscriptions and by producers (`stream_client.partitions`)."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

from cardinal_streams.errors import PayloadOutOfRange
from cardinal_streams.message.messages import Record
from cardinal_streams.transports.partition_merge import PartitionMerge
from cardinal_streams.transports.transport import Delivery, is_reorg_topic, source_of, split_source
from stream_client import (
    PartitionedStream,
    PositionBeyondEnd,
    Publisher,
    Push,
    RequestRefused,
    Stream,
    StreamClient,
    StreamNotFound,
    StreamRemade,
)
from stream_client.consume.page import PAGE_MESSAGES, Page, find_holes
from stream_client.consume.reader import Merge, Reader
from stream_client.partitions import PartitionWatch
from stream_client.session import ClientSession
from stream_service.extensions import FromIndex, StreamInfo
from stream_service.names import partition_of

PARTITIONS = 4
# The largest number of records of one partition that wait for their confirm.
WINDOW = 4_096
# The longest key that a node stores, in bytes (`stream_service.limits.StreamLimits`). A node refuses a whole run of
# records because of one longer key.
KEY_BYTES_MAX = 4 * 1024

OnHole: TypeAlias = Callable[[str, int, int], None]
"""Called for records that were deleted before they were read, with the source (`topic:partition`), the offset of the
first deleted record, and the offset of the first record after the gap."""


class StreamTransport:
    """A `Transport` over a client of a node.

    `partitions`: the number of partitions of each topic that the transport creates.
    `window`: the largest number of records of one partition that wait for their confirm.
    `on_hole`: called for records that were deleted before they were read.

    Raises the client's errors (`stream_client.ClientError`), e.g. `PushFailed` if a record could not be stored."""

    def __init__(
        self,
        client: StreamClient,
        *,
        partitions: int = PARTITIONS,
        window: int = WINDOW,
        page_messages: int = PAGE_MESSAGES,
        on_hole: OnHole | None = None,
    ) -> None:
        if partitions < 1:
            raise ValueError(f"{partitions} partitions")
        self.client = client
        self.partitions = partitions
        self._window = window
        self._page_messages = page_messages
        self._on_hole = on_hole
        self._publishers: dict[str, list[Publisher]] = {}
        self._watches: dict[str, PartitionWatch] = {}
        self._outdated: set[str] = set()
        self._created: dict[str, int] = {}

    async def send(self, outgoing: Mapping[str, Sequence[Record]]) -> None:
        """Pushes the records of each topic in order. All are on the node's disk when `send` returns. After an error, it
        is unknown which are stored; sending all of them again is harmless, since consumers drop repetitions. Raises
        `PayloadOutOfRange`, before anything is sent, for a key that is too long for a node."""
        for key, _ in (record for records in outgoing.values() for record in records):
            if len(key) > KEY_BYTES_MAX:
                raise PayloadOutOfRange(f"a key of {len(key)} bytes; a stream stores keys of at most {KEY_BYTES_MAX}")
        sent: list[tuple[Publisher, Push]] = []
        try:
            for topic, records in outgoing.items():
                self._close_outdated(topic)
                publishers = self._publishers.get(topic) or await self._open_publishers(topic)
                for key, value in records:
                    publisher = publishers[partition_of(key, len(publishers))]
                    sent.append((publisher, await publisher.push(value, key=key)))
            await _all_confirmed(sent)
        except StreamNotFound:
            # One of these topics was deleted. The next call makes it again, or finds the new topic of that name.
            self._outdated.update(outgoing.keys() & self._watches.keys())
            raise

    async def ends(self, topics: Collection[str]) -> dict[str, int]:
        return {
            source_of(topic, info.partition): info.next_index for topic in topics for info in await self._infos(topic)
        }

    async def created(self, topics: Collection[str]) -> dict[str, int]:
        found = {
            source_of(topic, info.partition): info.created_us for topic in topics for info in await self._infos(topic)
        }
        # Partitions that a topic does not have any more are forgotten.
        others = {source: at for source, at in self._created.items() if split_source(source)[0] not in topics}
        self._created = others | found
        return found

    @asynccontextmanager
    async def subscribe(
        self, topics: Collection[str], position: Mapping[str, int], *, stop_at_end: bool = False
    ) -> AsyncIterator[StreamReceiver]:
        """Reads all partitions of these topics: endlessly, or up to their present ends (`stop_at_end`). An endless
        subscription waits for topics that do not exist. Raises `PositionBeyondEnd` if `position` says that such a topic
        was read before."""
        starts = []
        watched = {}
        for topic in topics:
            streams = await self._find(topic)
            watched[topic] = len(streams)
            for stream in streams:
                starts.append((stream, position.get(source_of(topic, stream.partition), 0)))
            # A topic that was read before and does not exist now has lost its messages.
            if not streams and not stop_at_end:
                for source, offset in position.items():
                    if split_source(source)[0] == topic:
                        _check_end(source, offset, 0)
        receiver = StreamReceiver(
            self.client.session,
            starts,
            # A source without an offset has no earlier stream to compare with.
            {source: at for source, at in self._created.items() if source in position},
            stop_at_end=stop_at_end,
            page_messages=self._page_messages,
            on_hole=self._on_hole,
        )
        if not stop_at_end:
            for topic, partitions in watched.items():
                receiver.watch(topic, partitions)
        try:
            yield receiver
        finally:
            receiver.close()

    def close(self) -> None:
        """Closes the publishers of all topics."""
        for watch in self._watches.values():
            watch.stop()
        self._watches.clear()
        self._outdated.clear()
        for publishers in self._publishers.values():
            for publisher in publishers:
                publisher.close()
        self._publishers.clear()

    async def _infos(self, topic: str) -> Sequence[StreamInfo]:
        streams = await self._find(topic)
        return await PartitionedStream(streams).info() if streams else ()

    async def _find(self, topic: str, *, creates: bool = False) -> Sequence[Stream]:
        """Returns the partitions of a topic, none if it does not exist. Creates the topic if `creates` is True, or if
        the node cannot list its streams."""
        found = None
        try:
            found = await self.client.find_stream(topic)
        except RequestRefused:
            # A node without `node/stream_list/1` cannot list its streams.
            creates = True
        there = () if found is None else found.partitions
        if not creates:
            return there
        # For a topic that exists, the request changes nothing, but its answer has the addresses of the partitions.
        wanted = len(there) or (1 if is_reorg_topic(topic) else self.partitions)
        return (await self.client.create_partitioned(topic, wanted)).partitions

    def _close_outdated(self, topic: str) -> None:
        """Forgets the publishers of a topic that was deleted, or that has more partitions now: a key can then belong
        to another partition."""
        if topic in self._outdated:
            self._outdated.discard(topic)
            self._watches.pop(topic).stop()
            for publisher in self._publishers.pop(topic, ()):
                publisher.close()
        elif topic in self._watches:
            self._watches[topic].poll()

    async def _open_publishers(self, topic: str) -> list[Publisher]:
        streams = await self._find(topic, creates=True)
        # Another task may have opened the topic meanwhile; then its publishers are used, so that order is kept.
        if topic not in self._publishers:
            self._publishers[topic] = [stream.publisher(self._window, keep_failed=True) for stream in streams]
            self._watches[topic] = PartitionWatch(
                self.client.session, topic, len(streams), lambda partitions: self._outdated.add(topic)
            )
        return self._publishers[topic]


class StreamReceiver:
    """A `Receiver` over several partitions of streams. It returns the oldest messages first, and fetches pages ahead.

    `created`: by source, when the stream that is read was created, in microseconds since 1970, if known.
    `holes`: the number of records that were deleted before they were read."""

    def __init__(
        self,
        session: ClientSession,
        starts: Sequence[tuple[Stream, int]],
        created: Mapping[str, int],
        *,
        stop_at_end: bool,
        page_messages: int = PAGE_MESSAGES,
        on_hole: OnHole | None = None,
    ) -> None:
        self.ends: dict[str, int] = {}
        self.created: dict[str, int] = {}
        self.holes = 0
        self._stop_at_end = stop_at_end
        self._page_messages = page_messages
        self._on_hole = on_hole
        self._session = session
        self._pages = Merge()
        self._next: dict[Reader, int] = {}
        self._streams: dict[Reader, Stream] = {}
        self._watches: list[PartitionWatch] = []
        self._merge: PartitionMerge[Reader] = PartitionMerge(())
        for stream, offset in starts:
            self._read(stream, offset, created.get(source_of(stream.name, stream.partition), 0))

    def watch(self, topic: str, partitions: int) -> None:
        """Also reads partitions that the topic gets later, in addition to the `partitions` that it has."""

        def grow(added: list[int]) -> None:
            for handle in self._session.core.find_handles(topic, added):
                self._read(Stream(self._session, handle), 0, 0)

        self._watches.append(PartitionWatch(self._session, topic, partitions, grow))

    def _read(self, stream: Stream, offset: int, created_us: int) -> None:
        reader = Reader(
            stream.session,
            stream.handle,
            FromIndex(offset),
            page_messages=self._page_messages,
            waits=False,
            on_page=self._pages.arrived,
            created_us=created_us,
        )
        self._next[reader], self._streams[reader] = offset, stream
        self._merge.add(reader)
        # A waiting `receive_some` then asks for the pages of the new partition, too.
        self._pages.wake()

    async def receive_some(self) -> Sequence[Delivery]:
        """Returns the oldest deliveries, at most one page, or an empty list when every partition was read to its end.
        Raises the client's errors, and `StreamRemade` if a stream was deleted and created again meanwhile."""
        while True:
            for watch in self._watches:
                watch.poll()
            # Take all pages that have arrived, then ask for further ones before these are used up. A reader whose page
            # had no messages must ask again before the wait below.
            while (ready := self._pages.next_nowait()) is not None:
                self._take(ready)
            for reader in self._next:
                if self._merge.left(reader) < self._page_messages:
                    reader.ask()
            if deliveries := self._merge.take(self._page_messages):
                return deliveries
            if not self._next and not self._watches:
                return ()
            # Nothing can be returned: a partition that could have the oldest record has not answered.
            due_s = min((watch.due_s for watch in self._watches), default=math.inf)
            wait_s = due_s - self._session.shell.now_s()
            if wait_s > 0:
                await self._session.shell.wait(self._pages.arrival(), wait_s)

    def close(self) -> None:
        for watch in self._watches:
            watch.stop()
        self._watches.clear()
        for reader in list(self._streams):
            reader.stop()
        self._next.clear()

    def _take(self, reader: Reader) -> None:
        page = reader.take()
        stream = self._streams[reader]
        topic, partition = stream.name, stream.partition
        self._check(reader, page, source_of(topic, partition))
        deliveries = [
            Delivery(topic, partition, message.index, message.key or b"", message.data) for message in page.messages
        ]
        self._merge.put(reader, deliveries, [message.time_us for message in page.messages], at_end=page.at_end)
        # For a partition that was read to its end, the node may wait for new records before it answers. For other
        # partitions it must answer at once.
        reader.waits = page.at_end and not self._stop_at_end
        if deliveries:
            self._next[reader] = deliveries[-1].offset + 1
        # Records at the end can be deleted already. Whoever waits for them would never be at the end.
        if page.at_end:
            self.ends[source_of(topic, partition)] = self._next[reader]
        if self._stop_at_end and page.at_end:
            reader.stop()
            del self._next[reader]

    def _check(self, reader: Reader, page: Page, source: str) -> None:
        """Counts the records that are missing before and within the page. Raises `StreamRemade` if the stream is not
        the one that was read before, and `PositionBeyondEnd` if it ends before the expected offset."""
        expected = self._next[reader]
        if page.created_us is not None:
            if reader.created_us not in (0, page.created_us):
                raise StreamRemade(self._streams[reader].name, self._streams[reader].partition, expected)
            reader.created_us = self.created[source] = page.created_us
        if page.next_index is None:
            raise RequestRefused(f"the node does not answer node/stream_pull/1, without which {source} has no keys")
        self.ends[source] = page.next_index
        _check_end(source, expected, page.next_index)
        if page.messages:
            for first_missing, next_there in find_holes(page.messages, expected):
                self.holes += next_there - first_missing
                if self._on_hole is not None:
                    self._on_hole(source, first_missing, next_there)


def _check_end(source: str, offset: int, end: int) -> None:
    if end < offset:
        raise PositionBeyondEnd(
            f"the position of {source} is {offset}, and the stream ends at {end}: it has lost messages or was made "
            "again; forget the saved position to begin anew"
        )


async def _all_confirmed(sent: Sequence[tuple[Publisher, Push]]) -> None:
    first: Exception | None = None
    for publisher, push in sent:
        if push.done and push.error is None:
            continue
        try:
            await publisher.wait(push)
        except Exception as error:
            first = first or error
    if first is not None:
        raise first
