"""InsideClients: the clients inside the node by which HTTP requests and the operator's workers use streams.

There is one for each identity and host. It is an ordinary `stream_client.StreamClient` over a pair of connected
sockets. The node serves the other end like any other connection, with the identity of whoever causes the requests. So
every right and limit is checked, and every promise kept, in the same place as for all other connections."""

from __future__ import annotations

import math
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio.abc
import trio

from ockam.identity.identity import Identity
from ockam.transport.connection import Connection
from ockam.transport.tcp import TcpTransport
from ockam.transport.wire_head import HEAD
from stream_client import StreamClient
from stream_client.core.client_core import ClientCore
from stream_client.session import ClientSession
from stream_client.shell.async_shell import AsyncShell, background_tasks
from stream_client.shell.base_shell import ANSWER_TIMEOUT_S, ShellSettings
from stream_client.shell.dial import Dialled
from stream_node.node.config import Config

IDLE_S = 60.0
CHECK_INTERVAL_S = 5.0
IN_ERRORS = "this node"
"""The name of the node in the errors of these clients."""


class NoInsideClient(Exception):
    """Error: the node has no room for one more client inside it, or ends.
    is_closing: whether the node has just ended the client; the next attempt opens a new one."""

    def __init__(self, text: str, *, is_closing: bool = False) -> None:
        super().__init__(text)
        self.is_closing = is_closing


class _Held:
    """One client and the requests that use it. client: None while it opens. connection: the node's end."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.client: StreamClient | None = None
        self.opened = trio.Event()
        self.users = 0
        self.unused_s = -math.inf
        self.scope = trio.CancelScope()


class InsideClients:
    """All clients inside one node.
    Invariant: at most `clients_max` clients are open; a client that a request uses is never closed for another one."""

    def __init__(
        self,
        tcp: TcpTransport,
        nursery: trio.Nursery,
        config: Config,
        *,
        clients_max: int,
        too_many: str = "too many clients inside the node; try again later",
    ) -> None:
        """too_many: the text of the error if `clients_max` clients are used."""
        self._tcp = tcp
        self._nursery = nursery
        self._service, self._index_service = config.service_addresses[0], config.index_addresses[0]
        self._clients_max = clients_max
        self._too_many = too_many
        self._held: dict[tuple[Identity, str], _Held] = {}
        nursery.start_soon(self._close_unused)

    def __len__(self) -> int:
        return len(self._held)

    @asynccontextmanager
    async def client(self, identity: Identity, peer: str) -> AsyncIterator[StreamClient]:
        """Opens or shares a client with this identity, while the block runs. Raises NoInsideClient.
        peer: the `host:port` of whoever causes the requests; anonymous peers of one host share a client."""
        held = self._find(identity, peer)
        held.users += 1
        try:
            await held.opened.wait()
            if held.client is None:
                raise NoInsideClient("the node closes; send the request again", is_closing=True)
            yield held.client
        finally:
            held.users -= 1
            held.unused_s = trio.current_time()

    def connection_of(self, identity: Identity, peer: str) -> Connection:
        """Returns the node's end of the client that a request uses now, see `client`."""
        return self._held[identity, _host_of(peer)].connection

    def close_identities(self, is_meant: Callable[[Identity], bool]) -> None:
        """Forgets the clients of all identities that the function chooses; their requests fail.
        `TcpTransport.close_identities` ends and counts the connections at the other ends."""
        for key in [key for key in self._held if is_meant(key[0])]:
            self._held.pop(key).scope.cancel()

    def _find(self, identity: Identity, peer: str) -> _Held:
        key = (identity, _host_of(peer))
        held = self._held.get(key)
        if held is not None and held.client is not None and held.client.session.core.connection.closed:
            # The node has ended its connection, for example because the rules have changed.
            self._held.pop(key).scope.cancel()
            held = None
        if held is None:
            self._make_room()
            try:
                ours, theirs = socket.socketpair()
            except OSError as error:
                raise NoInsideClient(f"no room for a client: {error.strerror}") from error
            ours.setblocking(False)
            connection = self._tcp.attach(trio.SocketStream(trio.socket.from_stdlib_socket(theirs)), peer, identity)
            held = self._held[key] = _Held(connection)
            self._nursery.start_soon(self._run, key, held, ours)
        return held

    def _make_room(self) -> None:
        """Closes the client that has been unused for longest if `clients_max` are open. Raises NoInsideClient if all
        are used."""
        if len(self._held) < self._clients_max:
            return
        unused = [key for key, held in self._held.items() if not held.users]
        if not unused:
            raise NoInsideClient(self._too_many)
        self._held.pop(min(unused, key=lambda key: self._held[key].unused_s)).scope.cancel()

    async def _run(self, key: tuple[Identity, str], held: _Held, ours: socket.socket) -> None:
        try:
            with held.scope:
                stream = await anyio.abc.UNIXSocketStream.from_socket(ours)
                core = ClientCore(service=self._service, index_service=self._index_service)
                shell = AsyncShell(core, ShellSettings(IN_ERRORS))
                async with background_tasks() as tasks:
                    # The stream is connected already, and the client does not connect again.
                    shell.start(tasks, Dialled(stream, HEAD))
                    try:
                        held.client = StreamClient(ClientSession(IN_ERRORS, core, shell, ANSWER_TIMEOUT_S))
                        held.opened.set()
                        await trio.sleep_forever()
                    finally:
                        await shell.close()
        finally:
            if self._held.get(key) is held:
                del self._held[key]
            held.opened.set()

    async def _close_unused(self) -> None:
        while True:
            await trio.sleep(CHECK_INTERVAL_S)
            now_s = trio.current_time()
            for key, held in list(self._held.items()):
                is_closed = held.client is not None and held.client.session.core.connection.closed
                if not held.users and held.opened.is_set() and (is_closed or now_s >= held.unused_s + IDLE_S):
                    self._held.pop(key).scope.cancel()


def _host_of(peer: str) -> str:
    return peer.rpartition(":")[0]
