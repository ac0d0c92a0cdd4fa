"""Clients of the forwarding service, made of a socket each, and nodes that have the service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from ockam.actors.address import Route, local
from ockam.actors.forwarding_protocol import (
    DELIVERY,
    FORWARD,
    REGISTER,
    ForwardRequest,
    Registered,
    RegisterRequest,
    Taken,
)
from ockam.actors.message import Message
from ockam.actors.worker import Worker
from ockam.protocol import ERROR, error_payload
from ockam.transport.connection import Connection
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from stream_node.forwarding.stream_link import StreamLink
from stream_node.node.parts import NodeParts
from tests.support.peer import Peer
from tests.support.served import Served, served

W = TypeVar("W", bound=Worker)
SERVICE = (local("forwarding_service"),)
STATIC_SERVICE = (local("static_forwarding_service"),)


@asynccontextmanager
async def forwarding_node(folder: Path, **settings: Any) -> AsyncIterator[Served]:
    async with served(folder / "data", forwarding=True, **settings) as running:
        yield running


class ForwardedPeer(Peer):
    """One connection. `address` is the route to its forwarding address, after a registration."""

    address: Route

    async def ask(self, route: Route, payload: bytes) -> Message:
        await self.send(route, payload)
        return await self.receive()

    async def register(self, service: Route = SERVICE, payload: bytes = b"register") -> Message:
        """As Ockam's own clients do it."""
        answer = await self.ask(service, payload)
        self.address = answer.return_route
        return answer

    async def register_own(
        self, name: str | None, *, stores: bool = True, confirms: bool = False, confirmed: int = -1
    ) -> Registered:
        answer = await self.ask(SERVICE, REGISTER.encode_request(RegisterRequest(7, name, stores, confirms)))
        self.address = answer.return_route
        return REGISTER.decode_response(answer.payload)

    async def refused(self, route: Route, payload: bytes) -> str:
        return ERROR.decode_response((await self.ask(route, payload)).payload).reason

    async def forward(self, route: Route, payload: bytes) -> bool:
        """Sends a message that is answered. Returns whether it is stored."""
        answer = await self.ask(route, FORWARD.encode_request(ForwardRequest(1, payload)))
        return FORWARD.decode_response(answer.payload).stored

    async def take(self, count: int, *, confirms: bool = True) -> list[tuple[int, bytes]]:
        """The next deliveries, each of which is confirmed."""
        found = []
        for _ in range(count):
            delivery = DELIVERY.decode_request((await self.receive()).payload)
            found.append((delivery.index, delivery.payload))
            if confirms:
                await self.send(self.address, DELIVERY.encode_response(Taken(delivery.index)))
        return found


async def connect(running: Served, wire: Wire = HEAD) -> ForwardedPeer:
    stream = await running.connect()
    await stream.send_all(wire.hello)
    return ForwardedPeer(stream, wire)


def parts_of(running: Served) -> NodeParts:
    assert running.server._parts is not None
    return running.server._parts


def workers_of(running: Served, kind: type[W]) -> list[W]:
    return list(
        {
            id(each.worker): each.worker
            for each in parts_of(running).node._cells.values()
            if isinstance(each.worker, kind)
        }.values()
    )


def watchers_of(running: Served) -> list[int]:
    """For each connection, the number of those who wait for its end or for room in it."""
    return sorted(len(each.holdings._watchers) for each in workers_of(running, Connection))


def fail(running: Served, link: StreamLink, what: str) -> None:
    """Answers a request of a link as a stream does whose disk fails."""
    parts_of(running).node.send(Message((link._inner, local(what)), (), error_payload("the disk fails")))
