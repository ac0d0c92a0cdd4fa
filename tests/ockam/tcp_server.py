"""A node that listens on a port of this machine and has an echo worker, for tests of its connections."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from ockam.actors.address import local
from ockam.actors.message import Message
from ockam.actors.node import Node
from ockam.actors.worker import Worker
from ockam.transport.tcp import TcpTransport
from ockam.transport.wire import Wire
from tests.support.peer import Peer


class Echo(Worker):
    def handle(self, message: Message) -> None:
        self.reply(message, message.payload)


class Server:
    """A node that listens and has an echo worker."""

    def __init__(self, node: Node, transport: TcpTransport, address: str) -> None:
        self.node = node
        self.transport = transport
        self.address = address
        self._streams: list[trio.SocketStream] = []

    async def connect(self) -> trio.SocketStream:
        host, _, port = self.address.rpartition(":")
        self._streams.append(await trio.open_tcp_stream(host, int(port)))
        return self._streams[-1]

    def close_peers(self) -> None:
        for stream in self._streams:
            stream.socket.close()

    async def peer(self, wire: Wire) -> Peer:
        stream = await self.connect()
        await stream.send_all(wire.hello)
        return Peer(stream, wire)

    async def wait_closed_because(self, reason: str) -> None:
        with trio.fail_after(10):
            while reason not in self.transport.statistics().closed:
                await trio.sleep(0.005)


@asynccontextmanager
async def serve(**options: Any) -> AsyncIterator[Server]:
    async with trio.open_nursery() as nursery:
        node = Node(nursery)
        transport = TcpTransport(node, nursery, **options)
        (address,) = await transport.listen("127.0.0.1", 0)
        node.register([local("echo")], Echo)
        server = Server(node, transport, address)
        try:
            yield server
        finally:
            server.close_peers()
            nursery.cancel_scope.cancel()
