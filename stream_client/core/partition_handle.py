"""The client's ends of streams, and their routes while connected. Only `core` opens and closes them."""

from __future__ import annotations

from ockam.address import Route
from stream_client.core.push_queue import PushQueue
from stream_client.core.requests import Call
from stream_client.errors import ClientError


class PartitionHandle:
    """The client's end of one stream-partition. route: from the node connected to; None while there is no way.

    last_route: the latest there was. queue: for single pushes; each publisher has one of its own. gone: why nothing can
    be asked of it any more.
    """

    __slots__ = ("gone", "last_route", "name", "partition", "queue", "queues", "route", "stream")

    def __init__(self, stream: StreamInUse, partition: int, queue: PushQueue) -> None:
        self.stream = stream
        self.name = stream.name
        self.partition = partition
        self.route: Route | None = None
        self.last_route: Route | None = None
        self.gone: ClientError | None = None
        self.queue = queue
        self.queues = [queue]

    @property
    def unconfirmed(self) -> int:
        """How many pushes have no answer."""
        return sum(len(queue.pushes) for queue in self.queues)

    def open(self, route: Route) -> None:
        """There is a way to the stream-partition."""
        self.route = self.last_route = route
        for queue in self.queues:
            queue.open(route)

    def close(self) -> None:
        """There is none just now."""
        self.route = None
        for queue in self.queues:
            queue.close()

    def drop(self, error: ClientError) -> None:
        """It is no more: what waits fails, and so does every later push."""
        self.close()
        self.gone = error
        for queue in list(self.queues):
            queue.gone = error
            queue.fail_all(error)


class StreamInUse:
    """A stream in use, its handles by partition.

    creates: whether it is made again after each new connection, by one request for all its partitions; else it is
    only looked for where its name says that it is. opening: that request, while it is under way.
    """

    __slots__ = ("creates", "handles", "name", "opening")

    def __init__(self, name: str) -> None:
        self.name = name
        self.creates = False
        self.opening: Call | None = None
        self.handles: dict[int, PartitionHandle] = {}

    @property
    def partitions(self) -> int:
        """How many partitions to ask for so that all in use exist."""
        return max(self.handles, default=0) + 1

    @property
    def unconfirmed(self) -> int:
        """How many pushes have no answer."""
        return sum(handle.unconfirmed for handle in self.handles.values())

    def close(self) -> None:
        for handle in self.handles.values():
            handle.close()

    def fail_pushes(self, error: ClientError) -> None:
        for handle in self.handles.values():
            for queue in list(handle.queues):
                queue.fail_all(error)

    def is_stalled(self) -> bool:
        """Whether a queue has had no confirm since the check before; asks every queue, since each remembers."""
        stalled = [queue.is_stalled() for handle in self.handles.values() for queue in handle.queues]
        return any(stalled)
