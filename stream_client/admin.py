"""The operations of an administrator: describe, truncate and delete streams, set retentions, list and set positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Self, TypeVar

from index_service.extensions import (
    MARKED_POSITIONS,
    POSITIONS,
    SET_POSITION,
    PositionKey,
    PositionsRequest,
    SavedPosition,
    SetRequest,
)
from stream_client.arguments import BeforeLike, before_of
from stream_client.core.partition_handle import PartitionHandle
from stream_client.core.service_route import INDEX_SERVICE, STREAM_SERVICE
from stream_client.errors import AccessDenied, InvalidArgument, RequestRefused
from stream_client.session import ClientSession, Connected
from stream_service.appending import COPY, CopiedMessage, CopyRequest, CopyResponse
from stream_service.extensions import (
    DELETE,
    DELETE_ALL,
    INFO,
    LIST,
    RETENTION,
    TRUNCATE,
    DeleteAllRequest,
    DeleteRequest,
    InfoRequest,
    ListRequest,
    Retention,
    RetentionRequest,
    RichMessage,
    StreamInfo,
    StreamKey,
    TruncateRequest,
    TruncateResponse,
)

LIST_PAGE = 1_000

T = TypeVar("T")


class StreamAdmin:
    """The base class of `streams.Stream`: the operations of an administrator on one partition of a stream."""

    def __init__(self, session: ClientSession, handle: PartitionHandle) -> None:
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

    async def info(self) -> StreamInfo:
        """Returns the node's description of the partition: its first and next index, size, times and retention."""
        return (await self.session.ask(self.handle, INFO, InfoRequest(0))).info

    async def truncate(self, before: BeforeLike) -> TruncateResponse:
        """Deletes the messages whose index is lower, or whose time is earlier, than `before`. Returns the number of
        deleted messages and the partition's new first index."""
        return await self.session.ask(self.handle, TRUNCATE, TruncateRequest(0, before_of(before)))

    async def set_retention(self, retention: Retention | None) -> StreamInfo:
        """Sets the limits above which the node deletes the partition's oldest messages; None restores the node's
        default. Returns the changed description. A value of another type raises InvalidArgument."""
        if not isinstance(retention, Retention | None):
            given = type(retention).__name__
            raise InvalidArgument(f"what to keep is a Retention, or None for the node's default, not {given}")
        return (await self.session.ask(self.handle, RETENTION, RetentionRequest(0, retention))).info

    async def delete(self, *, keep_positions: bool = False) -> int:
        """Deletes the partition with all its messages, and returns the number of deleted messages. Every later request
        through this object raises StreamNotFound.

        keep_positions: whether the saved positions of consumers stay. They are positions of the deleted stream: a
            consumer of a stream with the same name does not resume there. An older node always keeps them.
        """
        try:
            request = DeleteAllRequest(0, keep_positions)
            deleted = (await self.session.ask(self.handle, DELETE_ALL, request)).deleted
        except AccessDenied:
            raise
        except RequestRefused:
            # An older node refuses DELETE_ALL. A node that refuses the deletion itself also refuses DELETE.
            deleted = (await self.session.ask(self.handle, DELETE, DeleteRequest(0))).deleted
        self.session.core.streams.drop(self.handle)
        return deleted

    async def copy_in(self, index: int, messages: Sequence[RichMessage]) -> CopyResponse:
        """Stores copies of another stream's messages, with their original times (`node/stream_copy/1`).

        index: the index of the first copy: the partition's next index, or any index in a partition without messages.
        messages: the copies, at most some MiB together, since one request carries all of them.
        """
        copied = [CopiedMessage(each.time_us, each.key, list(each.headers), each.data) for each in messages]
        return await self.session.ask(self.handle, COPY, CopyRequest(0, index, copied))


class Listing(Generic[T]):
    """An iterator over items that the node lists. It fetches them page by page. You can stop at any item."""

    def __init__(self, session: ClientSession, page_items: int) -> None:
        self._session = session
        self._page_items = page_items
        self._page: Sequence[T] = ()
        self._at = 0
        self._more = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._at >= len(self._page):
            self._page, self._at = await self._next_page() if self._more else (), 0
            if not self._page:
                self._more = False
                raise StopAsyncIteration
        item = self._page[self._at]
        self._at += 1
        return item

    async def _next_page(self) -> Sequence[T]:
        """Fetches the next page of items. Sets `_more` to whether the node has yet another page."""
        raise NotImplementedError


class StreamListing(Listing[StreamInfo]):
    """An iterator over the partitions of all streams whose name begins with a prefix, sorted by name and partition."""

    def __init__(self, session: ClientSession, prefix: str, page_items: int) -> None:
        super().__init__(session, page_items)
        self._prefix = prefix

    async def _next_page(self) -> Sequence[StreamInfo]:
        after = StreamKey(self._page[-1].stream_name, self._page[-1].partition) if self._page else None
        request = ListRequest(0, self._prefix, after, self._page_items)
        answer = await self._session.ask(STREAM_SERVICE, LIST, request)
        self._more = answer.more
        return answer.streams


class PositionListing(Listing[SavedPosition]):
    """An iterator over the positions that consumers have saved, sorted by client id, stream and partition. The items
    are `MarkedPosition` objects, which name the incarnation of the stream; an older node lists `SavedPosition`s."""

    def __init__(self, session: ClientSession, stream_name: str | None, client_id: str | None, page_items: int) -> None:
        super().__init__(session, page_items)
        self._stream_name = stream_name
        self._client_id = client_id
        self._is_marked = True

    async def _next_page(self) -> Sequence[SavedPosition]:
        after = None
        if self._page:
            last = self._page[-1]
            after = PositionKey(last.client_id, last.stream_name, last.partition)
        request = PositionsRequest(0, self._stream_name, self._client_id, after, self._page_items)
        # An older node refuses MARKED_POSITIONS. It is then asked with POSITIONS, for all later pages too.
        if self._is_marked:
            try:
                marked = await self._session.ask(INDEX_SERVICE, MARKED_POSITIONS, request)
            except AccessDenied:
                raise
            except RequestRefused:
                self._is_marked = False
            else:
                self._more = marked.more
                return marked.positions
        answer = await self._session.ask(INDEX_SERVICE, POSITIONS, request)
        self._more = answer.more
        return answer.positions


def list_positions(
    client: Connected, *, stream_name: str | None = None, client_id: str | None = None, page_positions: int = LIST_PAGE
) -> PositionListing:
    """Returns an iterator over saved positions (`node/index_list/1`). One request fetches `page_positions` of them.

    client: a StreamClient.
    stream_name, client_id: list only the positions in this stream, under this client id; None: all.
    """
    return PositionListing(client.session, stream_name, client_id, page_positions)


async def set_position(
    client: Connected, client_id: str, stream_name: str, partition: int, index: int | None
) -> int | None:
    """Sets the next index that a consumer reads in one partition. The index can be lower than the saved one. None
    deletes the saved position. Returns the index saved before, or None if no index was saved.

    Needs `node/index_set/1`. Raises RequestRefused while a running consumer has a lease of the partition.

    client: a StreamClient. client_id: the consumer's name.
    """
    key = PositionKey(client_id, stream_name, partition)
    return (await client.session.ask(INDEX_SERVICE, SET_POSITION, SetRequest(0, key, index))).before
