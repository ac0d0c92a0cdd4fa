"""One TCP connection as a worker: what arrives at its address goes out on the socket, what comes in is routed.

It owns both directions of one byte stream and nothing else; who may connect, and to whom, is `tcp`'s business.
"""

from __future__ import annotations

import fcntl
import math
import termios
from collections import deque
from collections.abc import Callable, Sequence

import structlog
import trio

from ockam.address import Address, Route
from ockam.connection_limits import ConnectionLimits, ConnectionStatistics
from ockam.errors import FrameTooLarge, RemoteProtocolError
from ockam.forwarding import OpenRequests, forward_refused, has_looped, is_sender_told
from ockam.frames import BadFrame, FrameReader, FrameWriter
from ockam.handshake import FramingDetector, strip_hello
from ockam.mailbox import Mailbox
from ockam.memory import Holdings, PeerMemory
from ockam.message import Message, Origin
from ockam.node import Node
from ockam.partial_frames import PARTIAL_FREE_BYTES, PartialFrames
from ockam.sockets import send_nowait
from ockam.turns import READ_BYTES_MAX, Share, Turns
from ockam.wire import Wire
from ockam.worker import Worker

BACKLOG_BYTES_SOFT = 4 * 1024 * 1024
"""With this much unsent we read no more requests from the peer, nor from others what is to be passed on to it."""
BACKLOG_BYTES_HARD = 64 * 1024 * 1024
"""With this much unsent the peer is closed as a slow consumer."""
SEND_BYTES = 1024 * 1024
"""One send; the time limit of a slow consumer applies to each."""
LINGER_QUIET_S = 1.0
"""After the peer's last byte the sending side stays until this long nothing has been sent, since the commit that an
answer waits for takes less."""
LINGER_S_MAX = 5.0
"""And no longer than this; nor at all where no message came in so long a time."""

logger = structlog.get_logger(__name__)


class Connection(Worker):
    """Carries messages between the node and one peer.

    `run` serves until either side ends it.
    Invariant: `_backlog_bytes` is the size of what `_outbound` holds plus what is being sent right now. What is passed
    on from other peers waits in `_kept` while that is above the soft limit, and our mailbox then counts as full.
    """

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
        on_spoken: Callable[[Connection], None],
    ) -> None:
        """wire: None where the peer's first bytes tell it. on_spoken: called once, when the first message has come."""
        self._node = node
        self._stream = stream
        # Not under TLS or a test's pipe: what goes out there is not what is sent.
        self._socket = stream.socket if isinstance(stream, trio.SocketStream) else None
        self._limits = limits
        self._wire = wire
        self._writer = FrameWriter(wire) if wire is not None else None
        self._partial_frames = partial_frames
        self._on_spoken = on_spoken
        self._memory = memory
        self._turns = turns
        self._share = Share(peer.rpartition(":")[0])
        self.holdings = Holdings(memory, self._forget, self._close_slow)
        self._reader: FrameReader | None = None
        self._activity = -1
        self._partial_bytes = 0
        self._mailbox = Mailbox()
        self._outbound: list[bytes] = []
        self._kept: deque[Message] = deque()
        self._backlog_bytes = 0
        self._nursery: trio.Nursery | None = None
        self._sending = False
        self._wake_reader = trio.Event()
        self._closed_because: str | None = None
        self._closing = trio.Event()
        self._closed = self._circles_told = False
        self._scope = trio.CancelScope()
        self._read_scope = trio.CancelScope()
        self._frame_deadline_s = math.inf
        self._received_at_s = self._sent_at_s = -math.inf
        self._received = self._received_bytes = self._sent = self._sent_bytes = 0
        self.own_address = address
        self.peer = peer
        # Of what goes out to a node that we called, requests are remembered; what goes back to a caller are answers.
        self.open_requests = OpenRequests() if wire is not None else None

    def started(self) -> None:
        mailbox = self._node.find_mailbox(self.own_address)
        if mailbox is not None:
            self._mailbox = mailbox
        if self._wire is not None and self._wire.hello:
            self._enqueue(self._wire.hello)

    def receive(self, run: Sequence[Message]) -> None:
        """Drop our own hop, encode, and send the whole run at once; or keep what is passed on until there is room."""
        if self.open_requests is not None:
            self.open_requests.note(run)
        if self._closed or self._closed_because is not None or self._writer is None:
            for _ in run:
                self._node.count_drop("connection_closed")
            return
        self._sent_at_s = trio.current_time()
        if run[0].origin.kind != "local" or self._backlog_bytes > self._soft_bytes():
            self._keep([message for message in run if message.origin.kind != "local"])
            run = [message for message in run if message.origin.kind == "local"]
            self._send_kept()
        self._encode(self._writer, run)

    def _keep(self, run: Sequence[Message]) -> None:
        """Take what is to be passed on. What comes round a second time goes no further: two nodes that pass on to each
        other would be busy with it alone, and each would wait until the other takes more."""
        last: Route | None = None
        circles = False
        for message in run:
            # A run mostly came along one way, which is looked at once.
            if message.return_route is not last:
                last = message.return_route
                circles = has_looped(last, self._node.is_registered)
            if not circles:
                self._kept.append(message)
                continue
            self._node.count_drop("forward_circle")
            if not self._circles_told:
                self._circles_told = True
                logger.warning("forward_refused", reason="it goes in a circle", peer=message.origin.peer, to=self.peer)
            if is_sender_told(message):
                self._node.send(forward_refused(message, "it has passed through this node before"))

    def _encode(self, writer: FrameWriter, run: Sequence[Message]) -> None:
        """Send the run, or what the socket does not take at once behind what waits already."""
        count, data = writer.encode(run, self._refuse)
        self._note_held()
        self._sent += count
        self._put(data)

    def _put(self, data: bytes) -> None:
        """Send what the socket takes at once, and keep the rest for the sending task."""
        rest = data if self._backlog_bytes or not data or self._socket is None else send_nowait(self._socket, data)
        self._sent_bytes += len(data) - len(rest)
        self._enqueue(rest)

    def _send_kept(self) -> None:
        """Send what is passed on, as much as the soft limit lets; those who bring it wait while some is left."""
        while self._kept and self._writer is not None and self._backlog_bytes <= self._soft_bytes():
            run: list[Message] = []
            room_bytes = self._soft_bytes() - self._backlog_bytes
            while self._kept and room_bytes >= 0:
                run.append(self._kept.popleft())
                room_bytes -= len(run[-1].payload)
            self._encode(self._writer, run)
        if self._kept:
            self._mailbox.hold()
        elif self._backlog_bytes <= self._soft_bytes():
            self._mailbox.admit()

    def _refuse(self, error: FrameTooLarge) -> None:
        self._node.count_drop("frame_too_large")
        logger.warning("frame_too_large", peer=self.peer, framing=self.framing, reason=str(error))

    @property
    def framing(self) -> str:
        return self._wire.name if self._wire is not None else "undecided"

    @property
    def backlog_bytes(self) -> int:
        return self._backlog_bytes

    def has_unread(self) -> bool:
        """Whether bytes of the peer wait in the socket."""
        if self._socket is None or self._socket.fileno() < 0:
            return False
        return any(fcntl.ioctl(self._socket.fileno(), termios.FIONREAD, bytes(4)))

    def close(self, reason: str) -> None:
        """End the connection now; what waits to be sent is dropped. Safe to repeat."""
        if self._closed_because is None:
            self._closed_because = reason
        self._scope.cancel()

    def stop_reading(self) -> None:
        """Take no more from the peer; answers still go out until `close` or `close_when_sent`."""
        self._read_scope.cancel()

    def close_when_sent(self) -> None:
        """End the connection when everything that waits has been sent."""
        self._closing.set()
        self._read_scope.cancel()

    async def run(self) -> str:
        """Serve the connection until it ends; the reason is a short stable word for counters."""
        reason = "drained"
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    self._ensure_sending()
                    with self._read_scope:
                        reason = await self._receive_loop()
                        if reason != "broken":
                            await self._linger()
                        # Thousands may leave at one moment, and the end of each takes its time.
                        await self._turns.wait(self._share, leaves=True)
                        self.close_when_sent()
                    # Where only reading has been stopped, answers still go out.
                    await self._closing.wait()
        finally:
            self._closed = True
            self._outbound.clear()
            for _ in self._kept:
                self._node.count_drop("connection_closed")
            self._kept.clear()
            self._backlog_bytes = 0
            self.holdings.end()
            if self._socket is not None:
                self._socket.close()
            else:
                with trio.CancelScope(shield=True):
                    await trio.aclose_forcefully(self._stream)
        if self._closed_because == "broken" and reason != "drained":
            return reason
        return self._closed_because or reason

    def statistics(self) -> ConnectionStatistics:
        received, sent = (self._received, self._received_bytes), (self._sent, self._sent_bytes)
        return ConnectionStatistics(self.peer, self.framing, *received, *sent, self._backlog_bytes)

    async def _receive_loop(self) -> str:
        try:
            chunk = b""
            if self._wire is None:
                chunk = await self._learn_wire()
                if self._wire is None:
                    return "closed_before_header"
            reader = self._reader = FrameReader(self._wire, self._origin(self._wire), (self.own_address,))
            if self._wire.hello:
                if not chunk:
                    with trio.move_on_after(self._limits.hello_s):
                        chunk = bytes(await self._stream.receive_some(READ_BYTES_MAX))
                chunk = strip_hello(chunk, self._wire)
            while True:
                if chunk:
                    waits_s = trio.current_time()
                    await self._turns.wait(self._share)
                    # The peer is not to blame for the time in which others had their turn.
                    self._frame_deadline_s += trio.current_time() - waits_s
                    await self._route(reader, chunk)
                chunk = b""  # A silent connection keeps nothing of what came last.
                chunk = await self._read()
                if not chunk:
                    return "closed_by_peer"
        except RemoteProtocolError as error:
            logger.warning("connection_closed", peer=self.peer, kind=error.kind, reason=str(error))
            return error.kind
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return "broken"
        finally:
            self._note_partial(0)

    async def _learn_wire(self) -> bytes:
        """Set the framing that the peer's first bytes tell, and return these; it stays None where the peer leaves."""
        detector = FramingDetector()
        while detector.wire is None:
            chunk = await self._read()
            if not chunk:
                return b""
            self._put(detector.feed(chunk))
            if detector.frame_begun and self._frame_deadline_s == math.inf:
                self._frame_deadline_s = trio.current_time() + self._limits.frame_s
        self._wire = detector.wire
        self._writer = FrameWriter(detector.wire)
        return detector.received

    async def _route(self, reader: FrameReader, chunk: bytes) -> None:
        """Deliver what is whole in these bytes in one batch, then wait while a mailbox that it fed is full."""
        began_s = trio.current_time()
        self._received_bytes += len(chunk)
        failure: BadFrame | None = None
        try:
            messages: Sequence[Message] = reader.feed(chunk)
        except BadFrame as error:
            failure, messages = error, error.messages
        if messages:
            if not self._received:
                self._share.is_known = True
                self._on_spoken(self)
            self._received += len(messages)
            self._received_at_s = began_s
        self._note_held()
        # The deadline belongs to one frame: it begins anew when that frame has ended and the next one has begun.
        waiting_bytes = reader.waiting_bytes
        if not waiting_bytes:
            self._frame_deadline_s = math.inf
        elif waiting_bytes < self._partial_bytes + len(chunk) or self._frame_deadline_s == math.inf:
            self._frame_deadline_s = began_s + self._limits.frame_s
        if waiting_bytes != self._partial_bytes:
            self._note_partial(waiting_bytes)
        if self.open_requests:
            self.open_requests.answered(messages)
        with self._node.batch():
            fed = self._node.deliver_run(messages)
            full = [mailbox for mailbox in fed if mailbox.full]
        self._turns.note(self._share, began_s)
        # The good messages before a bad frame have been delivered.
        if failure is not None:
            raise failure
        # Until the workers have room and the peer has taken its answers nothing more is read: TCP holds up the peer.
        for mailbox in full:
            await mailbox.wait_room()
        while self._backlog_bytes > self._soft_bytes():
            self._wake_reader = trio.Event()
            await self._wake_reader.wait()
        # Nor is the peer to blame for this time.
        self._frame_deadline_s += trio.current_time() - began_s

    def _note_partial(self, now_bytes: int) -> None:
        self._partial_frames.note(self, self._partial_bytes, now_bytes)
        self._partial_bytes = now_bytes

    async def _read(self) -> bytes:
        """The next bytes; b"" at the end. A frame that has begun must end within `frame_s`."""
        if self._frame_deadline_s == math.inf and self._limits.idle_s is None:
            return bytes(await self._stream.receive_some(self._share.read_bytes))
        idle_s = math.inf if self._limits.idle_s is None else self._limits.idle_s
        deadline_s = min(self._frame_deadline_s, trio.current_time() + idle_s)
        with trio.move_on_at(deadline_s):
            if self._partial_bytes > PARTIAL_FREE_BYTES:
                await self._partial_frames.wait_turn(self)
            return bytes(await self._stream.receive_some(self._share.read_bytes))
        if deadline_s == self._frame_deadline_s:
            raise RemoteProtocolError("slow_frame", f"a frame was not complete after {self._limits.frame_s} s")
        raise RemoteProtocolError("idle", f"nothing came for {idle_s} s")

    async def _linger(self) -> None:
        """Give the answers under way their time: a peer may end its sending side and still read, and the good messages
        before a bad frame are answered like any others."""
        now_s = trio.current_time()
        if self._received_at_s < now_s - LINGER_S_MAX:
            return
        with trio.move_on_at(now_s + LINGER_S_MAX):
            quiet_at_s = now_s + LINGER_QUIET_S
            while True:
                await trio.sleep_until(quiet_at_s)
                if quiet_at_s >= self._sent_at_s + LINGER_QUIET_S:
                    return
                quiet_at_s = self._sent_at_s + LINGER_QUIET_S

    def _origin(self, wire: Wire) -> Origin:
        holdings, backlog = self.holdings, lambda: self._backlog_bytes
        return Origin("tcp", self.peer, "anonymous", wire.send_bytes_max, backlog, self._soft_bytes, holdings)

    def _soft_bytes(self) -> int:
        return self._memory.share_bytes(BACKLOG_BYTES_SOFT)

    def _note_held(self) -> None:
        """Tell the memory of all peers what this one makes us hold, where that has changed."""
        held, header_bytes = self.holdings, self._writer.known_bytes if self._writer is not None else 0
        if self._reader is not None:
            header_bytes += self._reader.known_bytes
        if header_bytes != held.header_bytes or self._backlog_bytes != held.unread_bytes:
            held.note(header_bytes, self._backlog_bytes)

    def _forget(self) -> None:
        """Remember no more headers of this peer; they are learnt again from the next messages."""
        for known in (self._reader, self._writer):
            if known is not None:
                known.forget()

    def forget_if_idle(self) -> None:
        """Give the memory of headers back where nothing has come or gone since the last time this was asked."""
        activity = self._received + self._sent
        if activity == self._activity and self.holdings.header_bytes:
            self._forget()
            self._note_held()
        self._activity = activity

    def _close_slow(self) -> None:
        if self._closed_because is None:
            logger.warning("slow_consumer", peer=self.peer, backlog_bytes=self._backlog_bytes)
            self.close("slow_consumer")

    def _enqueue(self, data: bytes) -> None:
        if not data or self._closed_because is not None:
            return
        self._outbound.append(data)
        self._backlog_bytes += len(data)
        if not self._closing.is_set():
            self._ensure_sending()
        if self._backlog_bytes > self._soft_bytes():
            self._mailbox.hold()
        if self._backlog_bytes > BACKLOG_BYTES_HARD:
            self._close_slow()
        self._note_held()

    def _ensure_sending(self) -> None:
        """Start the sending task where something waits and none runs. A peer that takes its answers at once needs none,
        so that connections come and go at half the cost."""
        if self._outbound and not self._sending and self._nursery is not None:
            self._sending = True
            self._nursery.start_soon(self._send_loop)

    async def _send_loop(self) -> None:
        """Send whatever waits, all of it at a time; a peer that takes nothing for `send_s` is a slow consumer."""
        while self._outbound:
            data = b"".join(self._outbound)
            self._outbound.clear()
            if not await self._send(data):
                return
            self._sent_bytes += len(data)
            del data  # Nor what was sent last, which may be megabytes.
            if self._backlog_bytes <= self._soft_bytes():
                self._wake_reader.set()
                self._send_kept()
        self._sending = False

    async def _send(self, data: bytes) -> bool:
        view = memoryview(data)
        for at in range(0, len(data), SEND_BYTES):
            part = view[at : at + SEND_BYTES]
            try:
                with trio.move_on_after(self._limits.send_s) as scope:
                    await self._stream.send_all(part)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self.close("broken")
                return False
            if scope.cancelled_caught:
                self._close_slow()
                return False
            self._backlog_bytes -= len(part)
            self._note_held()
            if self._backlog_bytes <= self._soft_bytes():
                self.holdings.tell_taken()
        return True
