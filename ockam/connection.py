"""One TCP connection as a worker: what arrives at its address goes out on the socket, what comes in is routed.

It owns both directions of one byte stream and nothing else; who may connect, and to whom, is `tcp`'s business.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import structlog
import trio

from ockam.address import Address
from ockam.era import HEAD_SILENCE_S, HEADER_TIMEOUT_S, maybe_wire
from ockam.errors import FrameTooLarge, RemoteProtocolError
from ockam.frames import FrameReader, FrameWriter
from ockam.mailbox import Mailbox
from ockam.message import Message, Origin
from ockam.node import Node
from ockam.wire import Wire
from ockam.wire_head import HEAD
from ockam.wire_legacy import LEGACY
from ockam.worker import Worker

READ_BYTES_MAX = 256 * 1024
BACKLOG_BYTES_SOFT = 4 * 1024 * 1024
"""With this much unsent we read no more requests from the peer."""
BACKLOG_BYTES_HARD = 64 * 1024 * 1024
"""With this much unsent the peer is closed as a slow consumer."""

logger = structlog.get_logger(__name__)


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds. idle_s None keeps silent connections for ever."""

    header_s: float = HEADER_TIMEOUT_S
    head_silence_s: float = HEAD_SILENCE_S
    frame_s: float = 30.0
    send_s: float = 30.0
    idle_s: float | None = None


class ConnectionStatistics(msgspec.Struct, frozen=True):
    """Since the connection began."""

    peer: str
    framing: str
    received: int
    received_bytes: int
    sent: int
    sent_bytes: int
    backlog_bytes: int


class Connection(Worker):
    """Carries messages between the node and one peer.

    `run` serves until either side ends it.
    Invariant: `_backlog_bytes` is the size of what `_outbound` holds plus what is being sent right now.
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
    ) -> None:
        """wire: the framing where it is known (we called); None where the peer's first bytes tell it."""
        self._node = node
        self._stream = stream
        self._limits = limits
        self._wire = wire
        self._writer = FrameWriter(wire) if wire is not None else None
        self._outbound: list[bytes] = []
        self._backlog_bytes = 0
        self._wake_writer = trio.Event()
        self._wake_reader = trio.Event()
        self._closed_because: str | None = None
        self._closing = self._closed = False
        self._scope = trio.CancelScope()
        self._read_scope = trio.CancelScope()
        self._frame_deadline_s = math.inf
        self._received = self._received_bytes = self._sent = self._sent_bytes = 0
        self.own_address = address
        self.peer = peer

    def started(self) -> None:
        if self._wire is not None and self._wire.hello:
            self._enqueue(self._wire.hello)

    def receive(self, run: Sequence[Message]) -> None:
        """Drop our own hop, encode, and send the whole run at once."""
        if self._closed or self._writer is None:
            for _ in run:
                self._node.count_drop("connection_closed")
            return
        frames = self._writer.frames(run, self._refuse)
        self._sent += len(frames)
        self._enqueue(b"".join(frames))

    def _refuse(self, error: FrameTooLarge) -> None:
        self._node.count_drop("frame_too_large")
        logger.warning("frame_too_large", peer=self.peer, framing=self.framing, reason=str(error))

    @property
    def framing(self) -> str:
        return self._wire.name if self._wire is not None else "undecided"

    @property
    def backlog_bytes(self) -> int:
        return self._backlog_bytes

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
        self._closing = True
        self._read_scope.cancel()
        self._wake_writer.set()

    async def run(self) -> str:
        """Serve the connection until it ends; the reason is a short stable word for counters."""
        reason = "drained"
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._send_loop)
                    with self._read_scope:
                        reason = await self._receive_loop()
                        self.close_when_sent()
        finally:
            self._closed = True
            self._outbound.clear()
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(self._stream)
        return self._closed_because or reason

    def statistics(self) -> ConnectionStatistics:
        return ConnectionStatistics(
            self.peer,
            self.framing,
            self._received,
            self._received_bytes,
            self._sent,
            self._sent_bytes,
            self._backlog_bytes,
        )

    async def _receive_loop(self) -> str:
        try:
            first = b"" if self._wire is not None else await self._learn_wire()
            if first is None:
                raise RemoteProtocolError("header_timeout", f"no header came in {self._limits.header_s} s")
            if self._wire is None:
                return "closed_before_header"
            reader = FrameReader(self._wire, self._origin(self._wire), (self.own_address,))
            chunk = first or b""
            if self._wire.hello:
                chunk = await self._skip_hello(chunk, self._wire.hello)
            while True:
                if chunk:
                    await self._route(reader, chunk)
                chunk = await self._read(reader)
                if not chunk:
                    return "closed_by_peer"
        except RemoteProtocolError as error:
            logger.warning("connection_closed", peer=self.peer, kind=error.kind, reason=str(error))
            return error.kind
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return "broken"

    async def _learn_wire(self) -> bytes | None:
        """The first bytes, once they tell the framing; b"" if the peer left before, None if it stayed silent."""
        first = b""
        with trio.move_on_after(self._limits.header_s) as header_scope:
            while self._wire is None:
                with trio.move_on_after(self._limits.head_silence_s if first else self._limits.header_s) as silence:
                    chunk = await self._stream.receive_some(READ_BYTES_MAX)
                if silence.cancelled_caught:
                    self._wire = HEAD if first == HEAD.hello else LEGACY if first else None
                    break
                if not chunk:
                    return b""
                first += chunk
                self._wire = maybe_wire(first)
        if self._wire is None and (header_scope.cancelled_caught or not first):
            return None
        if self._wire is not None:
            self._writer = FrameWriter(self._wire)
            self._enqueue(self._wire.hello)
        return first

    async def _skip_hello(self, chunk: bytes, hello: bytes) -> bytes:
        """Take the peer's hello off the front of its bytes, waiting for it where it has not come."""
        if not chunk:
            with trio.move_on_after(self._limits.header_s):
                chunk = bytes(await self._stream.receive_some(READ_BYTES_MAX))
        if not chunk.startswith(hello):
            raise RemoteProtocolError(
                "header", f"the peer opened with {chunk[:1].hex() or 'nothing'}, not {hello.hex()}"
            )
        return chunk[len(hello) :]

    async def _route(self, reader: FrameReader, chunk: bytes) -> None:
        """Deliver what is whole in these bytes in one batch, then wait while a mailbox that it fed is full."""
        self._received_bytes += len(chunk)
        failure: RemoteProtocolError | None = None
        try:
            messages: Sequence[Message] = reader.feed(chunk)
        except RemoteProtocolError as error:
            failure, messages = error, error.messages
        self._received += len(messages)
        if not reader.waiting_bytes:
            self._frame_deadline_s = math.inf
        elif messages or self._frame_deadline_s == math.inf:
            self._frame_deadline_s = trio.current_time() + self._limits.frame_s
        full: set[Mailbox] = set()
        deliver = self._node.deliver
        with self._node.batch():
            for message in messages:
                mailbox = deliver(message)
                if mailbox is not None and mailbox.full:
                    full.add(mailbox)
        if failure is not None:
            raise failure
        for mailbox in full:
            await mailbox.wait_room()
        while self._backlog_bytes > BACKLOG_BYTES_SOFT:
            self._wake_reader = trio.Event()
            await self._wake_reader.wait()

    async def _read(self, reader: FrameReader) -> bytes:
        """The next bytes; b"" at the end. A frame that has begun must end within `frame_s`."""
        if self._frame_deadline_s == math.inf and self._limits.idle_s is None:
            return bytes(await self._stream.receive_some(READ_BYTES_MAX))
        idle_s = math.inf if self._limits.idle_s is None else self._limits.idle_s
        deadline_s = min(self._frame_deadline_s, trio.current_time() + idle_s)
        with trio.move_on_at(deadline_s):
            return bytes(await self._stream.receive_some(READ_BYTES_MAX))
        if deadline_s == self._frame_deadline_s:
            raise RemoteProtocolError("slow_frame", f"a frame was not complete after {self._limits.frame_s} s")
        raise RemoteProtocolError("idle", f"nothing came for {idle_s} s")

    def _origin(self, wire: Wire) -> Origin:
        return Origin("tcp", self.peer, "anonymous", wire.send_bytes_max, lambda: self._backlog_bytes)

    def _enqueue(self, data: bytes) -> None:
        if not data:
            return
        self._outbound.append(data)
        self._backlog_bytes += len(data)
        self._wake_writer.set()
        if self._backlog_bytes > BACKLOG_BYTES_HARD:
            logger.warning("slow_consumer", peer=self.peer, backlog_bytes=self._backlog_bytes)
            self.close("slow_consumer")

    async def _send_loop(self) -> None:
        """Send whatever waits, all of it at a time; a peer that takes nothing for `send_s` is a slow consumer."""
        while True:
            if not self._outbound:
                if self._closing:
                    return
                self._wake_writer = trio.Event()
                await self._wake_writer.wait()
                continue
            data = b"".join(self._outbound)
            self._outbound.clear()
            if not await self._send(data):
                return
            self._sent_bytes += len(data)
            if self._backlog_bytes <= BACKLOG_BYTES_SOFT:
                self._wake_reader.set()

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
                logger.warning("slow_consumer", peer=self.peer, backlog_bytes=self._backlog_bytes)
                self.close("slow_consumer")
                return False
            self._backlog_bytes -= len(part)
        return True


SEND_BYTES = 1024 * 1024
"""One send; the time limit of a slow consumer applies to each."""


def peer_name(stream: trio.SocketStream) -> str:
    """`host:port` of the other side, for logs."""
    name = stream.socket.getpeername()
    return f"[{name[0]}]:{name[1]}" if ":" in str(name[0]) else f"{name[0]}:{name[1]}"
