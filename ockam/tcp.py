"""TCP between nodes: listening, calling out, and forwarding to destinations that the operator allows.

Every connection is a worker (`connection`). A message whose next hop is a TCP address makes this node call that
destination. For messages of remote peers the operator must have allowed the destination: this is not an open relay.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import structlog
import trio

from ockam.address import LOCAL, SHOWN_BYTES_MAX, TCP, Address, local, shown, split_host_port
from ockam.connection import Connection
from ockam.connection_machine import ConnectionLimits, ConnectionStatistics
from ockam.errors import ConnectFailed, InvalidAddress
from ockam.forwarding import CONNECTION_PREFIX, destination_unreachable, forward_refused, is_sender_told
from ockam.listener import SilentConnections, accept_all, connections_that_fit
from ockam.mailbox import Mailbox
from ockam.memory import MEMORY_BYTES_MAX, MemoryStatistics, PeerMemory
from ockam.message import Message
from ockam.node import Node
from ockam.partial_frames import PartialFrames
from ockam.turns import READ_BYTES_MAX, Turns
from ockam.wire import Wire
from ockam.wire_head import HEAD
from ockam.wire_legacy import LEGACY

Framing: TypeAlias = Literal["head", "legacy", "auto"]
"""The framing that we speak when we call. `auto` speaks head if the node says hello, else legacy."""

AUTO_WAIT_S = 0.3
"""With `auto`, a called node that says nothing for this long is a legacy node. A head node says hello
first, and the real ones do so within 0.2 s."""
CONNECT_TIMEOUT_S = 10.0
CONNECTIONS_MAX = 10_000
IDLE_INTERVAL_S = 10.0
"""The time between two looks for idle connections. Their headers are forgotten after one to two of these times."""
NO_ROOM_CLOSED_MAX = 16
"""The number of silent connections that are closed when the process can open no more files."""
REFUSALS_TOLD_INTERVAL_S = 10.0
"""The time between two log lines about too many connections, since thousands may come in a second."""
FORWARD_QUEUE_MESSAGES_MAX = 40_000
"""The most messages that wait for a connection that is being made; more are dropped and counted. This is twice the
limit of a mailbox, because peers that feed a full mailbox are not read any further."""
FORWARD_QUEUE_BYTES_MAX = 64 * 1024 * 1024
"""The most bytes of payload that wait for it: four times the limit of a mailbox."""
ENDED = "the connection to it ended"

logger = structlog.get_logger(__name__)


class TcpStatistics(msgspec.Struct, frozen=True):
    """The connections of a node. accepted, and closed by reason: since the start. silent: the connections that have
    sent no message yet."""

    accepted: int
    closed: dict[str, int]
    silent: int
    memory: MemoryStatistics
    connections: tuple[ConnectionStatistics, ...]


class TcpTransport:
    """All TCP connections of one node. Opened inside a nursery that outlives them.

    allow_forward: the `host:port` destinations that remote peers may route to through this node.
    new_id: 8 random bytes as hex, for the private addresses of connections.
    memory_bytes_max: the bound on the memory that all peers together make this node hold, see `memory`.
    """

    def __init__(
        self,
        node: Node,
        nursery: trio.Nursery,
        *,
        allow_forward: Collection[str] = (),
        limits: ConnectionLimits | None = None,
        new_id: Callable[[], str] = lambda: secrets.token_hex(8),
        connections_max: int = CONNECTIONS_MAX,
        memory_bytes_max: int = MEMORY_BYTES_MAX,
    ) -> None:
        self._node = node
        self._nursery = nursery
        self.allow_forward(allow_forward)
        self._limits = limits if limits is not None else ConnectionLimits()
        self._new_id = new_id
        self._connections_max = connections_max
        self._connections: set[Connection] = set()
        self._silent = SilentConnections()
        self._refusals_told_s = -math.inf
        self._calls: dict[str, Connection] = {}
        self._dialling: dict[str, Mailbox] = {}
        self._partial_frames = PartialFrames()
        self._turns = Turns(nursery, read_bytes_max=READ_BYTES_MAX)
        self._memory = PeerMemory(memory_bytes_max, node.batch)
        self._accepted = 0
        self._closed: Counter[str] = Counter()
        self._reads = True
        self._drains = False
        self._listening = trio.CancelScope()
        self._ended = trio.Event()
        node.register_forward(TCP, self._forward)
        node.register_forward(LOCAL, self._missed)

    async def listen(self, host: str, port: int) -> list[str]:
        """Accept connections; returns the `host:port` of each listening socket (port 0 picks a port). Raises OSError.

        Raises the process's soft limit of open files, and accepts no more connections than fit into it.
        """
        self._connections_max = connections_that_fit(self._connections_max)
        listeners = await trio.open_tcp_listeners(port, host=host)
        self._nursery.start_soon(self._serve, listeners)
        return [_name(listener.socket.getsockname()) for listener in listeners]

    async def connect(self, destination: str, framing: Framing = "head") -> Address:
        """Call a node; returns the address of the connection, to be put in front of routes. Raises ConnectFailed."""
        return (await self._connect(destination, framing)).own_address

    async def _connect(self, destination: str, framing: Framing = "head") -> Connection:
        stream, wire = await self._call(destination, framing)
        connection = self._add(stream, wire, destination)
        self._nursery.start_soon(self._run, connection)
        return connection

    def allow_forward(self, destinations: Collection[str]) -> None:
        """Allow remote peers to route to these `host:port` and to no others."""
        self._allow_forward = frozenset(destination.encode() for destination in destinations)

    def stop_accepting(self) -> None:
        self._listening.cancel()

    def stop_reading(self) -> None:
        """Take no more requests from any peer; answers still go out."""
        self._reads = False
        for connection in self._connections:
            connection.stop_reading()

    async def close_when_sent(self, deadline_s: float) -> None:
        """End every connection once its answers are sent, or at the deadline (trio's clock)."""
        self._drains = True
        for connection in self._connections:
            connection.close_when_sent()
        with trio.move_on_at(deadline_s):
            while self._connections:
                self._ended = trio.Event()
                await self._ended.wait()
        for connection in self._connections:
            connection.close("shutdown")

    def statistics(self) -> TcpStatistics:
        connections = tuple(connection.statistics() for connection in self._connections)
        memory = self._memory.statistics()
        return TcpStatistics(self._accepted, dict(self._closed), len(self._silent), memory, connections)

    async def _serve(self, listeners: Sequence[trio.SocketListener]) -> None:
        with self._listening:
            async with trio.open_nursery() as nursery:
                for listener in listeners:
                    nursery.start_soon(accept_all, listener, self._accept, self._make_room)
                nursery.start_soon(self._look_for_idle)

    async def _look_for_idle(self) -> None:
        """Free the headers of connections on which no message comes or goes."""
        while True:
            await trio.sleep(IDLE_INTERVAL_S)
            for connection in self._connections:
                connection.forget_if_idle()

    def _accept(self, stream: trio.SocketStream) -> None:
        self._accepted += 1
        if len(self._connections) >= self._connections_max and not self._give_way():
            self._closed["too_many_connections"] += 1
            stream.socket.close()
            return
        try:
            peer = _name(stream.socket.getpeername())
        except OSError:
            self._closed["closed_before_header"] += 1
            stream.socket.close()
            return
        connection = self._add(stream, None, peer)
        self._silent.add(connection)
        self._nursery.start_soon(self._run, connection)

    def _give_way(self) -> bool:
        """Close the connection that has been silent longest, for a new one. False if every one has sent a message."""
        given = self._silent.close_oldest()
        if trio.current_time() >= self._refusals_told_s + REFUSALS_TOLD_INTERVAL_S:
            self._refusals_told_s = trio.current_time()
            what = "connections_give_way" if given is not None else "connections_refused"
            logger.warning(what, reason="too many connections", most=self._connections_max, silent=len(self._silent))
        if given is None:
            return False
        # The task of that connection ends in the next turn. It does not count any more, so that the new connection
        # takes its place now.
        self._connections.discard(given)
        return True

    def _make_room(self) -> None:
        """Close silent connections, since the process can open no more files."""
        for _ in range(NO_ROOM_CLOSED_MAX):
            if not self._give_way():
                return

    def _add(self, stream: trio.abc.Stream, wire: Wire | None, peer: str) -> Connection:
        address = local(CONNECTION_PREFIX + self._new_id().encode())
        connection = Connection(
            self._node,
            stream,
            address=address,
            peer=peer,
            wire=wire,
            limits=self._limits,
            partial_frames=self._partial_frames,
            memory=self._memory,
            turns=self._turns,
            on_spoken=self._silent.discard,
        )
        self._node.register([address], lambda: connection)
        self._connections.add(connection)
        # A call of our own may end after the node has begun to stop.
        if not self._reads:
            connection.stop_reading()
        if self._drains:
            connection.close_when_sent()
        return connection

    async def _run(self, connection: Connection) -> None:
        reason = "broken"
        try:
            reason = await connection.run()
        except Exception as error:
            logger.error("connection_failed", peer=connection.peer, exc_info=error)
        finally:
            self._connections.discard(connection)
            self._silent.discard(connection)
            self._node.unregister(connection.own_address)
            self._closed[reason] += 1
            self._ended.set()
            logger.debug("connection_ended", peer=connection.peer, reason=reason)
            self._tell_gone(connection)

    def _tell_gone(self, connection: Connection) -> None:
        """Answer the requests that were forwarded over a connection that has ended: nobody else will."""
        if connection.open_requests is not None:
            with self._node.batch():
                for route in connection.open_requests.take():
                    self._node.deliver(destination_unreachable(route, connection.peer, ENDED))

    def _missed(self, message: Message) -> None:
        """Answer a message for a connection that has ended.

        The return route of every answer leads through the connection that the answer came over, and peers use it as the
        route of their next requests. The peer is told that this route has ended, and asks for the stream anew.
        """
        hop = message.onward_route[0]
        if hop.value.startswith(CONNECTION_PREFIX) and message.origin.kind != "local" and is_sender_told(message):
            self._node.send(destination_unreachable(message.return_route, shown(hop), ENDED))

    async def _call(self, destination: str, framing: Framing) -> tuple[trio.SocketStream, Wire]:
        host, port = split_host_port(destination)
        try:
            with trio.fail_after(CONNECT_TIMEOUT_S):
                stream = await trio.open_tcp_stream(host, port)
        except (OSError, trio.TooSlowError) as error:
            raise ConnectFailed(f"cannot reach {destination}: {str(error) or 'no answer in time'}") from error
        if framing == "auto":
            with trio.move_on_after(AUTO_WAIT_S):
                await trio.lowlevel.wait_readable(stream.socket)
                return stream, HEAD
            return stream, LEGACY
        return stream, HEAD if framing == "head" else LEGACY

    def _forward(self, message: Message) -> Mailbox | None:
        """Forward a message to the TCP destination that is its next hop. All messages share one connection to it.

        Returns the mailbox of that connection, or the one where the message waits while it is being made; None if the
        message is refused.
        """
        hop = message.onward_route[0]
        if message.origin.kind != "local" and hop.value not in self._allow_forward:
            logger.warning("forward_refused", destination=shown(local(hop.value)), peer=message.origin.peer)
            self._refuse(message, f"{shown(local(hop.value))} is no destination that this node allows")
            return None
        destination = hop.value.decode("utf-8", "replace")
        # The first message makes the connection; the messages that come meanwhile wait in a mailbox of their own, whose
        # limits hold up the peers that send them.
        connection = self._calls.get(destination)
        if connection is not None and self._node.is_registered(connection.own_address):
            return self._node.deliver(_through(connection.own_address, message))
        waiting = self._dialling.get(destination)
        if waiting is None:
            waiting = self._dialling[destination] = Mailbox()
            self._nursery.start_soon(self._dial, destination)
        if len(waiting) >= FORWARD_QUEUE_MESSAGES_MAX or waiting.size_bytes >= FORWARD_QUEUE_BYTES_MAX:
            return None
        waiting.put(message)
        return waiting

    def _refuse(self, message: Message, reason: str) -> None:
        """Tell the sender that this message is dropped, if its protocol is one of our own."""
        if is_sender_told(message):
            self._node.send(forward_refused(message, reason))

    async def _dial(self, destination: str) -> None:
        """Call a destination and send it the messages that wait; they are dropped if it does not answer."""
        try:
            connection = await self._connect(destination)
        except (ConnectFailed, InvalidAddress) as error:
            logger.warning(
                "forward_failed", destination=destination[:SHOWN_BYTES_MAX], reason=str(error)[:SHOWN_BYTES_MAX]
            )
            waiting = self._dialling.pop(destination)
            with self._node.batch():
                while run := waiting.take_run():
                    for message in run:
                        self._node.count_drop("forward_failed")
                        if is_sender_told(message):
                            self._node.deliver(destination_unreachable(message.return_route, destination, str(error)))
            return
        self._calls[destination] = connection
        waiting = self._dialling.pop(destination)
        with self._node.batch():
            while run := waiting.take_run():
                for message in run:
                    self._node.deliver(_through(connection.own_address, message))


def _through(connection: Address, message: Message) -> Message:
    """The same message with its TCP hop replaced by the connection that reaches it."""
    return Message((connection, *message.onward_route[1:]), message.return_route, message.payload, message.origin)


def _name(socket_name: tuple[Any, ...]) -> str:
    """`host:port` of one end of a socket, for people."""
    host, port = socket_name[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
