"""Positions of a consumer kept in a node's index service, for `stream_service.client.Consumer`."""

from __future__ import annotations

from typing import Protocol

from index_service.protocol import (
    INDEX_PARTITIONED,
    GetPartitionIndex,
    SavePartitionIndex,
)
from ockam.protocol import ProtocolError

SERVICE = "stream_index_service"


class Requester(Protocol):
    """The part of a stream client that is needed here."""

    async def request(self, service: str, payload: bytes) -> bytes: ...

    def tell(self, service: str, payload: bytes) -> None: ...


class SavedIndexes:
    """The positions of one client id: each the next index to read of one stream-partition.

    The service keeps the highest index ever saved. A save is not answered; `get` asks again and so tells what is kept.
    """

    def __init__(self, client: Requester, client_id: str) -> None:
        self._client = client
        self.client_id = client_id

    async def get(self, stream_name: str, partition: int = 0) -> int:
        """The saved index; 0 where none was saved. Raises ClientErrors of the client, and ProtocolError."""
        request = GetPartitionIndex(self.client_id, stream_name, partition)
        answer = INDEX_PARTITIONED.decode_response(
            await self._client.request(SERVICE, INDEX_PARTITIONED.encode_request(request))
        )
        if (answer.client_id, answer.stream_name, answer.partition) != (self.client_id, stream_name, partition):
            raise ProtocolError(f"the index service answered for {answer.stream_name!r}, not for {stream_name!r}")
        return answer.index or 0

    async def save(self, stream_name: str, partition: int, index: int) -> None:
        request = SavePartitionIndex(self.client_id, stream_name, partition, index)
        self._client.tell(SERVICE, INDEX_PARTITIONED.encode_request(request))
