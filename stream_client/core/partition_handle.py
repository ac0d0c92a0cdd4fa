"""The client's ends of streams, and their routes while connected. Only `core` opens and closes them."""

from __future__ import annotations

from ockam.address import Route
from stream_client.core.push_queue import Lane
from stream_client.core.requests import Call
from stream_client.errors import ClientError


class Port:
    """The client's end of one stream-partition. route: from the node connected to; None while there is no way.

    last_route: the latest there was. lane: for single pushes; each publisher has one of its own. gone: why nothing can
    be asked of it any more.
    """

    __slots__ = ("gone", "lane", "lanes", "last_route", "name", "partition", "route", "stream")

    def __init__(self, stream: OpenStream, partition: int, lane: Lane) -> None:
        self.stream = stream
        self.name = stream.name
        self.partition = partition
        self.route: Route | None = None
        self.last_route: Route | None = None
        self.gone: ClientError | None = None
        self.lane = lane
        self.lanes = [lane]

    @property
    def unconfirmed(self) -> int:
        """How many pushes have no answer."""
        return sum(len(lane.pushes) for lane in self.lanes)

    def open(self, route: Route) -> None:
        """There is a way to the stream-partition."""
        self.route = self.last_route = route
        for lane in self.lanes:
            lane.open(route)

    def close(self) -> None:
        """There is none just now."""
        self.route = None
        for lane in self.lanes:
            lane.close()

    def drop(self, error: ClientError) -> None:
        """It is no more: what waits fails, and so does every later push."""
        self.close()
        self.gone = error
        for lane in list(self.lanes):
            lane.gone = error
            lane.fail_all(error)


class OpenStream:
    """A stream in use, its ports by partition.

    creates: whether it is made again after each new connection, by one request for all its partitions; else it is
    only looked for where its name says that it is. opening: that request, while it is under way.
    """

    __slots__ = ("creates", "name", "opening", "ports")

    def __init__(self, name: str) -> None:
        self.name = name
        self.creates = False
        self.opening: Call | None = None
        self.ports: dict[int, Port] = {}

    @property
    def partitions(self) -> int:
        """How many partitions to ask for so that all in use exist."""
        return max(self.ports, default=0) + 1

    @property
    def unconfirmed(self) -> int:
        """How many pushes have no answer."""
        return sum(port.unconfirmed for port in self.ports.values())

    def close(self) -> None:
        for port in self.ports.values():
            port.close()

    def fail_pushes(self, error: ClientError) -> None:
        for port in self.ports.values():
            for lane in list(port.lanes):
                lane.fail_all(error)

    def is_stalled(self) -> bool:
        """Whether a lane has had no confirm since the check before; asks every lane, since each remembers."""
        stalled = [lane.is_stalled() for port in self.ports.values() for lane in port.lanes]
        return any(stalled)
