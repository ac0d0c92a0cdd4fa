"""StreamClient: creates, finds and lists the streams of one node."""

from __future__ import annotations

from contextlib import suppress

from stream_client.admin import LIST_PAGE, StreamListing
from stream_client.core.client_core import ClientStatistics
from stream_client.core.service_route import STREAM_SERVICE
from stream_client.correspondent import Correspondent
from stream_client.errors import ClientError, NodeFailed, RequestRefused, StreamNotFound
from stream_client.session import ClientSession, Conversation
from stream_client.streams import PartitionedStream, Stream, create_streams
from stream_service.extensions import LIST, WHERE, ListRequest, WhereRequest
from stream_service.names import near_names


class StreamClient:
    """A client of one node, returned by `connect`. It creates, finds and lists the node's streams.

    The tasks of one event loop can share it, and a blocking client serves one thread at a time; other threads open
    clients of their own. In a child process that fork() makes, also by multiprocessing or a prefork server, every
    request raises ClientForked: open a client there, after the fork.

    address: `host:port` of the node that the client connects to.
    session: sends the requests of this client and of its streams. Programs do not need it.
    """

    def __init__(self, session: ClientSession) -> None:
        self.address = session.address
        self.session = session

    def __repr__(self) -> str:
        link = self.session.core.connection
        state = "closed" if link.closed else "not connected" if link.wire is None else "connected"
        return f"<StreamClient of {self.address}, {state}>"

    async def reached(self) -> None:
        """Waits until the node's stream service has answered a request of this client; returns at once if it has
        answered one before. If no answer comes, raises NodeUnreachable, NotAStreamNode or RequestTimeout."""
        route = self.session.core.service_route
        if not route.reached:
            # A refusal and a failure are answers too: they prove that the service exists.
            with suppress(RequestRefused, NodeFailed):
                await self.session.finished(route.ask(), self.session.answer_timeout_s)

    async def create(self, name: str | None = None) -> Stream:
        """Creates a stream if it does not exist, and returns its partition 0. Without a name, the node chooses one.
        `get_stream` returns an object for all partitions, which pushes each message to the partition of its key."""
        return (await create_streams(self.session, name))[0]

    async def create_partitioned(self, name: str | None, partitions: int) -> PartitionedStream:
        """Creates each of the partitions 0 to `partitions` - 1 that does not exist yet, and returns all partitions of
        the stream. Without a name, the node chooses one.

        The partition of a key depends on the number of partitions. So after partitions have been added, new messages
        with a key can go to another partition than the earlier messages with this key. A node without the protocol
        `node/stream_list/1` cannot list partitions; the result then has only the partitions 0 to `partitions` - 1.
        """
        made = await create_streams(self.session, name, partitions)
        try:
            existing = await self.find_stream(made[0].name)
        except RequestRefused:
            existing = None
        return (
            existing
            if existing is not None and existing.count > partitions
            else PartitionedStream(made, is_whole=existing is not None)
        )

    async def find_stream(self, name: str) -> PartitionedStream | None:
        """Returns all partitions of a stream; None if it does not exist. Raises RequestRefused if the node lacks
        `node/stream_list/1`."""
        partitions = []
        async for info in self.list_streams(name):
            if info.stream_name != name:
                break
            partitions.append(info.partition)
        handles = self.session.core.find_handles(name, partitions)
        streams = [Stream(self.session, handle) for handle in handles]
        return PartitionedStream(streams, is_whole=True) if streams else None

    async def get_stream(self, name: str) -> PartitionedStream:
        """Returns all partitions of a stream. If none exists, raises StreamNotFound, whose text has similar names."""
        found = await self.find_stream(name)
        if found is None:
            names: set[str] = set()
            with suppress(ClientError):
                for begins in {name[:1], ""}:
                    page = await self.session.ask(STREAM_SERVICE, LIST, ListRequest(0, begins, None, LIST_PAGE))
                    names.update(each.stream_name for each in page.streams)
            near = near_names(name, names)
            raise StreamNotFound(f"{self.address} has no stream {name!r}{f'; it has {near}' if near else ''}")
        return found

    def list_streams(self, prefix: str = "", *, page_streams: int = LIST_PAGE) -> StreamListing:
        """Returns an iterator over the descriptions (`StreamInfo`) of all partitions whose stream's name begins with
        `prefix`, sorted by stream name and then by partition number. One request fetches `page_streams` of them."""
        return StreamListing(self.session, prefix, page_streams)

    async def find_owner(self, name: str, partition: int = 0) -> str | None:
        """Returns the `host:port` of the process that serves a partition; None if the connected process serves it, or
        if no process does now. Every node of a cluster, and every worker of a node, passes messages on to that process;
        a client that connects to it saves the detour."""
        found = await self.session.ask(STREAM_SERVICE, WHERE, WhereRequest(0, name, partition))
        return found.address or None

    async def correspondent(self, inbox: str | None = None) -> Correspondent:
        """Creates a Correspondent: a party that sends messages to other parties over streams and receives their answers
        in the stream `inbox`, which is created if it does not exist. None: the node chooses its name."""
        return Correspondent(self.session, await self.create(inbox))

    def converse(self, service: str) -> Conversation:
        """Begins a conversation: any number of messages exchanged with one service. The caller closes it."""
        return Conversation(self.session, service)

    def statistics(self) -> ClientStatistics:
        """Returns the client's counts: connections and bytes since its start, and unanswered requests."""
        return self.session.core.statistics()
