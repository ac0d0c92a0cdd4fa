"""A whole server of this project inside the test: real sockets, real files, its statistics and log lines at hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from ockam.actors.address import split_host_port
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from stream_node.node.config import Config
from stream_node.node.parts import ServerStatistics
from stream_node.node.server import Server
from tests.support.databases import database_settings
from tests.support.stream_peer import StreamPeer

PATIENCE_S = 30.0
"""How long a test waits for what must come; generous, since the machines that run this are shared."""


class Served:
    """A server that listens. Every connection made through it is closed when the block of `served` ends."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.address = server.addresses[0]
        self._streams: list[trio.SocketStream] = []

    async def connect(self) -> trio.SocketStream:
        """A connection on which nothing has been sent."""
        stream = await trio.open_tcp_stream(*split_host_port(self.address))
        self._streams.append(stream)
        return stream

    async def peer(self, wire: Wire = HEAD) -> StreamPeer:
        """A client that has said hello."""
        stream = await self.connect()
        await stream.send_all(wire.hello)
        return StreamPeer(stream, wire)

    def close_peers(self) -> None:
        for stream in self._streams:
            stream.socket.close()

    def statistics(self) -> ServerStatistics:
        return self.server.statistics()

    async def wait_closed_because(self, reason: str, count: int = 1) -> None:
        await wait_until(lambda: self.statistics().tcp.closed.get(reason, 0) >= count)


@asynccontextmanager
async def served(data_dir: Path, **settings: Any) -> AsyncIterator[Served]:
    """A server on that data directory and a free port; `settings` are those of `Config`. It drains at the end."""
    settings = {"listen": "127.0.0.1:0", **database_settings(data_dir), **settings}
    server = Server(Config(data_dir=str(data_dir), **settings))
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve)
        running = Served(server)
        try:
            yield running
        finally:
            running.close_peers()
            server.stop()


@asynccontextmanager
async def neighbour(running: Served) -> AsyncIterator[None]:
    """Somebody else on the node, who must notice nothing of what happens in the block."""
    peer = await running.peer()
    route = await peer.create("neighbour")
    confirm = await peer.push(route, b"before")
    yield
    with trio.fail_after(PATIENCE_S):
        assert (await peer.push(route, b"after")).index == confirm.index + 1
        page = await peer.pull(route, confirm.index, 10)
    assert [message.data for message in page.messages] == [b"before", b"after"]


async def wait_until(condition: Callable[[], object]) -> None:
    """Poll until the condition holds. Raises trio.TooSlowError."""
    with trio.fail_after(PATIENCE_S):
        while not condition():
            await trio.sleep(0.005)
