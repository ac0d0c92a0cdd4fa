"""TcpTransport: TCP between nodes. It listens, connects, and forwards to allowed destinations: it is no open relay."""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import structlog
import trio

from ockam.actors.address import LOCAL, SHOWN_BYTES_MAX, TCP, Address, local, shown
from ockam.actors.mailbox import Mailbox
from ockam.actors.message import Message
from ockam.actors.node import Node
from ockam.actors.turns import READ_BYTES_MAX, Turns
from ockam.errors import ConnectFailed, InvalidAddress
from ockam.identity.authenticator import Authenticator, OutgoingTokens
from ockam.identity.identity import ANONYMOUS, Identity
from ockam.identity.tls import PLAINTEXT, OutgoingTls
from ockam.identity.tls_layer import PROBED, TlsFault, TlsLayer
from ockam.identity.tls_stream import TlsListener
from ockam.log_rate import LogRate
from ockam.quotas.memory import MEMORY_BYTES_MAX, PeerMemory
from ockam.quotas.usage import party_key
from ockam.transport.arrivals import ReadyConnections
from ockam.transport.calling import Caller, Framing
from ockam.transport.connection import Connection
from ockam.transport.connection_machine import ConnectionLimits
from ockam.transport.connection_usage import TOO_MANY, PartialFrames
from ockam.transport.forwarding import (
    CONNECTION_PREFIX,
    LinkEnd,
    destination_unreachable,
    forward_refused,
    reports_to_sender,
    through,
)
from ockam.transport.listener import accept_all, close_oldest, connections_that_fit
from ockam.transport.roster import Roster, TcpStatistics, Traffic
from ockam.transport.sockets import socket_name
from ockam.transport.wire import Wire

CONNECTIONS_MAX = 10_000
IDLE_INTERVAL_S = 10.0
NO_ROOM_CLOSED_MAX = 16
REFUSALS_REPORT_INTERVAL_S = 10.0
"""The shortest time between two log lines about too many connections. There could be thousands in a second."""
FORWARD_QUEUE_MESSAGES_MAX = 40_000
"""The most messages that wait until a destination is connected; further ones are dropped and counted. It is twice the
limit of a mailbox, because a peer that delivers to a full mailbox is not read any more."""
FORWARD_QUEUE_BYTES_MAX = 64 * 1024 * 1024
"""The most bytes of payloads that wait until a destination is connected: four times the limit of a mailbox."""
ENDED = "the connection to it ended"

logger = structlog.get_logger(__name__)


class TcpTransport:
    """All TCP connections of one node.

    nursery: runs the tasks of the connections, and must stay open until all connections have ended.
    allow_forward: the `host:port` destinations to which messages of remote peers may be forwarded.
    limits: time limits; None means the defaults.
    new_id: returns 8 random bytes as hex, for the address of a connection.
    connections_max: the largest number of open connections.
    memory_bytes_max: the memory limit for all peers together, see `memory`. roster: the open connections.
    tls: the TLS of the peers that connect to this node; None: they connect without TLS.
    outgoing_tls: the TLS of the connections that this node makes.
    authenticator: judges the tokens of the peers that connect to this node; None: they have none.
    outgoing_tokens: the tokens by which this node proves its own name to other nodes."""

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
        tls: TlsListener | None = None,
        outgoing_tls: OutgoingTls = PLAINTEXT,
        authenticator: Authenticator | None = None,
        outgoing_tokens: OutgoingTokens | None = None,
    ) -> None:
        self._tls = tls
        self._authenticator = authenticator
        self._outgoing_tokens = OutgoingTokens() if outgoing_tokens is None else outgoing_tokens
        self._outgoing_tls = outgoing_tls
        self._caller = Caller(outgoing_tls)
        self._node = node
        self._nursery = nursery
        self.allow_forward(allow_forward)
        self._limits = limits if limits is not None else ConnectionLimits()
        self._new_id = new_id
        self._connections_max = connections_max
        self._connections: set[Connection] = set()
        # The connections that have sent no message yet, oldest first. They stay open while there is room: a real client
        # can send its first message late, and fails if it was disconnected.
        self._silent: dict[Connection, None] = {}
        self._refusals_reported_s = -math.inf
        self._refusal_lines, self._fault_lines = LogRate(), LogRate()
        # A destination has one connection for this node's own messages, and one for the messages of its peers, if only
        # the former proves this node's name.
        self._calls: dict[tuple[str, bool], Connection] = {}
        self._dialling: dict[tuple[str, bool], Mailbox] = {}
        self._partial_frames = PartialFrames()
        self._turns = Turns(nursery, read_bytes_max=READ_BYTES_MAX)
        self._arrivals = ReadyConnections(node, nursery, self._turns)
        self.memory = PeerMemory(memory_bytes_max, node.batch)
        self._accepted = 0
        self._closed: Counter[str] = Counter()
        self._past = Traffic()
        self.roster = Roster()
        self._reads = True
        self._drains = False
        self.listening = trio.CancelScope()
        self._ended = trio.Event()
        node.pause_s = self._turns.pause_s
        node.register_forward(TCP, self._forward)
        node.register_forward(LOCAL, self._missed)

    async def listen(self, host: str, port: int) -> list[str]:
        """Starts to accept connections. Returns the `host:port` of each listening socket; port 0 picks a free port.
        Raises OSError if a listening socket cannot be opened."""
        return self.listen_at(await trio.open_tcp_listeners(port, host=host))

    def listen_at(self, listeners: Sequence[trio.SocketListener]) -> list[str]:
        """Starts to accept connections at sockets that listen already. Returns their `host:port`. Increases the
        process's soft limit of open files, and accepts only as many connections as this limit allows."""
        self._connections_max = connections_that_fit(self._connections_max)
        self._nursery.start_soon(self._serve, listeners)
        return [socket_name(listener.socket.getsockname()) for listener in listeners]

    async def connect(self, destination: str, framing: Framing = "head") -> Address:
        """Connects to a node. Returns the first hop of every route to it. Raises ConnectFailed, InvalidAddress."""
        return (await self.open_connection(destination, framing)).own_address

    def attach(self, stream: trio.abc.Stream, peer: str, identity: Identity) -> Connection:
        """Serves a peer at `host:port` whose identity is proved in another way, such as over HTTP."""
        connection = self._add(stream, None, peer, None, identity)
        self._nursery.start_soon(self._run, connection)
        return connection

    async def open_connection(
        self, destination: str, framing: Framing = "head", is_own: bool = True, link: LinkEnd | None = None
    ) -> Connection:
        tokens = self._outgoing_tokens
        has_token = is_own and tokens.has(destination)
        # Only nodes of this project take tokens, and these speak head.
        framing = "head" if has_token else framing
        stream, wire, tls = await self._caller.call(destination, framing, is_own and not has_token)
        connection = self._add(stream, wire, destination, tls, link=link)
        self._nursery.start_soon(self._run, connection)
        # The token is the first message on the connection, so that all later ones come from the proved name. The token
        # must not travel in the clear to another computer (`check_way`).
        if has_token:
            try:
                tokens.check_way(destination, stream.socket.getpeername()[0], tls is not None)
                self._node.send(tokens.authentication(destination, connection.own_address))
            except (ConnectFailed, OSError) as error:
                connection.close("token_not_sent")
                raise ConnectFailed(str(error)) from error
        return connection

    def change_limits(self, limits: ConnectionLimits, *, connections_max: int, memory_bytes_max: int) -> None:
        """Changes the limits of a transport that listens. Open connections stay open, and keep their time limits."""
        self._limits = limits
        self._connections_max = connections_that_fit(connections_max)
        self.memory.change_limit(memory_bytes_max)

    def allow_forward(self, destinations: Collection[str]) -> None:
        self._allow_forward = frozenset(destination.encode() for destination in destinations)

    def close_identities(self, is_meant: Callable[[Identity], bool], reason: str) -> int:
        """Closes the connections of the peers whose identity the function chooses. Returns their number."""
        meant = [each for each in self._connections if is_meant(each.identity)]
        for connection in meant:
            connection.close(reason)
        return len(meant)

    def stop_reading(self) -> None:
        self._reads = False
        for connection in self._connections:
            connection.stop_reading()

    async def close_when_sent(self, deadline_s: float) -> None:
        """Ends each connection as soon as its answers are sent, and the others at `deadline_s` on trio's clock."""
        self._drains = True
        for connection in self._connections:
            connection.close_when_sent()
        with trio.move_on_at(deadline_s):
            while self._connections:
                self._ended = trio.Event()
                await self._ended.wait()
        for connection in self._connections:
            connection.close("shutdown")

    def end_refused(self) -> None:
        if self._tls is None:
            return
        for connection in list(self._connections):
            refusal = self._tls.refusal(connection.certificate)
            if refusal is not None:
                kind, reason = refusal
                logger.warning("connection_closed", **connection.who, kind=kind, reason=reason)
                connection.close(kind)
                self._note_tls_refused(connection, f"{kind}: {reason}")

    def statistics(self) -> TcpStatistics:
        return TcpStatistics(
            accepted=self._accepted,
            closed=dict(self._closed),
            silent=len(self._silent),
            memory=self.memory.statistics(),
            handshakes=0 if self._tls is None else self._tls.handshakes,
            connections=tuple(connection.statistics() for connection in self._connections),
            past=self._past,
            identities=dict(Counter(connection.identity.source for connection in self._connections)),
        )

    async def _serve(self, listeners: Sequence[trio.SocketListener]) -> None:
        with self.listening:
            async with trio.open_nursery() as nursery:
                for listener in listeners:
                    nursery.start_soon(accept_all, listener, self._accept, self._make_room)
                nursery.start_soon(self._look_for_idle)

    async def _look_for_idle(self) -> None:
        while True:
            await trio.sleep(IDLE_INTERVAL_S)
            for connection in self._connections:
                connection.forget_if_idle()
            self._node.usages.forget_unused(trio.current_time())
            self.roster.look(trio.current_time())

    def _accept(self, stream: trio.SocketStream) -> None:
        self._accepted += 1
        # Without room, a connection is closed at once, before it has a worker: that costs the least.
        if len(self._connections) >= self._connections_max and not self._give_way():
            self._closed["too_many_connections"] += 1
            stream.socket.close()
            return
        # The peer may be gone already. Its socket then has no name.
        try:
            peer = socket_name(stream.socket.getpeername())
        except OSError:
            self._closed["closed_before_header"] += 1
            stream.socket.close()
            return
        # With TLS, the identity is not known yet, and the handshakes have a limit of their own.
        usage = self._node.usages.get(party_key(ANONYMOUS, peer), trio.current_time())
        if self._tls is None and usage.turns_away:
            self._closed[TOO_MANY] += 1
            usage.refuse("connections_max", peer)
            stream.socket.close()
            return
        connection = self._add(stream, None, peer, None)
        self._silent[connection] = None
        self._nursery.start_soon(self._run, connection)

    def _give_way(self) -> bool:
        given = close_oldest(self._silent)
        if trio.current_time() >= self._refusals_reported_s + REFUSALS_REPORT_INTERVAL_S:
            self._refusals_reported_s = trio.current_time()
            logger.warning(
                "connections_give_way" if given is not None else "connections_refused",
                reason="too many connections",
                most=self._connections_max,
                silent=len(self._silent),
            )
        if given is None:
            return False
        # The task of the closed connection ends later. The connection is removed from the count now, so that a new
        # connection can take its place.
        self._connections.discard(given)
        return True

    def _make_room(self) -> None:
        for _ in range(NO_ROOM_CLOSED_MAX):
            if not self._give_way():
                return

    def _add(
        self,
        stream: trio.abc.Stream,
        wire: Wire | None,
        peer: str,
        tls: TlsLayer | None,
        identity: Identity | None = None,
        link: LinkEnd | None = None,
    ) -> Connection:
        address = local(CONNECTION_PREFIX + self._new_id().encode())
        connection = Connection(
            self._node,
            stream,
            address=address,
            peer=peer,
            wire=wire,
            limits=self._limits,
            partial_frames=self._partial_frames,
            memory=self.memory,
            turns=self._turns,
            arrivals=self._arrivals,
            on_spoken=lambda spoken: self._silent.pop(spoken, None),
            tls=tls,
            tls_listener=self._tls if wire is None and identity is None else None,
            authenticator=self._authenticator if wire is None and identity is None else None,
            identity=identity,
            link=link,
        )
        self._node.register([address], lambda: connection)
        self._connections.add(connection)
        # Requests over HTTP count at the HTTP connections of their clients, and a link has messages of many clients.
        if link is None and (wire is not None or identity is None):
            self.roster.begin(connection, peer, trio.current_time())
        # A connection that we make may be ready only after the node has begun to stop.
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
            # First the connection stops counting, so that a new one may take its place.
            self._connections.discard(connection)
            self.roster.end(connection)
            self._past = self._past.plus(Traffic.of(connection.statistics()))
            self._silent.pop(connection, None)
            if connection.open_requests is not None:
                self._calls = {call: made for call, made in self._calls.items() if made is not connection}
            self._node.unregister(connection.own_address)
            self._closed[reason] += 1
            self._ended.set()
            logger.debug("connection_ended", peer=connection.peer, reason=reason)
            # A node that we called, and that sent no message or broke its framing, may speak another framing. The next
            # call finds it out.
            fault = connection.fault
            if connection.open_requests is not None and (fault is not None or not connection.statistics().received):
                self._caller.forget(connection.peer)
            # A client that only asked which protocol is spoken here is no fault.
            if fault is not None and reason != PROBED:
                who, text = connection.who, str(fault)
                self._fault_lines.log(logger.warning, "connection_closed", **who, kind=fault.kind, reason=text)
            if isinstance(fault, TlsFault) and reason != PROBED:
                self._note_tls_refused(connection, f"{fault.kind}: {fault}")
            # The requests that were forwarded over it get no answer any more, so their senders are informed.
            requests, reason = connection.open_requests, ENDED if fault is None else f"{ENDED}: {fault}"
            if requests is not None and connection.link is not None:
                connection.link.ended(requests)
            elif requests is not None:
                with self._node.batch():
                    for route in requests.take():
                        self._node.deliver(destination_unreachable(route, connection.peer, reason))

    def _note_tls_refused(self, connection: Connection, reason: str) -> None:
        if self._node.gate is not None:
            self._node.gate.note_tls_refused(connection.peer, connection.identity, reason)

    def _missed(self, message: Message) -> None:
        """Answers a remote peer's request whose next hop is an ended connection: the peer then asks for a new route."""
        hop = message.onward_route[0]
        if hop.value.startswith(CONNECTION_PREFIX) and message.origin.kind != "local" and reports_to_sender(message):
            self._node.send(destination_unreachable(message.return_route, shown(hop), ENDED))

    def _forward(self, message: Message) -> Mailbox | None:
        """Forwards a message to the TCP destination of its next hop. Returns the mailbox of the connection to it, or
        the mailbox where messages wait for that connection; None if the message is refused."""
        # Two rules must allow the destination: the operator's list, and then the rights of the sender.
        hop = message.onward_route[0]
        if not message.origin.is_node and hop.value not in self._allow_forward:
            to = shown(local(hop.value))
            self._refusal_lines.log(logger.warning, "forward_refused", **message.origin.who, destination=to)
            self._refuse(message, f"{to} is no destination that this node allows")
            return None
        destination = hop.value.decode("utf-8", "replace")
        if not message.origin.is_node and self._node.gate is not None:
            refusal = self._node.gate.find_forward_refusal(message.origin, destination)
            if refusal is not None:
                self._refuse(message, refusal)
                return None
        # A peer must not act at the destination in the name of this node.
        proves = self._outgoing_tls.shows_certificate(destination) or self._outgoing_tokens.has(destination)
        call = destination, message.origin.is_node or not proves
        # The first message starts to connect. Messages that come before the connection is ready wait in a mailbox,
        # whose limits make the peers that send them wait.
        connection = self._calls.get(call)
        if connection is not None and self._node.is_registered(connection.own_address):
            return self._node.deliver(through(connection.own_address, message))
        waiting = self._dialling.get(call)
        if waiting is None:
            waiting = self._dialling[call] = Mailbox()
            self._nursery.start_soon(self._dial, *call)
        if len(waiting) >= FORWARD_QUEUE_MESSAGES_MAX or waiting.size_bytes >= FORWARD_QUEUE_BYTES_MAX:
            return None
        waiting.put(message)
        return waiting

    def _refuse(self, message: Message, reason: str) -> None:
        if reports_to_sender(message):
            self._node.send(forward_refused(message, reason))

    async def _dial(self, destination: str, is_own: bool) -> None:
        """Connects to a destination, and then sends the messages that wait for it. If it cannot be reached, drops them.

        is_own: see `OutgoingTls.find`."""
        connection, reason = None, ""
        try:
            connection = await self.open_connection(destination, "auto", is_own)
        except (ConnectFailed, InvalidAddress) as error:
            reason = str(error)
            to = destination[:SHOWN_BYTES_MAX]
            logger.warning("forward_failed", destination=to, reason=reason[:SHOWN_BYTES_MAX])
        # Messages go directly to the connection from now on, behind those that have waited.
        if connection is not None and self._node.is_registered(connection.own_address):
            self._calls[destination, is_own] = connection
        waiting = self._dialling.pop((destination, is_own))
        with self._node.batch():
            while run := waiting.take_run():
                for message in run:
                    if connection is not None:
                        self._node.deliver(through(connection.own_address, message))
                        continue
                    # A sender that expects an answer gets one, and may ask again later.
                    self._node.count_drop("forward_failed")
                    if reports_to_sender(message):
                        self._node.deliver(destination_unreachable(message.return_route, destination, reason))
