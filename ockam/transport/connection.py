"""Connection: a worker for one TCP connection. It sends messages to the peer, and routes the messages of the peer.

It decides nothing about states, deadlines and frames: `connection_machine` does. `tcp` makes connections."""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

import structlog
import trio

from ockam.actors.address import Address, Route
from ockam.actors.mailbox import Mailbox
from ockam.actors.message import HERE, Message, Origin
from ockam.actors.node import Node
from ockam.actors.turns import READ_BYTES_MAX, Share, Turns
from ockam.actors.worker import Worker
from ockam.errors import AskRefused, AskTimedOut, FrameTooLarge, RemoteProtocolError
from ockam.identity.authentication import NODE_AUTHENTICATE
from ockam.identity.authenticator import Authenticator, Proof
from ockam.identity.identity import ANONYMOUS, Identity
from ockam.identity.tls_layer import PeerCertificate, TlsFault, TlsLayer, identity_of
from ockam.identity.tls_stream import TlsListener, receive_decrypted
from ockam.quotas.memory import Holdings, PeerMemory
from ockam.quotas.usage import party_key
from ockam.transport.arrivals import ARRIVAL_BYTES_MAX, HAS_EPOLL, SMALL_READS_MIN, ReadyConnections
from ockam.transport.connection_machine import (
    SEND_BYTES,
    ConnectionLimits,
    ConnectionMachine,
    ConnectionStatistics,
    TransportState,
)
from ockam.transport.connection_usage import PARTIAL_FREE_BYTES, TOO_MANY, ConnectionUsage, PartialFrames
from ockam.transport.forward_filter import ForwardFilter
from ockam.transport.forwarding import LinkEnd, OpenRequests, is_passed_on, leaves
from ockam.transport.listener import has_unread
from ockam.transport.sockets import end_stream, receive_ready, send_nowait
from ockam.transport.wire import Wire

WHOLE_BYTES_MIN = 64 * 1024
"""A lone payload of at least this many bytes is sent without a copy."""
logger = structlog.get_logger(__name__)


class Routed(NamedTuple):
    """The result of routing some bytes. full: the mailboxes without room that got messages. failure: the error of the
    frame after the messages. is_refused: nothing was delivered, for the reason that `_turn_away` finds."""

    messages: Sequence[Message] = ()
    full: Sequence[Mailbox] = ()
    failure: RemoteProtocolError | None = None
    is_refused: bool = False


class Connection(Worker):
    """A worker that exchanges messages with one peer; `run` does so until either side ends the connection.

    Invariant: while bytes wait to be sent, a sending task runs, unless the connection is draining or closed."""

    def __init__(
        self,
        node: Node,
        stream: trio.abc.Stream,
        *,
        address: Address,
        peer: str,
        wire: Wire | None,
        limits: ConnectionLimits,
        partial_frames: PartialFrames,
        memory: PeerMemory,
        turns: Turns,
        arrivals: ReadyConnections,
        on_spoken: Callable[[Connection], object],
        tls: TlsLayer | None = None,
        tls_listener: TlsListener | None = None,
        authenticator: Authenticator | None = None,
        identity: Identity | None = None,
        link: LinkEnd | None = None,
    ) -> None:
        """wire: the framing; None if the peer's first bytes will show the framing.
        on_spoken: called once, when the first message of the peer is received.
        tls: if we have connected to the peer with TLS, the TLS connection after its handshake; else None.
        tls_listener: completes the TLS handshake of a peer that has connected to us; None if that peer uses no TLS.
        authenticator: judges the token of such a peer.
        identity: the identity that the peer has proved already, for example over HTTP; None: none yet.
        link: takes the messages of a peer that is another member of this node's cluster; None: the peer is no member.
        """
        self._node = node
        self._stream = stream
        # Only a socket may be written directly. A test's pipe must write all bytes itself.
        self._socket = stream.socket if isinstance(stream, trio.SocketStream) else None
        self._tls: TlsLayer | None = None
        self._tls_listener = tls_listener
        self._authenticator = authenticator
        self._proved = identity
        self._refused: Proof | None = None
        self._receive_some: Callable[[int], Awaitable[bytes | bytearray]] = (
            stream.receive_some if self._socket is None else partial(receive_ready, self._socket)
        )
        self.fault: RemoteProtocolError | None = None
        self.own_address = address
        self.peer = peer
        self.holdings = Holdings(memory, lambda: self._machine.forget_headers(), self._close_slow)
        self._share = Share(party_key(ANONYMOUS, peer))
        self._usage = ConnectionUsage(node.usages, peer, self.holdings, self._share, waits_room=identity is None)
        # Nodes that we have called have no limits: we want their answers.
        if wire is None:
            self._usage.join(identity or ANONYMOUS)
        self.link = link
        self._asks_origin: Origin | None = None
        self._machine = ConnectionMachine(
            wire, address, limits, memory.share_bytes, self._origin, is_named=link is None
        )
        if tls is not None:
            self._use(tls)
        self._partial_frames = partial_frames
        self._on_spoken, self._turns, self._mailbox = on_spoken, turns, Mailbox()
        self._arrivals, self._small_reads = arrivals, 0
        self._arrived: bytes | Routed = b""
        self._nursery: trio.Nursery | None = None
        self._sends = False
        self._wake_reader = trio.Event()
        self._closing = trio.Event()
        self._filter = ForwardFilter(node, peer)
        self._scope, self._read_scope = trio.CancelScope(), trio.CancelScope()
        # Requests of other peers are forwarded only to nodes that we called. A peer that called us gets only answers.
        self.open_requests = OpenRequests() if wire is not None else None

    def started(self) -> None:
        mailbox = self._node.find_mailbox(self.own_address)
        if mailbox is not None:
            self._mailbox = mailbox
            mailbox.is_peer = self.open_requests is None
            mailbox.is_link = not mailbox.is_peer and self.link is None
        self._note_held()

    def _use(self, tls: TlsLayer) -> None:
        self._tls = tls
        self._receive_some = partial(receive_decrypted, self._receive_some, tls, self._put_raw)

    # Outgoing messages.

    def receive(self, run: Sequence[Message]) -> None:
        """Sends messages to the peer: those of this node's workers at once, those of other peers when there is room."""
        if self.open_requests is not None:
            self.open_requests.note(run)
        machine = self._machine
        if machine.writer is None or machine.state is TransportState.CLOSED:
            for _ in run:
                self._node.count_drop("connection_closed")
            return
        machine.sent_at_s = trio.current_time()
        if self.link is not None:
            # Another member of the cluster gets everything in order, also what this node sends itself.
            machine.backlog.forward(run)
            return self._send_forwarded()
        # Our own workers send no answers while the backlog is large, so the answers that they do send never wait here.
        # Messages from other peers must wait, also those behind an answer. Else two peers could fill our memory here.
        forwarded = [message for message in run if message.origin is not HERE and message.origin.kind != "local"]
        if forwarded or machine.backlog.size_bytes > machine.soft_bytes():
            machine.backlog.forward(self._filter.passed(forwarded, is_full=machine.backlog.refuses))
            run = [message for message in run if message.origin.kind == "local"]
            self._send_forwarded()
        self._send_run(run)

    def _send_forwarded(self) -> None:
        """Sends as many forwarded messages as there is room for. While some remain, the mailbox counts as full."""
        machine = self._machine
        while run := machine.take_forwarded():
            self._send_run(run)
        if machine.is_full:
            self._mailbox.hold()
        else:
            self._mailbox.admit()

    def _send_run(self, run: Sequence[Message]) -> None:
        pieces = self._machine.encode(run, self._refuse)
        self._note_held()
        # A payload of megabytes, such as a page, is not copied into a frame: the socket takes the pieces.
        if len(pieces) == 3 and len(pieces[1]) >= WHOLE_BYTES_MIN and self._tls is None:
            self._put_raw(*pieces)
        else:
            self._put(b"".join(pieces))

    def _refuse(self, error: FrameTooLarge) -> None:
        self._node.count_drop("frame_too_large")
        logger.warning("frame_too_large", peer=self.peer, framing=self._machine.framing, reason=str(error))

    def _put(self, data: bytes) -> None:
        if self._tls is not None and data:
            data = self._tls.encrypt(data)
        self._put_raw(data)

    def _put_raw(self, *pieces: bytes) -> None:
        machine = self._machine
        size_bytes = sum(map(len, pieces))
        # Bytes that already wait must be sent first. So the socket is written directly only if none wait.
        if size_bytes and not machine.backlog.size_bytes and self._socket is not None:
            rest = send_nowait(self._socket, *pieces)
        else:
            rest = b"".join(pieces)
        machine.sent_bytes += size_bytes - len(rest)
        self._usage.note_sent(size_bytes)
        if not rest or machine.state is TransportState.CLOSED:
            return
        machine.backlog.add(rest)
        if machine.state is not TransportState.DRAINING:
            self._ensure_sending()
        # Above the soft limit, no requests of this peer are read, and other peers that send to it wait, except links.
        # So only a peer that does not take its answers can exceed the hard limit.
        if machine.is_full:
            self._mailbox.hold()
        self._note_held()

    def _ensure_sending(self) -> None:
        # If the peer takes its answers at once, no task is started. This halves the cost of a short connection.
        if self._machine.backlog.chunks and not self._sends and self._nursery is not None:
            self._sends = True
            self._nursery.start_soon(self._send_loop)

    async def _send_loop(self) -> None:
        machine = self._machine
        while machine.backlog.chunks:
            data = machine.backlog.take()
            if not await self._send(data):
                return
            machine.sent_bytes += len(data)
            # The task may wait for long, so it must not keep megabytes in memory that have been sent.
            del data
            if machine.backlog.size_bytes <= machine.soft_bytes():
                self._wake_reader.set()
                self._send_forwarded()
        self._sends = False

    async def _send(self, data: bytes) -> bool:
        machine = self._machine
        view = memoryview(data)
        # The time limit applies to each part, and the backlog shrinks after each part.
        for at in range(0, len(data), SEND_BYTES):
            part = view[at : at + SEND_BYTES]
            try:
                with trio.move_on_after(machine.limits.send_s) as scope:
                    await self._stream.send_all(part)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self.close("broken")
                return False
            if scope.cancelled_caught:
                self._close_slow()
                return False
            machine.backlog.note_sent(len(part))
            self._note_held()
            # Workers do not answer the pulls of a slow peer. They continue when the peer has taken enough answers.
            if machine.backlog.size_bytes <= machine.soft_bytes():
                self.holdings.report_taken()
        return True

    # The life of the connection.

    async def run(self) -> str:
        """Serves the connection until it ends. Returns the reason of the end: a short, fixed word for counters."""
        machine = self._machine
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    self._ensure_sending()
                    with self._read_scope:
                        reason = await self._receive_loop()
                        machine.reading_ended(reason, trio.current_time())
                        self.holdings.end_requests()
                        if reason != "broken":
                            until_s = machine.linger_until_s()
                            while until_s > trio.current_time():
                                await trio.sleep_until(until_s)
                                # If an answer was sent meanwhile, there may be more, so the time is extended.
                                until_s = machine.linger_until_s()
                        # Thousands of connections may end at one moment, and each end takes some time.
                        await self._turns.wait(self._share, leaves=True)
                        self.close_when_sent()
                    # If only reading was stopped, answers are sent until `close_when_sent` is called. Then the nursery
                    # waits for the sending task.
                    await self._closing.wait()
        finally:
            is_all_sent = not machine.backlog.size_bytes
            for _ in range(machine.end()):
                self._node.count_drop("connection_closed")
            self.holdings.end()
            self._usage.leave()
            goodbye = self._tls.goodbye() if self._tls is not None and is_all_sent else b""
            await end_stream(self._stream, goodbye)
        return machine.end_reason

    def close(self, reason: str) -> None:
        self._machine.close(reason)
        self._scope.cancel()

    def stop_reading(self) -> None:
        self._machine.stop_reading()
        self._read_scope.cancel()

    def close_when_sent(self) -> None:
        self._machine.close_when_sent()
        self._closing.set()
        self._read_scope.cancel()

    def _close_slow(self) -> None:
        if self._machine.state is not TransportState.CLOSED:
            logger.warning("slow_consumer", **self.who, backlog_bytes=self.backlog_bytes)
            self.close("slow_consumer")

    # Incoming messages.

    async def _receive_loop(self) -> str:
        """Reads and routes messages until the peer sends no more. Returns the reason: a short, fixed word."""
        machine = self._machine
        try:
            # The TLS handshake proves the identity of a certificate. The limits of that identity apply from here.
            if self._tls_listener is not None:
                tls = await self._tls_listener.handshake(self, self._stream, self._turns, self._share)
                if tls is None:
                    return "closed_before_header"
                self._use(tls)
                self._usage.join(self.identity)
            self._usage.limit_refusal(self._node, self.close)
            chunk = await self._open_framing()
            if chunk is None:
                return "closed_before_header"
            while True:
                if chunk:
                    # While the event loop is busy, connections take turns. This must not count against the peer.
                    waits_s = trio.current_time()
                    await self._turns.wait(self._share)
                    await self._usage.wait_turn()
                    machine.excuse(trio.current_time() - waits_s)
                    if not await self._route(chunk):
                        chunk = b""
                        return await self._turn_away()
                # While the connection waits for its peer, it must not keep the last bytes in memory.
                chunk = b""
                chunk = await self._read()
                if not chunk:
                    return "closed_by_peer"
        except RemoteProtocolError as error:
            self.fault = error.without_frames()
            if isinstance(error, TlsFault) and self._socket is not None and not machine.backlog.size_bytes:
                send_nowait(self._socket, error.alert)
            return error.kind
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return "broken"
        finally:
            self._drop_partial()

    async def _open_framing(self) -> bytes | None:
        """Returns the bytes after the peer's hello; None if the peer has closed. Raises RemoteProtocolError."""
        machine, frames = self._machine, b""
        while machine.state is TransportState.OPENING:
            if machine.wire is None:
                # A peer that connected to us may be silent without limit before its first frame.
                chunk = await self._read()
                if not chunk:
                    return None
            else:
                # A node that we connected to sends its hello at once. If no hello comes, the other side is not a node.
                chunk = b""
                with trio.move_on_after(machine.limits.hello_s):
                    chunk = bytes(await self._receive_some(READ_BYTES_MAX))
            reply, frames = machine.receive_opening(chunk, trio.current_time())
            self._put(reply)
        return frames

    def _drop_partial(self) -> None:
        self._partial_frames.note(self, self._machine.drop_partial(), 0)

    async def _read(self) -> bytes:
        """Returns the next bytes, or b"" if the peer has closed its sending side. Raises RemoteProtocolError."""
        # While all reads are small, they are made and routed by `_take_arrived`, until something needs this task.
        while self._may_arrive() and self._socket is not None:
            await self._arrivals.wait(self._socket.fileno(), self._share, self._take_arrived)
            arrived, self._arrived = self._arrived, b""
            if isinstance(arrived, Routed):
                await self._settle(arrived, trio.current_time())
            elif arrived:
                return arrived
            else:
                break
        deadline_s = self._machine.read_deadline_s(trio.current_time())
        if deadline_s == math.inf:
            return bytes(await self._receive_some(self._usage.read_bytes()))
        with trio.move_on_at(deadline_s):
            # The unfinished frames of all peers share one limit. A connection with a large unfinished frame waits here
            # until there is room.
            if self._machine.partial_bytes > PARTIAL_FREE_BYTES:
                await self._partial_frames.wait_turn(self)
            return bytes(await self._receive_some(self._usage.read_bytes()))
        raise self._machine.read_timeout(deadline_s)

    def _may_arrive(self) -> bool:
        """Whether `ReadyConnections` may read this connection. Its task is needed for the first messages, for TLS,
        limits and deadlines, and for the answers of other nodes."""
        return (
            HAS_EPOLL
            and self._small_reads >= SMALL_READS_MIN
            and self._tls is None
            and self.open_requests is None
            and self.link is None
            and not self._usage.slows
            and self._machine.read_deadline_s(0.0) == math.inf
        )

    def _take_arrived(self) -> bool:
        """Reads and routes a few bytes, in the batch of `ReadyConnections`. Returns False if the connection's own task
        must go on: with the result in `_arrived`, or by a read of its own if there is none."""
        if self._socket is None or not self._may_arrive():
            return False
        try:
            arrived = os.read(self._socket.fileno(), ARRIVAL_BYTES_MAX)
        except OSError:
            return False
        # If the peer has closed its side, the next read finds that again. A large read waits for its turn.
        if not 0 < len(arrived) < ARRIVAL_BYTES_MAX:
            self._arrived = arrived
            return False
        routed = self._deliver(arrived, trio.current_time())
        machine = self._machine
        holds_back = machine.backlog.size_bytes and machine.must_hold_back()
        if not (routed.full or routed.failure or machine.partial_bytes or holds_back):
            return True
        self._arrived = routed
        return False

    async def _route(self, chunk: bytes) -> bool:
        """Delivers the messages that these bytes complete. Then waits for room for more messages and more answers.
        Returns False if the messages are refused, for the reason that `_turn_away` finds."""
        began_s = trio.current_time()
        # All messages are delivered in one batch, so that every worker gets its messages as one run and answers them
        # with one commit and one send.
        with self._node.batch():
            routed = self._deliver(chunk, began_s)
        self._turns.note(self._share, began_s)
        return await self._settle(routed, began_s)

    def _deliver(self, chunk: bytes, began_s: float) -> Routed:
        """Delivers the messages that these bytes complete. A batch of the node is open."""
        machine = self._machine
        is_first = not machine.received
        partial_before_bytes = machine.partial_bytes
        messages, failure = machine.receive_data(chunk, began_s)
        self._small_reads = self._small_reads + 1 if len(chunk) < ARRIVAL_BYTES_MAX else 0
        self._usage.note_read(len(messages), len(chunk), began_s)
        if is_first and messages:
            messages = self._take_first(messages)
        self._note_held()
        if machine.partial_bytes != partial_before_bytes:
            self._partial_frames.note(self, partial_before_bytes, machine.partial_bytes)
        # A refused token, or an identity with too many connections: nothing of the chunk is delivered.
        if self._refused is not None:
            return Routed(is_refused=True)
        if messages and self._usage.refusal is not None:
            self._usage.refuse(self._node, messages)
            return Routed(is_refused=True)
        if self.open_requests:
            self.open_requests.answered(messages)
        if self.link is not None:
            messages = self.link.receive(messages)
        fed = self._node.deliver_run(messages)
        return Routed(messages, [mailbox for mailbox in fed if mailbox.full], failure)

    async def _settle(self, routed: Routed, began_s: float) -> bool:
        """Waits until more messages may be read after those of `routed`, which came at `began_s`. Returns False if the
        peer is refused. Raises the error of a bad frame."""
        if routed.is_refused:
            return False
        # A bad frame ends the connection, but the messages before it are delivered.
        if routed.failure is not None:
            raise routed.failure
        await self._wait_rooms(routed.full, routed.messages)
        await self._usage.wait_room()
        # A link is read even if many bytes wait to be sent: the node at its other end may read only while we do.
        while self.open_requests is None and self._machine.must_hold_back():
            self._wake_reader = trio.Event()
            await self._wake_reader.wait()
        # This waiting time must not count against the peer either.
        self._machine.excuse(trio.current_time() - began_s)
        return True

    async def _wait_rooms(self, full: Sequence[Mailbox], messages: Sequence[Message]) -> None:
        """Waits until the mailboxes that have got these messages have room. Two nodes that forward to each other must
        not wait for each other, and a slow peer must not stop everybody whose answers come through its link."""
        for mailbox in full:
            # Bytes that a peer does not take count for that peer, and too many of them close its connection. So a
            # connection that this node has made need not wait for the peer.
            if self.open_requests is not None and mailbox.is_peer:
                continue
            # Messages that do not fit there are refused (`forward_filter`). Only a sender whose messages can all be
            # refused need not wait, because anybody can pretend that some of them were passed on.
            leaving = (each for each in messages if leaves(each.onward_route))
            if mailbox.is_link and all(is_passed_on(each.return_route) for each in leaving):
                continue
            await mailbox.wait_room()

    def _take_first(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Handles a token in the peer's first message. Returns the messages after it, with the identity it proved.
        Returns all messages if there is no token, and none if the token is refused."""
        if self._authenticator is not None and messages[0].onward_route == (NODE_AUTHENTICATE,):
            # A peer that has proved a name by its certificate is refused, since a connection has one identity.
            proof = self._authenticator.judge(messages[0], self.peer, self.identity, self._tls is not None)
            if proof.verdict.identity is None or proof.answer is None:
                # Nothing more is read from this connection. It ends in `_turn_away`.
                self._refused = proof
                return ()
            self._proved = proof.verdict.identity
            self._send_run([proof.answer])
            self._usage.join(proof.verdict.identity)
            # The proved identity may have too many connections, and this one may never send a request.
            self._usage.limit_refusal(self._node, self.close)
            messages = self._machine.renew_origin(messages[1:])
        # A connection that has sent a message is no longer closed to make room for another one.
        self._share.is_known = True
        self._on_spoken(self)
        return messages

    async def _turn_away(self) -> str:
        """Ends reading. Returns the reason: a short, fixed word. Raises RemoteProtocolError after a refused token."""
        refused, authenticator = self._refused, self._authenticator
        if refused is None or authenticator is None:
            return TOO_MANY
        # The refusal waits before it is answered. Meanwhile the node keeps nothing that the peer has sent.
        self._drop_partial()
        if refused.answer is None:
            # A payload that is too large gets no answer. The refusal is reported all the same.
            authenticator.report(self.peer, self.identity, refused.verdict)
            self.close("token_too_large")
            return self._machine.end_reason
        if not await authenticator.refuse(self.peer, self.identity, refused.verdict):
            self.close("token_flood")
            return self._machine.end_reason
        # The peer gets its answer before the error ends the connection.
        self._send_run([refused.answer])
        raise RemoteProtocolError("token_refused", refused.verdict.reason)

    def has_unread(self) -> bool:
        return self._socket is not None and has_unread(self._socket.fileno())

    async def ask(
        self, route: Route, payloads: Sequence[bytes], timeout_s: float, prefix: bytes
    ) -> list[Message | AskTimedOut | AskRefused]:
        """Delivers requests of the peer that came in another protocol, such as HTTP, and not as frames. Returns their
        answers as `Asks.answers` does. The requests wait for their turn and count for the limits as frames do.

        prefix: the beginning of the return addresses."""
        await self._turns.wait(self._share)
        await self._usage.wait_turn()
        if self._usage.refusal is not None:
            return [AskRefused(self._usage.refusal, "")] * len(payloads)
        if self._asks_origin is None:
            self._asks_origin = Origin("tcp", self.peer, self.identity, holdings=self.holdings, usage=self._usage.usage)
        machine, began_s, size_bytes = self._machine, trio.current_time(), sum(map(len, payloads))
        machine.received += len(payloads)
        machine.received_bytes += size_bytes
        self._usage.note_read(len(payloads), size_bytes, began_s)
        asks = self._node.asks.send_all(route, payloads, timeout_s, self._asks_origin, prefix)
        self._turns.note(self._share, began_s)
        answers = await self._node.asks.answers(asks)
        size_bytes = sum(len(each.payload) for each in answers if isinstance(each, Message))
        machine.sent += len(payloads)
        machine.sent_bytes += size_bytes
        self._usage.note_sent(size_bytes)
        return answers

    # The memory of this connection.

    def _origin(self, wire: Wire) -> Origin:
        # Another member of the cluster has checked these messages, and answers over a link are not held back.
        if self.link is not None:
            return HERE
        return Origin(
            "tcp",
            self.peer,
            self.identity,
            frame_bytes_max=wire.send_bytes_max,
            backlog_bytes=lambda: self._machine.backlog.size_bytes,
            backlog_bytes_max=lambda: self._machine.soft_bytes(),
            holdings=self.holdings,
            usage=self._usage.usage,
        )

    def _note_held(self) -> None:
        held, machine = self.holdings, self._machine
        header_bytes, unread_bytes = machine.header_bytes, machine.unread_bytes
        if header_bytes != held.header_bytes or unread_bytes != held.unread_bytes:
            if machine.is_slow_consumer:
                self._close_slow()
            held.note(header_bytes, unread_bytes)

    def forget_if_idle(self) -> None:
        """Frees the remembered message headers if no message was received or sent since the last call."""
        if self._machine.was_idle() and self.holdings.header_bytes:
            self._machine.forget_headers()
            self._note_held()

    @property
    def identity(self) -> Identity:
        """The proved identity of a peer that connected to us. A node that we called is anonymous here."""
        # The certificate of a node that we called proves nothing: the names of servers come from other authorities.
        certificate = self._tls.certificate if self._tls is not None and self._tls_listener is not None else None
        return self._proved or identity_of(certificate)

    @property
    def who(self) -> dict[str, str]:
        return {"peer": self.peer, "identity": str(self.identity)}

    @property
    def certificate(self) -> PeerCertificate | None:
        return self._tls.certificate if self._tls is not None else None

    @property
    def is_reading(self) -> bool:
        """Whether messages of the peer can come. A peer that has closed its side may take answers, but is leaving."""
        return self._machine.state in (TransportState.OPENING, TransportState.OPEN, TransportState.HELD_BACK)

    @property
    def backlog_bytes(self) -> int:
        return self._machine.backlog.size_bytes

    def statistics(self) -> ConnectionStatistics:
        return self._machine.statistics(self.peer)
