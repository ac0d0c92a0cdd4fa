"""A block node that serves gRPC on a real socket, and peers that speak to it as PBJ does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import trio

from block_node.blocks.address_book import AddressBooks
from block_node.blocks.generator import GeneratedBlock
from block_node.blocks.items import Item
from block_node.blocks.settings import VerifierSettings
from block_node.grpc.calls.services import AboutCalls, GrpcServices, block_methods
from block_node.grpc.http2.connection import CallHandler, DoorCounts, GrpcCall, Route, ServerConnection
from block_node.grpc.http2.limits import Http2Limits
from block_node.grpc.http2.message_reader import MessageBudget
from block_node.grpc.http2.socket_bytes import SocketBytes
from block_node.grpc.limits import GrpcLimits
from block_node.grpc.messages import WireMessage, read_message, write_message
from block_node.publish.block_machine import PublishLimits
from block_node.read.feed import SubscribeLimits
from block_node.read.services import ReadServices
from ockam.actors.message import Origin
from ockam.transport.listener import accept_all
from ockam.transport.sockets import socket_name
from tests.block_node.grpc.http2.raw_client import Answer, RawClient, framed, pbj_headers, raw_client
from tests.block_node.publish.samples import VERIFIER, Bench, bench, header_of

PACKAGE = "/org.hiero.block.api"
PUBLISH = f"{PACKAGE}.BlockStreamPublishService/publishBlockStream"
SUBSCRIBE = f"{PACKAGE}.BlockStreamSubscribeService/subscribeBlockStream"
GET = f"{PACKAGE}.BlockAccessService/getBlock"
STATUS = f"{PACKAGE}.BlockNodeService/serverStatus"
DETAIL = f"{PACKAGE}.BlockNodeService/serverStatusDetail"
UNAVAILABLE = 14


class BlockDoor:
    """The node `world` with its gRPC services at `port`."""

    def __init__(self, world: Bench, services: GrpcServices, port: int, counts: DoorCounts) -> None:
        self.world = world
        self.services = services
        self.port = port
        self.counts = counts
        self.connections: list[ServerConnection] = []


@asynccontextmanager
async def block_door(
    directory: Path,
    limits: PublishLimits | None = None,
    *,
    grpc: GrpcLimits | None = None,
    http2: Http2Limits | None = None,
    plan: SubscribeLimits | None = None,
    first_block: int = 0,
    verifier: VerifierSettings = VERIFIER,
    books: AddressBooks | None = None,
    patience_s: float = 40,
) -> AsyncIterator[BlockDoor]:
    async with (
        bench(directory, limits, first_block, verifier=verifier, books=books) as world,
        trio.open_nursery() as nursery,
    ):
        ids = count()
        read = ReadServices(world.node, world.block_node, version="0.1.0", new_id=lambda: f"r{next(ids)}")
        read.start()
        services = GrpcServices(world.node, world.block_node, read, grpc or GrpcLimits(), plan_limits=plan)
        services.start()
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        door = BlockDoor(world, services, listener.socket.getsockname()[1], DoorCounts())
        http2 = http2 or Http2Limits()
        budget = MessageBudget(http2.unfinished_bytes_max)

        def opened(open_: Any, call: GrpcCall) -> CallHandler:
            handler: CallHandler = open_(services, call)
            return handler

        routes = {
            path: Route(partial(opened, method.open), method.message_bytes_max)
            for path, method in block_methods(grpc or GrpcLimits()).items()
        }
        about = AboutCalls(lambda: True, list(routes))
        routes |= {path: Route(open_, 65_536) for path, open_ in about.methods().items()}

        def accept(stream: trio.SocketStream) -> None:
            address = socket_name(stream.socket.getpeername())
            connection = ServerConnection(
                SocketBytes(stream),
                routes,
                http2,
                budget,
                door.counts,
                address=address,
                peer=Origin("grpc", address),
                prefers=("zstd", "gzip"),
                batch=world.node.batch,
            )
            door.connections.append(connection)
            nursery.start_soon(connection.run)

        nursery.start_soon(partial(accept_all, listener, accept, lambda: None))
        with trio.fail_after(patience_s):
            yield door
        for connection in door.connections:
            connection._machine.check()
            connection.close("test")
        await trio.testing.wait_all_tasks_blocked()
        assert budget.held_bytes == budget.window_bytes == 0
        assert not world.publishing.sessions()
        assert not services._subscriptions
        nursery.cancel_scope.cancel()


class BlockPublisher:
    """What a publisher sends, and the answers that it expects, by any client."""

    async def put(self, message: bytes) -> None:
        raise NotImplementedError

    async def hear(self) -> bytes:
        """Returns the next answer."""
        raise NotImplementedError

    async def ended(self) -> int:
        """Waits for the end of the call, and returns its status."""
        raise NotImplementedError

    async def send(self, request: WireMessage) -> None:
        await self.put(write_message("PublishStreamRequest", request))

    async def items(self, items: Sequence[Item]) -> None:
        await self.send({"block_items": {"block_items": list(items)}})

    async def header(self, number: int) -> None:
        await self.items([header_of(number)])

    async def end_block(self, number: int) -> None:
        await self.send({"end_of_block": {"block_number": number}})

    async def block(self, block: GeneratedBlock, set_size: int = 4) -> None:
        for start in range(0, len(block.items), set_size):
            await self.items(block.items[start : start + set_size])
        await self.end_block(block.number)

    async def end_stream(self, code: int = 1, earliest: int = 0, latest: int = 0) -> None:
        end = {"end_code": code, "earliest_block_number": earliest, "latest_block_number": latest}
        await self.send({"end_stream": end})

    async def next(self) -> WireMessage:
        """The next answer."""
        return read_message("PublishStreamResponse", await self.hear())

    async def expect(self, kind: str, number: int) -> None:
        found = await self.next()
        block = {"block_number": number} if number else {}
        assert found == {kind: block}, f"{found} came where {kind} {number} was expected"

    async def expect_end(self, status: int, last: int, proximate: int) -> str:
        """The end of the stream, and the trailers behind it. Returns the reason in them, if the client tells it."""
        found = await self.next()
        fields = {"status": status, "block_number": last, "proximate_block_number": proximate}
        assert found == {"end_stream": {name: value for name, value in fields.items() if value}}
        assert await self.ended() == 0
        return ""

    async def wait_for(self, kind: str, number: int) -> list[WireMessage]:
        """Until that answer has come; those before it."""
        before = []
        wanted = {kind: {"block_number": number} if number else {}}
        while (found := await self.next()) != wanted:
            before.append(found)
        return before


class GrpcPublisher(BlockPublisher):
    """One publisher on a connection of its own."""

    def __init__(self, client: RawClient, stream_id: int) -> None:
        self.client = client
        self.stream_id = stream_id
        self.seen = 0

    @classmethod
    async def opened(cls, client: RawClient) -> GrpcPublisher:
        """A publisher that was let in. A node that is still starting says UNAVAILABLE, and is asked again."""
        while True:
            stream_id = await client.open(pbj_headers(PUBLISH))
            answer = client.answers[stream_id]
            # Who is let in gets headers at once.
            await client.until(lambda answer=answer: bool(answer.headers))  # type: ignore[misc]
            if not answer.has_ended:
                return cls(client, stream_id)
            assert answer.status == UNAVAILABLE, answer.text
            await trio.sleep(0.01)

    @property
    def answer(self) -> Answer:
        return self.client.answers[self.stream_id]

    async def put(self, message: bytes) -> None:
        await self.client.send(self.stream_id, framed(message))

    async def hear(self) -> bytes:
        await self.client.until(lambda: len(self.answer.messages()) > self.seen)
        self.seen += 1
        return self.answer.messages()[self.seen - 1]

    async def ended(self) -> int:
        return (await self.client.until_end(self.stream_id)).status

    async def expect_end(self, status: int, last: int, proximate: int) -> str:
        await super().expect_end(status, last, proximate)
        return self.answer.text


@asynccontextmanager
async def publisher(door: BlockDoor) -> AsyncIterator[GrpcPublisher]:
    async with raw_client(door.port) as client:
        yield GrpcPublisher(client, await client.open(pbj_headers(PUBLISH)))


async def ask(door: BlockDoor, path: str, request: bytes) -> Answer:
    async with raw_client(door.port) as client:
        return await client.ask(pbj_headers(path), framed(request))


def range_of(start: int, end: int) -> bytes:
    return write_message("SubscribeStreamRequest", {"start_block_number": start, "end_block_number": end})


def blocks_of(parts: list[WireMessage]) -> dict[int, list[bytes]]:
    """The blocks of a subscription by number. Each begins with its header, and ends with its end."""
    found: dict[int, list[bytes]] = {}
    items: list[bytes] = []
    for part in parts:
        if "block_items" in part:
            items += part["block_items"]["block_items"]
        elif "end_of_block" in part:
            assert items[0][0] == 0x0A, "a block begins with its header"
            found[part["end_of_block"].get("block_number", 0)], items = items, []
    assert not items
    return found
