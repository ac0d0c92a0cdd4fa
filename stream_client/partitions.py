"""PartitionWatch: notices partitions that are added to a stream. ByPartition: chooses the partition of each message.
`make_sequences`: numbers an idempotent publisher's pushes."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from stream_client.arguments import BytesLike, to_bytes
from stream_client.core.partition_handle import PartitionHandle
from stream_client.core.pushes import Push, PushesFailed
from stream_client.core.sequence_machine import SequenceMachine
from stream_client.core.service_route import STREAM_SERVICE
from stream_client.errors import ClientError, InvalidArgument, StreamNotFound
from stream_client.session import ClientSession
from stream_service.extensions import LIST, ListRequest, ListResponse, StreamKey
from stream_service.limits import PUBLISHER_ID_BYTES_MAX, SEQUENCE_MAX
from stream_service.names import partition_of

T = TypeVar("T")

WINDOW = 1_000
"""The default window of a publisher: the largest number of unanswered pushes."""
PUBLISHER_ID_BYTES = 16
WATCH_S = 5.0
"""The interval between two questions whether a stream has more partitions, in seconds."""
ABSENT_S = 1.0
"""The interval between two questions whether a stream exists by now, in seconds."""
UNANSWERED_S = 30.0
"""After this time, in seconds, a question that was not answered is asked again."""
PARTITIONS_MAX = 4_096


class PartitionWatch:
    """A watch for partitions that are added to a stream. No message of a node reports them, so all users of a stream
    ask at intervals, and know the same partitions within a few seconds. A user asks by frequent calls of `poll`.

    known: the number of partitions that the user knows; 0 if the stream does not exist.
    on_more: called with the numbers of the added partitions, in order.
    due_s: the time on the client's clock, in seconds, from which on `poll` asks the node again."""

    def __init__(self, session: ClientSession, name: str, known: int, on_more: Callable[[list[int]], None]) -> None:
        self._session = session
        self._name = name
        self._known = known
        self._on_more = on_more
        self.due_s = 0.0
        self._wait()
        self._cancel: Callable[[], None] | None = None
        self._asked_s = -math.inf

    def poll(self) -> None:
        """Asks the node if the interval is over. Does not wait. The user of the stream calls it often."""
        now_s = self._session.shell.now_s()
        if now_s < self.due_s:
            return
        self._wait()
        # A slow node needs longer for its list than one interval.
        if self._cancel is not None and now_s < self._asked_s + UNANSWERED_S:
            return
        self.stop()
        self._asked_s = now_s
        # The node lists the partitions of this stream in order, and then the streams whose longer names begin alike.
        after = StreamKey(self._name, self._known - 1) if self._known else None
        request = ListRequest(0, self._name, after, PARTITIONS_MAX)
        self._cancel = self._session.ask_nowait(STREAM_SERVICE, LIST, request, self._answered)

    def stop(self) -> None:
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            cancel()

    def _wait(self) -> None:
        self.due_s = self._session.shell.now_s() + (WATCH_S if self._known else ABSENT_S)

    def _answered(self, answer: ListResponse | ClientError) -> None:
        self._cancel, self._asked_s = None, -math.inf
        # A node that cannot list its streams is asked again all the same: it can be replaced by another one.
        if isinstance(answer, ClientError):
            return
        found = [info.partition for info in answer.streams if info.stream_name == self._name]
        count = max(found, default=-1) + 1
        if count > self._known:
            more, self._known = list(range(self._known, count)), count
            self._on_more(more)


class ByPartition(Generic[T]):
    """One object, such as a publisher, for each existing partition of a stream. A message's key chooses the object; for
    messages without a key, the partitions take turns."""

    def __init__(
        self,
        session: ClientSession,
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
