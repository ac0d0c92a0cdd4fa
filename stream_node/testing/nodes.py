"""The two kinds of nodes of `stream_node.testing`: the server of `stream-node serve`, and the services of a node with
storage and connections in memory."""

from __future__ import annotations

import itertools
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import trio

from ockam.actors.node import Node
from ockam.identity.identity import ANONYMOUS
from ockam.transport.tcp import TcpTransport
from stream_client.shell.async_shell import MemoryStream
from stream_client.shell.in_memory import HOST, Pipe, listeners
from stream_node.node.config import Config
from stream_node.node.config_sources import load_config
from stream_node.node.services import Services
from stream_node.testing.hosted import HostedNode
from stream_storage.runner import MemoryRunner
from stream_storage.sqlite.in_memory import open_in_memory

DRAIN_S = 5.0
"""How long the end of a node waits for clients that do not take their answers."""
_ports = itertools.count(1)


def node(**settings: Any) -> HostedNode:
    """Returns a real node: the server of `stream-node serve`, in a thread of this process. It listens at a free port,
    and its data is in a temporary directory, which is removed at the end of the block.

        with node(retention_messages=1000) as running:
            print(running.address)

    settings: any of `stream-node serve`, as values or as texts with a unit ("7d", "64MiB"). With a `data_dir`, the data
    stays, and another node can go on with it. Variables of the environment and settings files have no effect.

    The block raises NodeNotStarted if the node does not start, and at its end NodeNotRunning if the node has failed."""
    return HostedNode(partial(_serve_real, settings))


async def _serve_real(settings: dict[str, Any], running: HostedNode) -> None:
    from stream_node.node.server import Server

    with TemporaryDirectory(prefix="stream-node-") as folder:
        given = {"data_dir": folder, "listen": "127.0.0.1:0", **settings}
        server = Server(load_config(given, environment={}))
        async with trio.open_nursery() as nursery:
            (address, *_) = await nursery.start(server.serve)
            running.http, running.grpc = server.http, server.grpc
            running.listens(address)
            await running.stopping.wait()
            server.stop()


def memory_node() -> HostedNode:
    """Returns an empty node without disk and sockets, in a thread of this process. Its data is gone after the block.

        with memory_node() as running, blocking.connect(running.address) as client:
            client.create("orders").push(b"hello")

    It has the streams, positions, consumer groups and blocks of a real node with the default settings, but no HTTP and
    gRPC, no TLS, tokens and rules, and no status. Clients of this process connect to its address as to any other.
    The block raises NodeNotStarted and NodeNotRunning as that of `node` does."""
    return HostedNode(_serve_in_memory)


async def _serve_in_memory(running: HostedNode) -> None:
    token, port = trio.lowlevel.current_trio_token(), next(_ports)
    async with trio.open_nursery() as nursery:
        node = Node(nursery)
        runner = MemoryRunner(open_in_memory(), node)
        services = Services(node, runner, Config())
        services.start([])
        tcp = TcpTransport(node, nursery)

        def attach(incoming: Pipe, outgoing: Pipe) -> None:
            # The node may have stopped since the client called.
            if port in listeners:
                tcp.attach(NodeStream(MemoryStream(incoming, outgoing)), running.address, ANONYMOUS)
            else:
                outgoing.end()

        listeners[port] = lambda incoming, outgoing: token.run_sync_soon(attach, incoming, outgoing)
        try:
            running.listens(f"{HOST}:{port}")
            await running.stopping.wait()
        finally:
            del listeners[port]
        # This node ends like a server: it stores and answers the received messages before the connections end.
        tcp.stop_reading()
        await runner.wait_idle()
        services.stop()
        await tcp.close_when_sent(trio.current_time() + DRAIN_S)
        await runner.aclose()
        nursery.cancel_scope.cancel()


class NodeStream(trio.abc.Stream):
    """The node's end of a connection."""

    def __init__(self, stream: MemoryStream) -> None:
        self._stream = stream

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        try:
            return await self._stream.receive()
        except anyio.EndOfStream:
            return b""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send(data)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await self._stream.aclose()
