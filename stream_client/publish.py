"""Publishers: push many messages without waiting for each confirm, to one or to all partitions of a stream."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from stream_client.arguments import BytesLike, HeadersLike, to_bytes, to_headers, to_key
from stream_client.core.partition_handle import PartitionHandle
from stream_client.core.pushes import Push, PushesFailed
from stream_client.core.sequence_machine import SequenceMachine
from stream_client.errors import InvalidArgument, StreamNotFound
from stream_client.session import Session
from stream_service.limits import PUBLISHER_ID_BYTES_MAX
from stream_service.names import partition_of

WINDOW = 1_000
"""How many pushes may wait for their confirm by default."""
UNSENT_BYTES_MAX = 64 * 1024
"""A publisher with this many encoded but unsent bytes lets the shell send them before it goes on."""
PUBLISHER_ID_BYTES = 16


class Publisher:
    """Pushes messages to one partition without waiting for each confirm. A context manager; `Stream.publisher` makes
    it.

    At most `window` pushes are unconfirmed at a time. When the block ends without an exception, every push has been
    answered. The end of the block then raises PushesFailed if pushes failed and the program has not looked at their
    results; with `keep_failed` it does not raise.
    """

    def __init__(
        self,
        session: Session,
        handle: PartitionHandle,
        window: int,
        sequences: SequenceMachine | None,
        keep_failed: bool,
    ) -> None:
        if window < 1:
            raise InvalidArgument(f"a window of {window}; at least 1 push must be allowed on its way")
        self._session = session
        self._handle = handle
        self._window = window
        self._sequenced = sequences is not None
        self._queue = session.core.open_queue(handle, sequences)
        if keep_failed:
            self._queue.failed = None

    def __repr__(self) -> str:
        where = f"{self._handle.name!r}, partition {self._handle.partition}"
        return f"<Publisher of {where}: {self.unconfirmed} of {self._window} unconfirmed>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            self.close()
        if kind is None:
            _raise_failed(self.failed)

    @property
    def failed(self) -> Sequence[Push]:
        """The failed pushes whose result the program has not taken; always empty with `keep_failed`."""
        return tuple(push for push in self._queue.failed or () if not push.taken)

    def close(self) -> None:
        """Stop accepting pushes. Pushes that were already sent still get their answers. Safe to repeat."""
        self._session.core.close_queue(self._handle, self._queue)

    @property
    def unconfirmed(self) -> int:
        """The number of pushes without an answer, both sent and still waiting to be sent."""
        return len(self._queue.pushes)

    async def push(self, data: BytesLike, *, key: BytesLike | None = None, headers: HeadersLike = ()) -> Push:
        """Send one message. First waits while the window is full. The result has its `index` once it is `done`.

        data, key, headers: as in `Stream.push`.
        """
        queue = self._queue
        # Most messages have neither key nor headers and are bytes already, and this test is cheaper than the call.
        if data.__class__ is not bytes:
            data = to_bytes(data, "the data of a message")
        # A full window waits for confirms, so unconfirmed pushes take a bounded amount of memory.
        if len(queue.pushes) >= self._window:
            while len(queue.pushes) >= self._window:
                await self._session.shell.wait(queue.room())
        # Without a pause here, a program that never waits would encode its whole window before the first byte is sent.
        elif self._session.core.connection.outgoing_bytes > UNSENT_BYTES_MAX:
            await self._session.shell.give_way()
        if self._sequenced or key is not None or headers:
            push: Push = queue.push_keyed(data, to_key(key), to_headers(headers))
        else:
            push = queue.push(data)
        # blocking only: self._session.shell.send_lagging()
        return push

    async def wait(self, push: Push) -> int:
        """Wait until one push is stored and return its index. Raises the push's error."""
        try:
            await self._session.finished(push, None)
        finally:
            push.taken = True
        return push.index

    async def push_many(self, messages: Iterable[BytesLike]) -> list[int]:
        """Store messages in order and return their indexes. Waits for all answers, then raises PushesFailed if any
        failed.
        """
        pushes = [await self.push(data) for data in messages]
        await self.flush()
        failed = [push for push in pushes if push.error is not None]
        for push in failed:
            push.taken = True
        _raise_failed(failed)
        return [push.index for push in pushes]

    async def flush(self) -> None:
        """Wait until each push of this publisher has been confirmed or has failed."""
        while self._queue.pushes:
            await self._session.shell.wait(self._queue.room())


class PartitionChooser:
    """Decides which partition a message goes to: by its key, or to the partitions in turn if it has no key.

    partitions: the number of partitions of the stream, deleted ones included. present: the numbers of the partitions
    that still exist.
    """

    def __init__(self, partitions: int, present: Sequence[int]) -> None:
        self._partitions = partitions
        self._present = present
        self._next = 0

    def choose(self, key: bytes | None, partition_key: bytes | None) -> int:
        """Return the number of the partition for a message. A key may lead to a partition that was deleted.

        key: the message's key. partition_key: decides in place of the key if it is not None.
        """
        by = partition_key if partition_key is not None else key
        if by is not None:
            return partition_of(by, self._partitions)
        chosen, self._next = self._present[self._next], (self._next + 1) % len(self._present)
        return chosen


class PartitionedPublisher:
    """Pushes to the partitions of a stream, by key or in turn, with a window for each partition. A context manager.

    `PartitionedStream.publisher` makes it. The end of its block waits and raises as the end of a `Publisher` block
    does.
    """

    def __init__(self, name: str, by_partition: Mapping[int, Publisher]) -> None:
        """by_partition: the publisher of each partition that still exists, by the partition's number."""
        self._name = name
        self._by_partition = by_partition
        self._publishers = tuple(by_partition.values())
        self._chooser = PartitionChooser(max(by_partition) + 1, sorted(by_partition))

    def __repr__(self) -> str:
        partitions = f"{len(self._publishers)} partitions"
        return f"<PartitionedPublisher of {self._name!r}, {partitions}: {self.unconfirmed} unconfirmed>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            for publisher in self._publishers:
                publisher.close()
        if kind is None:
            _raise_failed([push for publisher in self._publishers for push in publisher.failed])

    @property
    def unconfirmed(self) -> int:
        """The number of pushes without an answer, in all partitions together."""
        return sum(publisher.unconfirmed for publisher in self._publishers)

    async def push(
        self,
        data: BytesLike,
        *,
        key: BytesLike | None = None,
        headers: HeadersLike = (),
        partition_key: BytesLike | None = None,
    ) -> Push:
        """Send one message to the partition of its key. A message without a key goes to the next partition in turn.

        key: stored with the message. partition_key: decides the partition in place of the key, and is not stored.

        Raises StreamNotFound if the partition of the key was deleted.
        """
        key, partition_key = to_key(key), to_key(partition_key, "a partition key")
        partition = self._chooser.choose(key, partition_key)
        publisher = self._by_partition.get(partition)
        if publisher is None:
            raise missing_partition(self._name, partition, max(self._by_partition) + 1)
        return await publisher.push(data, key=key, headers=headers)

    async def flush(self) -> None:
        """Wait until each push to each partition has been confirmed or has failed."""
        for publisher in self._publishers:
            await publisher.flush()


def _raise_failed(pushes: Sequence[Push]) -> None:
    if pushes:
        raise PushesFailed(pushes) from pushes[0].error


def missing_partition(name: str, partition: int, partitions: int) -> StreamNotFound:
    """Returns the error for a partition that does not exist. partitions: the number of partitions of the stream."""
    if 0 <= partition < partitions:
        return StreamNotFound(f"stream {name!r} has no partition {partition} any more; make it again to use it")
    return StreamNotFound(
        f"stream {name!r} has no partition {partition}: it has 0 to {partitions - 1}; `create_partitioned` with a "
        "larger number grows it, and keys then belong to other partitions than before"
    )


def make_sequences(idempotent: bool, publisher_id: BytesLike | None, first_number: int) -> SequenceMachine | None:
    """Returns the message numbers of an idempotent publisher, or None for a plain publisher.

    A publisher with a publisher id is idempotent, whatever `idempotent` is.
    """
    if publisher_id is not None:
        publisher_id = to_bytes(publisher_id, "a publisher id")
        if not publisher_id:
            raise InvalidArgument("a publisher id is not empty; leave it out to get a random one")
        if len(publisher_id) > PUBLISHER_ID_BYTES_MAX:
            raise InvalidArgument(f"a publisher id of {len(publisher_id)} bytes; at most {PUBLISHER_ID_BYTES_MAX}")
        return SequenceMachine(publisher_id, first_number, None)
    return SequenceMachine(_random_id(), 0, _random_id) if idempotent else None


def _random_id() -> bytes:
    return secrets.token_bytes(PUBLISHER_ID_BYTES)
