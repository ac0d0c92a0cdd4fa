"""PartitionHandle and StreamInUse: the partitions that a client uses, with their routes and push queues."""

from __future__ import annotations

from collections.abc import Callable

from ockam.actors.address import Route
from stream_client.core.push_queue import PushQueue
from stream_client.errors import ClientError


class PartitionHandle:
    """One partition that the client uses.

    route: the route to the partition from the node that the client is connected to; None while it is unknown.
    last_route: the latest known route; None if none was known yet.
    queue: the push queue for single pushes. `queues` also has the queues of all publishers.
    gone: the error of every later request, if the partition was deleted; else None.

    Invariant: not both `route` and `gone` are set. Without a route, requests and pushes wait. Every queue has the same
    route.
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
        return sum(len(queue.pushes) for queue in self.queues)

    def check(self) -> None:
        assert self.route is None or self.gone is None
        for queue in self.queues:
            assert queue.is_open == (self.route is not None)
            assert queue.gone is self.gone
            queue.check()

    def open(self, route: Route) -> None:
        assert self.gone is None, "a deleted partition was found"
        self.route = self.last_route = route
        # The queue of a publisher that has ended leaves the list, if its last push fails now.
        for queue in list(self.queues):
            queue.open(route)

    def close(self) -> None:
        assert self.gone is None, "a deleted partition was in use"
        self.route = None
        for queue in self.queues:
            queue.close()

    def drop(self, error: ClientError) -> None:
        """Records that the partition was deleted. Every unanswered push and every later push fails with `error`."""
        self.route = None
        self.gone = error
        for queue in list(self.queues):
            queue.close()
            queue.gone = error
            queue.fail_all(error)


class StreamInUse:
    """A stream, with the partitions that the client uses, by number.

    creates: whether this client has created the stream, and so is allowed to create it again after a reconnect, for
        example for waiting pushes. Else it computes the addresses of the partitions from the stream's name.
    forget_create: gives up the request that creates the stream again; None if there is no such request.

    Invariant: `forget_create` is set only if `creates` is true.
    """

    __slots__ = ("creates", "forget_create", "handles", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.creates = False
        self.forget_create: Callable[[], None] | None = None
        self.handles: dict[int, PartitionHandle] = {}

    @property
    def partitions(self) -> int:
        """The number of partitions with which to create the stream again, so that every partition in use exists."""
        return max(self.handles, default=0) + 1

    @property
    def unconfirmed(self) -> int:
        return sum(handle.unconfirmed for handle in self.handles.values())

    def check(self) -> None:
        assert self.creates or self.forget_create is None
        for partition, handle in self.handles.items():
            assert (handle.stream, handle.partition) == (self, partition)
            handle.check()

    def close(self) -> None:
        for handle in self.handles.values():
            handle.close()

    def is_stalled(self) -> bool:
        # Every queue is asked, because each compares its state with that at the last call.
        stalled = [queue.is_stalled() for handle in self.handles.values() for queue in handle.queues]
        return any(stalled)
