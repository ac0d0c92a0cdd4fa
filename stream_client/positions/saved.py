"""Positions of a consumer kept in a node's index service, for the consumers of `stream_client`; and all
positions that a node keeps, for who looks after them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, Self, TypeVar

from index_service.extensions import (
    POSITIONS,
    SET_POSITION,
    PositionKey,
    PositionsRequest,
    PositionsResponse,
    SavedPosition,
    SetRequest,
)
from index_service.protocol import (
    INDEX_PARTITIONED,
    GetPartitionIndex,
    PartitionIndex,
    SavePartitionIndex,
)
from ockam.protocol import Protocol as WireProtocol
from ockam.protocol import ProtocolError

SERVICE = "stream_index_service"
LIST_PAGE = 1_000

Q = TypeVar("Q")
A = TypeVar("A")


class Requester(Protocol):
    """The part of a stream client that is needed here; `stream_client.StreamClient` has it.

    Its errors have `retriable`: whether the same request may succeed later.
    """

    async def ask(self, service: str, protocol: WireProtocol[Q, A], request: Q) -> A: ...

    async def ask_all(self, service: str, protocol: WireProtocol[Q, A], requests: Sequence[Q]) -> list[A]: ...

    def ask_nowait(
        self, service: str, protocol: WireProtocol[Q, A], request: Q, on_answer: Callable[[A | Exception], None]
    ) -> Callable[[], None]: ...

    def tell(self, service: str, payload: bytes) -> None: ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Callable[[], None]: ...

    def now_s(self) -> float: ...


class SavedIndexes:
    """The positions of one client id: each the next index to read of one stream-partition.

    The service keeps the highest index ever saved. It does not answer a save; so `save` asks for what is kept, and
    saves again what a lost connection took with it.
    """

    def __init__(self, client: Requester, client_id: str) -> None:
        self._client = client
        self.client_id = client_id

    def __repr__(self) -> str:
        return f"<SavedIndexes of {self.client_id!r}>"

    async def get(self, stream_name: str, partition: int = 0) -> int:
        """The saved index; 0 where none was saved. Raises ClientErrors of the client, and ProtocolError."""
        return (await self.load(stream_name, (partition,)))[0]

    async def load(self, stream_name: str, partitions: Sequence[int]) -> Sequence[int]:
        """The saved index of each, 0 where there is none. Raises ClientErrors of the client, and ProtocolError."""
        requests = [GetPartitionIndex(self.client_id, stream_name, partition) for partition in partitions]
        answers = await self._client.ask_all(SERVICE, INDEX_PARTITIONED, requests)
        for request, answer in zip(requests, answers, strict=True):
            _check(request, answer)
        return [answer.index or 0 for answer in answers]

    async def save(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Save indexes by partition; they, or higher ones, are kept when this returns."""
        missing = dict(indexes)
        while missing:
            self.save_nowait(stream_name, missing)
            kept = dict(zip(missing, await self.load(stream_name, list(missing)), strict=True))
            missing = {partition: index for partition, index in missing.items() if kept[partition] < index}

    def save_nowait(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Send the same without waiting; lost where there is no connection just now."""
        for partition, index in indexes.items():
            request = SavePartitionIndex(self.client_id, stream_name, partition, index)
            self._client.tell(SERVICE, INDEX_PARTITIONED.encode_request(request))


def list_positions(
    client: Requester, *, stream_name: str | None = None, client_id: str | None = None, page_positions: int = LIST_PAGE
) -> PositionListing:
    """The saved positions of one stream, of one client id, of both, or all; taken in pages by `node/index_list/1`."""
    return PositionListing(client, PositionsRequest(0, stream_name, client_id, None, page_positions))


class PositionListing:
    """An iteration over saved positions, by client id, stream and partition. It may be left at any of them."""

    def __init__(self, client: Requester, request: PositionsRequest) -> None:
        self._client = client
        self._request: PositionsRequest | None = request
        self._page: Sequence[SavedPosition] = ()
        self._at = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SavedPosition:
        if self._at >= len(self._page) and self._request is not None:
            page = await self._client.ask(SERVICE, POSITIONS, self._request)
            self._request = _behind(self._request, page)
            self._page, self._at = page.positions, 0
        if self._at >= len(self._page):
            raise StopAsyncIteration
        position = self._page[self._at]
        self._at += 1
        return position


def _behind(request: PositionsRequest, page: PositionsResponse) -> PositionsRequest | None:
    """The request for the positions behind this page; None at the end."""
    if not page.more or not page.positions:
        return None
    last = page.positions[-1]
    after = PositionKey(last.client_id, last.stream_name, last.partition)
    return PositionsRequest(0, request.stream_name, request.client_id, after, request.limit)


async def set_position(
    client: Requester, client_id: str, stream_name: str, partition: int, index: int | None
) -> int | None:
    """Set a position, also back, or delete it (None); the one before. Needs `node/index_set/1`.

    Raises RequestRefused while a live consumer holds the partition's lease.
    """
    key = PositionKey(client_id, stream_name, partition)
    return (await client.ask(SERVICE, SET_POSITION, SetRequest(0, key, index))).before


def _check(request: GetPartitionIndex, answer: PartitionIndex) -> None:
    asked = (request.client_id, request.stream_name, request.partition)
    if (answer.client_id, answer.stream_name, answer.partition) != asked:
        raise ProtocolError(f"the index service answered for {answer.stream_name!r}, not for {request.stream_name!r}")
