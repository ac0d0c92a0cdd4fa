"""The parts of streams and publishers that never wait. The async and the blocking classes share them.

PushWindow: the unanswered pushes of a publisher. ByPartition: chooses the partition of each message.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from stream_client.arguments import BytesLike, to_bytes
from stream_client.core.partition_handle import PartitionHandle
from stream_client.core.pushes import Push, PushesFailed
from stream_client.core.sequence_machine import SequenceMachine
from stream_client.errors import InvalidArgument, StreamNotFound
from stream_client.requests import PartitionWatch, Requests
from stream_service.limits import PUBLISHER_ID_BYTES_MAX, SEQUENCE_MAX
from stream_service.names import partition_of

T = TypeVar("T")
W = TypeVar("W", bound="PushWindow")

WINDOW = 1_000
"""The default window of a publisher: the largest number of unanswered pushes."""
PUBLISHER_ID_BYTES = 16
LOOKS = 4
"""A publisher checks this many times within the client's `answer_timeout_s` whether the node answers its pushes."""


class PushWindow:
    """The unanswered pushes and the failed pushes of one publisher."""

    def __init__(
        self,
        session: Requests,
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
        self._timeout_s = session.answer_timeout_s
        self._is_watched = False
        self._cancel_look: Callable[[], None] = lambda: None
        # How many answers had come at the last check, and how many checks ago that number last changed.
        self._answers = self._looks = 0
        if keep_failed:
            self._queue.failed = None

    def __repr__(self) -> str:
        where = f"{self._handle.name!r}, partition {self._handle.partition}"
        return f"<Publisher of {where}: {self.unconfirmed} of {self._window} unconfirmed>"

    @property
    def failed(self) -> Sequence[Push]:
        """The failed pushes for whose result the program has not asked. With `keep_failed` they are not collected."""
        return tuple(push for push in self._queue.failed or () if not push.taken)

    def close(self) -> None:
        """Ends the publisher: the program must not push after this. Earlier pushes still get their answers."""
        self._session.core.streams.close_queue(self._handle, self._queue)
        # The timer would keep this publisher in memory for a part of the client's `answer_timeout_s`.
        if not self._queue.pushes:
            self._cancel_look()

    @property
    def unconfirmed(self) -> int:
        """The number of unanswered pushes, including those that are not sent yet."""
        return len(self._queue.pushes)

    def _watch(self) -> None:
        """Checks at intervals whether the node answers, until no push is unanswered."""
        if self._timeout_s is not None and self._queue.pushes:
            self._is_watched = True
            self._answers, self._looks = self._queue.answers, 0
            self._cancel_look = self._session.shell.call_later(self._timeout_s / LOOKS, self._look)

    def _look(self) -> None:
        queue, timeout_s = self._queue, self._timeout_s
        assert timeout_s is not None
        # An answer that finishes no push counts too: a node that cannot tell whether a push is stored is not silent.
        self._looks = self._looks + 1 if queue.answers == self._answers else 0
        self._answers = queue.answers
        # A blocking client's timer may be late. So several checks in a row must see no answer, not one at the end of
        # the time.
        if self._looks == LOOKS:
            self._looks = 0
            queue.fail_all(self._session.silence(timeout_s))
        if queue.pushes:
            self._cancel_look = self._session.shell.call_later(timeout_s / LOOKS, self._look)
        else:
            self._is_watched = False


class ByPartition(Generic[T]):
    """One object, such as a publisher, for each existing partition of a stream. A message's key chooses the object; for
    messages without a key, the partitions take turns."""

    def __init__(
        self,
        session: Requests,
        name: str,
        items: Mapping[int, T],
        is_whole: bool,
        open_item: Callable[[PartitionHandle], T],
    ) -> None:
        """items: the objects by partition number.
        is_whole: whether they are for all partitions of the stream. Only then can the partition of a key be computed
            anew, and added partitions are used, too.
        open_item: returns the object of an added partition.
        """
        self._session = session
        self._name = name
        self._is_whole = is_whole
        self._open_item = open_item
        self._by_partition: dict[int, T] = {}
        self._add(items)
        self._watch = PartitionWatch(session, name, self._count, self._grow) if is_whole else None

    def _add(self, items: Mapping[int, T]) -> None:
        self._by_partition |= items
        self._items = tuple(self._by_partition.values())
        self._present = sorted(self._by_partition)
        # The highest number plus one, so a deleted partition below it counts, too.
        self._count = self._present[-1] + 1
        self._next = 0

    def _grow(self, partitions: list[int]) -> None:
        handles = self._session.core.find_handles(self._name, partitions)
        self._add({handle.partition: self._open_item(handle) for handle in handles})

    def _chosen(self, key: bytes | None, partition_key: bytes | None) -> T:
        """Returns the object of a message's partition. Raises StreamNotFound if that partition was deleted."""
        # A partition that was added changes the partition of the key, so the watch comes first.
        if self._watch is not None:
            self._watch.poll()
        by = partition_key if partition_key is not None else key
        if by is not None:
            return self._get(partition_of(by, self._count))
        partition, self._next = self._present[self._next], (self._next + 1) % len(self._present)
        return self._by_partition[partition]

    def _get(self, partition: int) -> T:
        found = self._by_partition.get(partition)
        if found is None:
            what = f"stream {self._name!r} has no partition {partition}"
            if 0 <= partition < self._count:
                raise StreamNotFound(f"{what} any more; make it again to use it")
            raise StreamNotFound(
                f"{what}: it has 0 to {self._count - 1}; `create_partitioned` with a larger number grows it, and keys "
                "then belong to other partitions than before"
            )
        return found


class PushWindows(ByPartition[W]):
    """The publishers of the partitions of one stream, each with its own window."""

    def __repr__(self) -> str:
        partitions = f"{len(self._items)} partitions"
        return f"<PartitionedPublisher of {self._name!r}, {partitions}: {self.unconfirmed} unconfirmed>"

    @property
    def unconfirmed(self) -> int:
        """The number of unanswered pushes in all partitions together."""
        return sum(publisher.unconfirmed for publisher in self._items)

    def _stop(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        for publisher in self._items:
            publisher.close()


def raise_failed(pushes: Sequence[Push]) -> None:
    if pushes:
        raise PushesFailed(pushes) from pushes[0].error


def make_sequences(idempotent: bool, publisher_id: BytesLike | None, first_number: int) -> SequenceMachine | None:
    """Returns the SequenceMachine of an idempotent publisher, or None for a plain publisher. The parameters are those
    of `Stream.publisher`. Raises InvalidArgument."""
    if publisher_id is not None:
        publisher_id = to_bytes(publisher_id, "a publisher id")
        if not publisher_id:
            raise InvalidArgument("a publisher id is not empty; leave it out to get a random one")
        if len(publisher_id) > PUBLISHER_ID_BYTES_MAX:
            raise InvalidArgument(f"a publisher id of {len(publisher_id)} bytes; at most {PUBLISHER_ID_BYTES_MAX}")
        if not isinstance(first_number, int) or not 0 <= first_number <= SEQUENCE_MAX:
            raise InvalidArgument(f"first_number must be an int from 0 to {SEQUENCE_MAX}, not {first_number!r}")
        return SequenceMachine(publisher_id, first_number, None)
    return SequenceMachine(_random_id(), 0, _random_id) if idempotent else None


def _random_id() -> bytes:
    return secrets.token_bytes(PUBLISHER_ID_BYTES)


S = TypeVar("S", bound="OnePartition")


class OnePartition:
    """One partition of a stream, without its requests."""

    def __init__(self, session: Requests, handle: PartitionHandle) -> None:
        self.session = session
        self.handle = handle

    def __repr__(self) -> str:
        return f"<Stream {self.name!r}, partition {self.partition}, of {self.session.address}>"

    @property
    def name(self) -> str:
        return self.handle.name

    @property
    def partition(self) -> int:
        return self.handle.partition

    @property
    def unconfirmed(self) -> int:
        """The number of unanswered pushes to this partition, by all publishers of this client."""
        return self.handle.unconfirmed


class SomePartitions(ByPartition[S]):
    """Some or all existing partitions of one stream, without their requests."""

    def __init__(self, partitions: Sequence[S], *, is_whole: bool = False) -> None:
        """is_whole: whether these are all partitions of the stream."""
        first = partitions[0]
        items = {stream.partition: stream for stream in partitions}
        super().__init__(first.session, first.name, items, is_whole, lambda handle: type(first)(first.session, handle))

    @property
    def partitions(self) -> tuple[S, ...]:
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

    def partition_for(self, key: BytesLike) -> S:
        """Returns the partition that stores messages with this key (`stream_service.names.partition_of`). Raises
        StreamNotFound if that partition was deleted."""
        return self.get_partition(partition_of(to_bytes(key, "a key"), self.count))

    def get_partition(self, partition: int) -> S:
        """Returns the partition with this number. Raises StreamNotFound if it does not exist."""
        return self._get(partition)
