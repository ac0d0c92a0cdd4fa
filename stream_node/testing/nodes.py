"""HostedNode: a node in this process, as a context manager for blocking and async programs. All such nodes run in one
thread. There are two kinds: the server of `stream-node serve` (`node`), and the services of a node with storage and
connections in memory (`memory_node`)."""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any, Self

import anyio
import anyio.to_thread
import structlog
import trio

from ockam.actors.node import Node
from ockam.identity.identity import ANONYMOUS
from ockam.transport.tcp import TcpTransport
from stream_client.shell.async_shell import MemoryStream
from stream_client.shell.in_memory import HOST, Pipe, listeners
from stream_node.node.config import Config
from stream_node.node.config_sources import load_config
from stream_node.node.process import NodeNotStarted
from stream_node.node.services import Services
from stream_storage.runner import MemoryRunner
from stream_storage.sqlite.in_memory import open_in_memory

LOG_LINES_MAX = 1000
STORAGE_THREADS = "storage-"
"""How the names of the threads that touch a database begin."""

_is_of_nodes: ContextVar[bool] = ContextVar("is_of_nodes", default=False)
"""Whether this code runs for the nodes: in their thread, or in a thread that trio has started for their thread."""
_logs: list[deque[str]] = []
_render = structlog.processors.KeyValueRenderer(key_order=["event"])


class NodeNotRunning(Exception):
    """A node of `stream_node.testing` was used outside its block or entered twice, or it has failed inside the block.
    The text has the reason, and after a failure the node's log."""


class HostedNode:
    """A node in a thread of this process, which runs during a `with` block; in trio and asyncio, `async with`.
    http, grpc: the addresses at which a real node listens for HTTP and gRPC, if its settings have any."""

    def __init__(self, serve: Callable[[HostedNode], Awaitable[None]]) -> None:
        """serve: runs the node in the thread. It calls `listens`, and returns after `stopping` is set."""
        self.http: list[str] = []
        self.grpc: list[str] = []
        self._serve = serve
        self._address: str | None = None
        self._log: deque[str] = deque(maxlen=LOG_LINES_MAX)
        self._failure: BaseException | None = None
        self._is_new = True
        self._started, self._ended = threading.Event(), threading.Event()
        self.stopping = trio.Event()

    @property
    def address(self) -> str:
        """The `host:port` for `connect`. Raises NodeNotRunning outside the block."""
        if self._address is None:
            raise NodeNotRunning("the node is not running; use its address inside the block of `with`")
        return self._address

    @property
    def log(self) -> str:
        """The newest lines, at most 1,000, that nodes of this process have logged while this one ran."""
        return "\n".join(self._log)

    def listens(self, address: str) -> None:
        """Notes the address of the node, which now listens, so that the block begins."""
        self._address = address
        self._started.set()

    def __enter__(self) -> Self:
        if not self._is_new:
            raise NodeNotRunning("a node has one block; make another node")
        self._is_new = False
        # The child of a fork has no thread of its parent, and gets one of its own.
        self._token, nursery = _host(os.getpid())
        self._token.run_sync_soon(nursery.start_soon, self._run)
        self._started.wait()
        if self._address is None:
            raise NodeNotStarted(f"the node did not start: {self._why}") from self._failure
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self._address = None
        self._token.run_sync_soon(self.stopping.set)
        self._ended.wait()
        # An error of the block goes first. It can be a consequence of the failure, which then shows in the log.
        if self._failure is not None and kind is None:
            raise NodeNotRunning(f"the node has failed: {self._why}") from self._failure

    async def __aenter__(self) -> Self:
        return await anyio.to_thread.run_sync(self.__enter__)

    async def __aexit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.__exit__, kind)

    async def _run(self) -> None:
        try:
            with logging_to(self._log):
                await self._serve(self)
        # The failure of one node must not end the others, which are tasks of the same run.
        except Exception as error:
            self._failure = error
        finally:
            self._started.set()
            self._ended.set()

    @property
    def _why(self) -> str:
        error = self._failure
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return f"{error}\nits log:\n{self.log}" if self._log else str(error)


@cache
def _host(_pid: int) -> tuple[trio.lowlevel.TrioToken, trio.Nursery]:
    """Starts a thread with one run of trio, in which each node is a task. It ends with the main thread."""
    started: Future[tuple[trio.lowlevel.TrioToken, trio.Nursery]] = Future()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            started.set_result((trio.lowlevel.current_trio_token(), nursery))
            # A program may end inside the block of a node, whose threads would keep the process from ending.
            await trio.to_thread.run_sync(threading.main_thread().join, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()

    def run() -> None:
        _is_of_nodes.set(True)
        trio.run(main)

    threading.Thread(target=run, name="stream-node-testing").start()
    return started.result()


@contextmanager
def logging_to(log: deque[str]) -> Iterator[None]:
    """While the block runs, the lines of all nodes of this process go to `log`, and not to the program's log."""
    # The program may have configured other processors since the last node.
    processors = structlog.get_config()["processors"]
    if _divert not in processors:
        processors.insert(0, _divert)
    _logs.append(log)
    try:
        yield
    finally:
        _logs[:] = [each for each in _logs if each is not log]


def _divert(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor of structlog: it moves the lines of nodes to their logs, and passes on those of the program."""
    if not (_is_of_nodes.get() or threading.current_thread().name.startswith(STORAGE_THREADS)):
        return event
    text = f"{method}: {_render(logger, method, structlog.processors.format_exc_info(logger, method, event))}"
    for each in _logs:
        each.append(text)
    raise structlog.DropEvent


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
    # As in `open_database`: a database gets the tables of the modules that are loaded.
    import_module("stream_node.node.block_services")
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
    """The node's end of a connection in memory."""

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
