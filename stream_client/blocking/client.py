# Generated from stream_client/client.py by tools/generate_blocking.py; do not edit.
"""The client of a node: makes, finds and lists streams."""

from __future__ import annotations

from contextlib import suppress

from stream_client.blocking.admin import LIST_PAGE, StreamListing
from stream_client.blocking.conversation import Conversation
from stream_client.blocking.correspondent import Correspondent
from stream_client.blocking.session import Session
from stream_client.blocking.streams import PartitionedStream, Stream, create_streams
from stream_client.core.service_route import STREAM_SERVICE
from stream_client.errors import ClientError, NodeFailed, RequestRefused, StreamNotFound
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

    def reached(self) -> None:
        """Wait for a sign of life of the stream service. Raises NodeUnreachable, NotAStreamNode, RequestTimeout."""
        route = self.core.service_route
        if not route.reached:
            # A service that refuses the question, or fails to answer it, is there.
            with suppress(RequestRefused, NodeFailed):
                self.finished(route.ask(), self.answer_timeout_s)

    def create(self, name: str | None = None) -> Stream:
        """The stream of that name, made if it does not exist; without a name the node makes one up."""
        return (create_streams(self, name))[0]

    def create_partitioned(self, name: str | None, partitions: int) -> PartitionedStream:
        """All partitions of a stream. Those missing of the first `partitions` are made, which moves keys to others.

        A stream that has more partitions keeps them, and its keys stay where they are. A node without
        `node/stream_list/1` does not tell of those; the result then has the first `partitions` only.
        """
        made = create_streams(self, name, partitions)
        try:
            existing = self.find_stream(made[0].name)
        except RequestRefused:
            existing = None
        return existing if existing is not None and existing.count > partitions else PartitionedStream(made)

    def find_stream(self, name: str) -> PartitionedStream | None:
        """All partitions of a stream, or None; nothing is made. Needs a node that has `node/stream_list/1`."""
        partitions = []
        for info in self.list_streams(name):
            if info.stream_name != name:
                break
            partitions.append(info.partition)
        handles = self.core.find_handles(name, partitions)
        return PartitionedStream([Stream(self, handle) for handle in handles]) if handles else None

    def get_stream(self, name: str) -> PartitionedStream:
        """As `find_stream`. Raises StreamNotFound, which names streams with similar names."""
        found = self.find_stream(name)
        if found is None:
            near = near_names(name, self._some_names(name[:1]))
            raise StreamNotFound(f"{self.address} has no stream {name!r}{f'; it has {near}' if near else ''}")
        return found

    def list_streams(self, prefix: str = "", *, page_streams: int = LIST_PAGE) -> StreamListing:
        """The stream-partitions whose name begins with `prefix`, by name and partition, fetched a page at a time."""
        return StreamListing(self, prefix, page_streams)

    def correspondent(self, inbox: str | None = None) -> Correspondent:
        """A party of two-way messaging. inbox: the stream that its answers come to; None: the node makes up a name."""
        return Correspondent(self, self.create(inbox))

    def converse(self, service: str) -> Conversation:
        """Messages back and forth with one service of the node, to be closed by the caller."""
        return Conversation(self, service)

    def _some_names(self, prefix: str) -> set[str]:
        """A page of names with that prefix and a page of all names, for a hint; empty where the node does not tell."""
        names: set[str] = set()
        with suppress(ClientError):
            for begins in {prefix, ""}:
                page = self.ask(STREAM_SERVICE, LIST, ListRequest(0, begins, None, LIST_PAGE))
                names.update(each.stream_name for each in page.streams)
        return names
