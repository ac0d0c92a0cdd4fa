"""The parts of `Stream` and `PartitionedStream` that never wait. The async and the blocking classes share them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from stream_client.arguments import BytesLike, to_bytes
from stream_client.core.partition_handle import PartitionHandle
from stream_client.push_windows import ByPartition
from stream_client.requests import Requests
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
