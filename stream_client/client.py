"""The client of a node: makes, finds and lists streams."""

from __future__ import annotations

from contextlib import suppress

from stream_client.admin import LIST_PAGE, StreamListing
from stream_client.conversation import Conversation
from stream_client.core.service_route import STREAM_SERVICE
from stream_client.correspondent import Correspondent
from stream_client.errors import ClientError, NodeFailed, RequestRefused, StreamNotFound
from stream_client.session import Session
from stream_client.streams import PartitionedStream, Stream, create_streams
from stream_service.extensions import LIST, ListRequest
from stream_service.names import near_names


class StreamClient(Session):
    """A session with one node that makes, finds and lists its streams.

    Made by `connect`; its methods may be used from many tasks at once.
    """

    def __repr__(self) -> str:
        link = self.core.connection
        state = "closed" if link.closed else "not connected" if link.wire is None else "connected"
        return f"<StreamClient of {self.address}, {state}>"

    async def reached(self) -> None:
        """Wait for a sign of life of the stream service. Raises NodeUnreachable, NotAStreamNode, RequestTimeout."""
        route = self.core.service_route
        if not route.reached:
            # A service that refuses the question, or fails to answer it, is there.
            with suppress(RequestRefused, NodeFailed):
                await self.finished(route.ask(), self.answer_timeout_s)

    async def create(self, name: str | None = None) -> Stream:
        """The stream of that name, made if it does not exist; without a name the node makes one up."""
        return (await create_streams(self, name))[0]

    async def create_partitioned(self, name: str | None, partitions: int) -> PartitionedStream:
        """All partitions of a stream. Those missing of the first `partitions` are made, which moves keys to others.

        A stream that has more partitions keeps them, and its keys stay where they are. A node without
        `node/stream_list/1` does not tell of those; the result then has the first `partitions` only.
        """
        made = await create_streams(self, name, partitions)
        try:
            existing = await self.find_stream(made[0].name)
        except RequestRefused:
            existing = None
        return existing if existing is not None and existing.count > partitions else PartitionedStream(made)

    async def find_stream(self, name: str) -> PartitionedStream | None:
        """All partitions of a stream, or None; nothing is made. Needs a node that has `node/stream_list/1`."""
        partitions = []
        async for info in self.list_streams(name):
            if info.stream_name != name:
                break
            partitions.append(info.partition)
        handles = self.core.find_handles(name, partitions)
        return PartitionedStream([Stream(self, handle) for handle in handles]) if handles else None

    async def get_stream(self, name: str) -> PartitionedStream:
        """As `find_stream`. Raises StreamNotFound, which names streams with similar names."""
        found = await self.find_stream(name)
        if found is None:
            near = near_names(name, await self._some_names(name[:1]))
            raise StreamNotFound(f"{self.address} has no stream {name!r}{f'; it has {near}' if near else ''}")
        return found

    def list_streams(self, prefix: str = "", *, page_streams: int = LIST_PAGE) -> StreamListing:
        """The stream-partitions whose name begins with `prefix`, by name and partition, fetched a page at a time."""
        return StreamListing(self, prefix, page_streams)

    async def correspondent(self, inbox: str | None = None) -> Correspondent:
        """A party of two-way messaging. inbox: the stream that its answers come to; None: the node makes up a name."""
        return Correspondent(self, await self.create(inbox))

    def converse(self, service: str) -> Conversation:
        """Messages back and forth with one service of the node, to be closed by the caller."""
        return Conversation(self, service)

    async def _some_names(self, prefix: str) -> set[str]:
        """A page of names with that prefix and a page of all names, for a hint; empty where the node does not tell."""
        names: set[str] = set()
        with suppress(ClientError):
            for begins in {prefix, ""}:
                page = await self.ask(STREAM_SERVICE, LIST, ListRequest(0, begins, None, LIST_PAGE))
                names.update(each.stream_name for each in page.streams)
        return names
