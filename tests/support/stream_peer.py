"""A raw connection that speaks the stream and index protocols, for tests that look at single answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from index_service.protocol import (
    INDEX,
    INDEX_PARTITIONED,
    PARTITIONED_BODY,
    GetIndex,
    GetPartitionIndex,
    SaveIndex,
    SavePartitionIndex,
)
from ockam.actors.address import Route, local, split_host_port
from ockam.actors.message import Message
from ockam.protocol import ERROR, Protocol
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from stream_service.protocol import (
    CREATE,
    CREATE_PARTITIONED,
    PULL,
    PUSH,
    CreatePartitions,
    CreateStream,
    PartitionCreated,
    PullRequest,
    PullResponse,
    PushConfirm,
    PushRequest,
)
from tests.support.peer import Peer

SERVICE = (local("stream_service"),)
INDEX_SERVICE = (local("stream_index_service"),)


class StreamPeer(Peer):
    """One connection. Every method sends one request and, unless it says otherwise, waits for its answer."""

    async def ask(self, route: Route, payload: bytes) -> Message:
        await self.send(route, payload)
        return await self.receive()

    async def create(self, name: str | None) -> Route:
        """The route to the stream, as its Init gives it."""
        return (await self.ask(SERVICE, CREATE.encode_request(CreateStream(name)))).return_route

    async def create_partitions(
        self,
        name: str | None,
        partitions: int,
        protocol: Protocol[CreatePartitions, PartitionCreated] = CREATE_PARTITIONED,
    ) -> list[tuple[PartitionCreated, Route]]:
        """The Init of each partition with the route that it came from, in the order of arrival."""
        await self.send(SERVICE, protocol.encode_request(CreatePartitions(name, partitions)))
        answers = [await self.receive() for _ in range(partitions)]
        return [(protocol.decode_response(answer.payload), answer.return_route) for answer in answers]

    async def push(self, route: Route, data: bytes, request_id: int = 1) -> PushConfirm:
        answer = await self.ask(route, PUSH.encode_request(PushRequest(request_id, data)))
        return PUSH.decode_response(answer.payload)

    async def push_all(self, route: Route, data: Sequence[bytes]) -> list[PushConfirm]:
        """Push without waiting for each confirm; the request ids are the positions."""
        pushes = [PUSH.encode_request(PushRequest(number, each)) for number, each in enumerate(data)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.stream.send_all, b"".join(self.frame(route, push) for push in pushes))
            return [PUSH.decode_response((await self.receive()).payload) for _ in data]

    async def pull(self, route: Route, index: int, limit: int, request_id: int = 1) -> PullResponse:
        answer = await self.ask(route, PULL.encode_request(PullRequest(request_id, index, limit)))
        return PULL.decode_response(answer.payload)

    async def refused(self, route: Route, payload: bytes) -> str:
        """The reason of the `error` that this request gets."""
        return ERROR.decode_response((await self.ask(route, payload)).payload).reason

    async def get_index(self, client_id: str, stream_name: str) -> int | None:
        answer = await self.ask(INDEX_SERVICE, INDEX.encode_request(GetIndex(client_id, stream_name)))
        response = INDEX.decode_response(answer.payload)
        assert (response.client_id, response.stream_name) == (client_id, stream_name)
        return response.index

    async def save_index(self, client_id: str, stream_name: str, index: int) -> None:
        """Not answered."""
        await self.send(INDEX_SERVICE, INDEX.encode_request(SaveIndex(client_id, stream_name, index)))

    async def get_partition_index(
        self, client_id: str, stream_name: str, partition: int, *, plain_name: bool = False
    ) -> int | None:
        """plain_name: ask under `stream_index`, as the specification has it."""
        protocol = PARTITIONED_BODY if plain_name else INDEX_PARTITIONED
        request = protocol.encode_request(GetPartitionIndex(client_id, stream_name, partition))
        response = protocol.decode_response((await self.ask(INDEX_SERVICE, request)).payload)
        assert (response.client_id, response.stream_name, response.partition) == (client_id, stream_name, partition)
        return response.index

    async def save_partition_index(
        self, client_id: str, stream_name: str, partition: int, index: int, *, plain_name: bool = False
    ) -> None:
        """Not answered."""
        protocol = PARTITIONED_BODY if plain_name else INDEX_PARTITIONED
        request = SavePartitionIndex(client_id, stream_name, partition, index)
        await self.send(INDEX_SERVICE, protocol.encode_request(request))


@asynccontextmanager
async def stream_peer(address: str, wire: Wire = HEAD) -> AsyncIterator[StreamPeer]:
    """A client of any node, in this process or not, that has said hello."""
    async with await trio.open_tcp_stream(*split_host_port(address)) as stream:
        await stream.send_all(wire.hello)
        yield StreamPeer(stream, wire)
