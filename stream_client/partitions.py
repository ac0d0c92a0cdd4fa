"""The parts of `Stream` and `PartitionedStream` that never wait. The async and the blocking classes share them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from stream_client.arguments import BytesLike, to_bytes, to_key
from stream_client.core.partition_handle import PartitionHandle
from stream_client.push_windows import PartitionChooser, missing_partition
from stream_client.requests import Requests
from stream_client.watch import PartitionWatch
from stream_service.names import partition_of

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


class SomePartitions(Generic[S]):
    """Some or all existing partitions of one stream, without their requests."""

    def __init__(self, partitions: Sequence[S], *, is_whole: bool = False) -> None:
        """is_whole: whether these are all partitions of the stream."""
        self._is_whole = is_whole
        self._take(partitions)
        session = self.partitions[0].session
        self._watch = PartitionWatch(session, self.name, self.count, self._grow) if is_whole else None

    def _take(self, partitions: Sequence[S]) -> None:
        self.partitions = tuple(partitions)
        self._by_number = {stream.partition: stream for stream in self.partitions}
        self._count = max(self._by_number) + 1
        self._chooser = PartitionChooser(self._count, sorted(self._by_number))

    def _chosen(self, key: BytesLike | None, partition_key: BytesLike | None) -> S:
        """Returns the partition of a message. Raises StreamNotFound if it was deleted."""
        # A partition that was added changes the partition of the key, so the watch comes first.
        if self._watch is not None:
            self._watch.poll()
        return self.get_partition(self._chooser.choose(to_key(key), to_key(partition_key, "a partition key")))

    def _grow(self, partitions: list[int]) -> None:
        first = self.partitions[0]
        handles = first.session.core.find_handles(self.name, partitions)
        self._take([*self.partitions, *(type(first)(first.session, handle) for handle in handles)])

    def __repr__(self) -> str:
        there = len(self.partitions)
        noun = "partition" if self.count == 1 else "partitions"
        which = f"{self.count} {noun}" if there == self.count else f"{there} of {self.count} {noun}"
        return f"<PartitionedStream {self.name!r}, {which}, of {self.partitions[0].session.address}>"

    @property
    def name(self) -> str:
        return self.partitions[0].name

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
        found = self._by_number.get(partition)
        if found is None:
            raise missing_partition(self.name, partition, self.count)
        return found
