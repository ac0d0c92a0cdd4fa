"""PartitionHandle and StreamInUse: the partitions that a client uses, their routes and their push queues.

`streams_in_use` decides when their states change.
"""

from __future__ import annotations

from collections.abc import Callable

from ockam.address import Route
from stream_client.core.push_queue import PushQueue
from stream_client.core.states_machine import Event, PartitionState, StreamState, after
from stream_client.errors import ClientError


class PartitionHandle:
    """One partition that the client uses.

    state: see `PartitionState`. route: the route from the node connected to, to the partition; None while unknown.
    last_route: the latest route known. queue: the push queue for single pushes. queues: this queue and the queues of
    all publishers. gone: the error of every later request, if the partition was deleted.

    Invariant: `route` is set exactly while the state is OPEN, `gone` exactly in DELETED; every queue has that route.
    """

    __slots__ = ("gone", "last_route", "name", "partition", "queue", "queues", "route", "state", "stream")

    def __init__(self, stream: StreamInUse, partition: int, queue: PushQueue) -> None:
        self.stream = stream
        self.name = stream.name
        self.partition = partition
        self.state = PartitionState.SEARCHED
        self.route: Route | None = None
        self.last_route: Route | None = None
        self.gone: ClientError | None = None
        self.queue = queue
        self.queues = [queue]

    @property
    def unconfirmed(self) -> int:
        """The number of pushes without an answer."""
        return sum(len(queue.pushes) for queue in self.queues)

    def check(self) -> None:
        """Raise AssertionError if the invariant does not hold."""
        assert (self.route is not None) == (self.state is PartitionState.OPEN)
        assert (self.gone is not None) == (self.state is PartitionState.DELETED)
        for queue in self.queues:
            assert queue.is_open == (self.route is not None)
            assert queue.gone is self.gone
            queue.check()

    def open(self, route: Route) -> None:
        """Use this route from now on. Each queue sends its unanswered pushes over it."""
        self.state = after(self.state, Event.ROUTE_FOUND)
        self.route = self.last_route = route
        for queue in self.queues:
            queue.open(route)

    def close(self) -> None:
        """Stop sending over the route until it has been found again."""
        self.state = after(self.state, Event.ROUTE_DOUBTED)
        self.route = None
        for queue in self.queues:
            queue.close()

    def drop(self, error: ClientError) -> None:
        """Note that the partition was deleted: every waiting push and every later push fails with `error`."""
        self.state = after(self.state, Event.DELETED)
        self.route = None
        self.gone = error
        for queue in list(self.queues):
            queue.close()
            queue.gone = error
            queue.fail_all(error)


class StreamInUse:
    """One stream of which the client uses some partitions.

    state: see `StreamState`. handles: the partitions in use, by number. forget_create: gives up the
    request that creates the stream again after a new connection; None if there is none.

    Invariant: `forget_create` is set exactly while the state is CREATING.
    """

    __slots__ = ("forget_create", "handles", "name", "state")

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = StreamState.NAMED
        self.forget_create: Callable[[], None] | None = None
        self.handles: dict[int, PartitionHandle] = {}

    @property
    def creates(self) -> bool:
        """Whether this client has created the stream and may therefore create it again."""
        return self.state is not StreamState.NAMED

    @property
    def partitions(self) -> int:
        """The number of partitions to create so that every partition in use exists."""
        return max(self.handles, default=0) + 1

    @property
    def unconfirmed(self) -> int:
        """The number of pushes without an answer."""
        return sum(handle.unconfirmed for handle in self.handles.values())

    def check(self) -> None:
        """Raise AssertionError if the invariant of the stream or of one of its handles does not hold."""
        assert (self.forget_create is not None) == (self.state is StreamState.CREATING)
        for partition, handle in self.handles.items():
            assert (handle.stream, handle.partition) == (self, partition)
            handle.check()

    def created(self) -> None:
        """Note that the program has created the stream."""
        self.state = after(self.state, Event.CREATED)

    def create_again(self, forget_create: Callable[[], None]) -> None:
        """Note that a request to create the stream again is on its way, and how to give it up."""
        self.state = after(self.state, Event.CREATE_SENT)
        self.forget_create = forget_create

    def create_done(self) -> None:
        """Note that the request that created the stream again has been answered, or has failed."""
        self.state = after(self.state, Event.CREATE_DONE)
        self.forget_create = None

    def close(self) -> None:
        """Stop sending to every partition until its route has been found again."""
        for handle in self.handles.values():
            handle.close()

    def fail_pushes(self, error: ClientError) -> None:
        """Fail every push without an answer."""
        for handle in self.handles.values():
            for queue in list(handle.queues):
                queue.fail_all(error)

    def is_stalled(self) -> bool:
        """Whether any queue has had no confirm since the last check. Asks every queue, since each remembers
        its check.
        """
        stalled = [queue.is_stalled() for handle in self.handles.values() for queue in handle.queues]
        return any(stalled)
