"""ConnectionMachine: the state machine of one connection, with its frames, its unsent bytes and its deadlines.

It reads no sockets, starts no tasks and reads no clock; the worker `connection.Connection` does. The head framing is
that of Ockam since June 2024, the legacy framing that of older Ockam (`wire`).

    incoming, or outgoing with the head framing        outgoing with the legacy framing
                      |                                              |
                   OPENING ------------ hello -------------------> OPEN <---- backlog ----> HELD_BACK
                      |                                              |
                      +--------> PEER_CLOSED <-----------------------+
                                      |        NOT_READING: from any state before, when the node stops
                                      v              |
                                  DRAINING <---------+
                                      |
                                    CLOSED"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from ockam.actors.address import Address
from ockam.actors.message import Message, Origin
from ockam.errors import FrameTooLarge, RemoteProtocolError
from ockam.transport.frames import BadFrame, FrameReader, FrameWriter
from ockam.transport.handshake import FramingDetector, strip_hello
from ockam.transport.wire import Wire

BACKLOG_BYTES_SOFT = 4 * 1024 * 1024
"""Above this many unsent bytes of a connection, no requests are read from its peer, and nothing is forwarded to it."""
BACKLOG_BYTES_HARD = 64 * 1024 * 1024
"""Above this many unsent bytes of a connection, it is closed: its peer is a slow consumer."""
FORWARDED_BYTES_MAX = 16 * 1024 * 1024
"""Above this many waiting bytes, messages that another node has passed on are refused."""
SEND_BYTES = 1024 * 1024
"""The largest number of bytes in one send. The time limit `send_s` applies to each send."""
LINGER_QUIET_S = 1.0
"""When a peer has closed its sending side, ours stays open until we have sent nothing for this long. An answer that
still waits for its commit leaves within this time."""
LINGER_S_MAX = 5.0
"""The longest time for which our sending side stays open after the peer has closed its own. If the peer's last message
is older than this, our side is closed at once."""
HELLO_TIMEOUT_S = 5.0


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The time limits of a connection, in seconds, which the operator sets. Above a limit, the connection is closed.

    hello_s: the longest wait for the hello (the opening byte) of a node that we connected to.
    frame_s: the longest time from the first byte of a frame to its last byte.
    send_s: the longest time that the peer may take to accept 1 MiB.
    idle_s: the longest time without a byte from the peer; None means no limit."""

    hello_s: float = HELLO_TIMEOUT_S
    frame_s: float = 30.0
    send_s: float = 30.0
    idle_s: float | None = None


class ConnectionStatistics(msgspec.Struct, frozen=True):
    """The statistics of one connection. received, sent: numbers of messages. backlog_bytes: the unsent bytes."""

    peer: str
    framing: str
    received: int
    received_bytes: int
    sent: int
    sent_bytes: int
    backlog_bytes: int


class TransportState(enum.Enum):
    OPENING = "opening"
    """The peer's framing is not known yet, or its hello (its opening byte) has not arrived."""
    OPEN = "open"
    HELD_BACK = "held back"
    """The peer takes its answers too slowly. No bytes are read from the peer until it has taken some answers."""
    PEER_CLOSED = "peer closed"
    """The peer has closed its sending side, sent a bad frame or was too slow. Answers are still sent."""
    NOT_READING = "not reading"
    """The node is stopping and accepts no more requests. Answers are still sent."""
    DRAINING = "draining"
    CLOSED = "closed"


class TransportEvent(enum.Enum):
    OPENED = "the peer's framing is known, and its hello has come"
    BACKLOG_HIGH = "more than the soft bound waits to be sent"
    BACKLOG_LOW = "no more than the soft bound waits to be sent"
    READING_ENDED = "the peer closed its sending side, broke the connection or the protocol, or was too slow"
    STOP_READING = "the node stops"
    CLOSE_WHEN_SENT = "the connection is to end once everything is sent"
    CLOSE = "the connection is to end now, or has ended"


# The node may stop, drain or close a connection in any state.
_ORDERS = {
    TransportEvent.STOP_READING: TransportState.NOT_READING,
    TransportEvent.CLOSE_WHEN_SENT: TransportState.DRAINING,
    TransportEvent.CLOSE: TransportState.CLOSED,
}
TRANSITIONS: dict[TransportState, dict[TransportEvent, TransportState]] = {
    TransportState.OPENING: {
        TransportEvent.OPENED: TransportState.OPEN,
        TransportEvent.READING_ENDED: TransportState.PEER_CLOSED,
    }
    | _ORDERS,
    TransportState.OPEN: {
        TransportEvent.BACKLOG_HIGH: TransportState.HELD_BACK,
        TransportEvent.READING_ENDED: TransportState.PEER_CLOSED,
    }
    | _ORDERS,
    TransportState.HELD_BACK: {TransportEvent.BACKLOG_LOW: TransportState.OPEN} | _ORDERS,
    TransportState.PEER_CLOSED: _ORDERS,
    # A read may end after the node has stopped reading. The events of such a read do not change the state any more.
    TransportState.NOT_READING: dict.fromkeys(TransportEvent, TransportState.NOT_READING)
    | {TransportEvent.CLOSE_WHEN_SENT: TransportState.DRAINING, TransportEvent.CLOSE: TransportState.CLOSED},
    TransportState.DRAINING: dict.fromkeys(TransportEvent, TransportState.DRAINING)
    | {TransportEvent.CLOSE: TransportState.CLOSED},
    TransportState.CLOSED: dict.fromkeys(TransportEvent, TransportState.CLOSED),
}
"""For each state, the next state after each event. A missing event is a mistake in our code: AssertionError."""


class Backlog:
    """The unsent bytes of one connection, and the messages of other peers that wait to be forwarded.

    A forwarded message is encoded only when there is room, so that the peers that send to a slow peer have to wait.

    Invariant: `size_bytes` is the size of all `chunks` plus `sending_bytes`, the bytes that were taken but not sent."""

    __slots__ = ("chunks", "forwarded", "forwarded_bytes", "sending_bytes", "size_bytes")

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.forwarded: deque[Message] = deque()
        self.size_bytes = self.sending_bytes = self.forwarded_bytes = 0

    def add(self, data: bytes) -> None:
        self.chunks.append(data)
        self.size_bytes += len(data)

    def take(self) -> bytes:
        data = b"".join(self.chunks)
        self.chunks.clear()
        self.sending_bytes += len(data)
        return data

    def note_sent(self, sent_bytes: int) -> None:
        self.sending_bytes -= sent_bytes
        self.size_bytes -= sent_bytes

    @property
    def refuses(self) -> bool:
        return self.forwarded_bytes > FORWARDED_BYTES_MAX

    def forward(self, run: Sequence[Message]) -> None:
        self.forwarded.extend(run)
        self.forwarded_bytes += sum([len(message.payload) for message in run])

    def take_forwarded(self, room_bytes: int) -> list[Message]:
        """Removes and returns the oldest forwarded messages up to `room_bytes`, which the last of them may exceed."""
        run: list[Message] = []
        while self.forwarded and room_bytes >= 0:
            run.append(self.forwarded.popleft())
            size_bytes = len(run[-1].payload)
            room_bytes -= size_bytes
            self.forwarded_bytes -= size_bytes
        return run

    def clear(self) -> int:
        dropped = len(self.forwarded)
        self.chunks.clear()
        self.forwarded.clear()
        self.size_bytes = self.sending_bytes = self.forwarded_bytes = 0
        return dropped

    def check(self) -> None:
        assert self.size_bytes == sum(map(len, self.chunks)) + self.sending_bytes
        assert self.sending_bytes >= 0
        assert self.forwarded_bytes == sum(len(message.payload) for message in self.forwarded)


class ConnectionMachine:
    """The state of one connection, its frames in both directions, and its deadlines.

    wire: the framing; None until the first bytes of the peer show its framing.
    frame_deadline_s: the time by which the unfinished frame must be complete; infinite if no frame is unfinished.
    partial_bytes: the received bytes of the unfinished frame.

    Invariant: in OPEN and HELD_BACK the framing is known. An unfinished frame has a deadline. `_close_reason` is set
    only in CLOSED. Forwarded messages wait only while unsent bytes wait."""

    def __init__(
        self,
        wire: Wire | None,
        address: Address,
        limits: ConnectionLimits,
        share_bytes: Callable[[int], int],
        origin: Callable[[Wire], Origin],
        *,
        is_named: bool = True,
    ) -> None:
        """wire: the framing if we connected to the node, which has our hello already; otherwise None.
        address: the connection's address, the first hop of every return route if `is_named`; else nothing is added.
        share_bytes: lowers a limit while the memory for all peers is nearly used up (`PeerMemory.share_bytes`).
        origin: creates the `Origin` of the received messages."""
        self.limits = limits
        self._share_bytes = share_bytes
        self.backlog = Backlog()
        self._has_called = wire is None
        self._prefix = (address,) if is_named else ()
        self._origin = origin
        self._detector = FramingDetector()
        self._reader: FrameReader | None = None
        self.writer: FrameWriter | None = None
        self.wire: Wire | None = None
        self.state = TransportState.OPENING
        self.received = self.received_bytes = self.sent = self.sent_bytes = 0
        self.partial_bytes = 0
        self.frame_deadline_s = math.inf
        self.sent_at_s = self._received_at_s = self._reading_ended_at_s = -math.inf
        self._close_reason: str | None = None
        self._reading_reason = "drained"
        self._activity = -1
        if wire is not None:
            # A framing without a hello has nothing to wait for.
            self._speak(wire)
            if not wire.hello:
                self._change(TransportEvent.OPENED)

    @property
    def framing(self) -> str:
        return self.wire.name if self.wire is not None else "undecided"

    def statistics(self, peer: str) -> ConnectionStatistics:
        moved = (self.received, self.received_bytes, self.sent, self.sent_bytes)
        return ConnectionStatistics(peer, self.framing, *moved, self.backlog.size_bytes)

    # The state.

    def _change(self, event: TransportEvent) -> None:
        state = TRANSITIONS[self.state].get(event)
        assert state is not None, f"{event} in {self.state}"
        self.state = state

    def soft_bytes(self) -> int:
        return self._share_bytes(BACKLOG_BYTES_SOFT)

    def must_hold_back(self) -> bool:
        """Returns whether the peer must take answers before it is read again. Sets OPEN or HELD_BACK."""
        is_high = self.backlog.size_bytes > self.soft_bytes()
        if is_high is not (self.state is TransportState.HELD_BACK):
            self._change(TransportEvent.BACKLOG_HIGH if is_high else TransportEvent.BACKLOG_LOW)
        return is_high

    def reading_ended(self, reason: str, now_s: float) -> None:
        self._reading_reason = reason
        self._reading_ended_at_s = now_s
        self._change(TransportEvent.READING_ENDED)

    def stop_reading(self) -> None:
        self._change(TransportEvent.STOP_READING)

    def close_when_sent(self) -> None:
        self._change(TransportEvent.CLOSE_WHEN_SENT)

    def close(self, reason: str) -> None:
        if self._close_reason is None:
            self._close_reason = reason
        self._change(TransportEvent.CLOSE)

    def end(self) -> int:
        self._change(TransportEvent.CLOSE)
        return self.backlog.clear()

    @property
    def end_reason(self) -> str:
        # After a peer has closed its sending side, our next send may fail. Then the end of reading is the better
        # reason.
        if self._close_reason == "broken" and self._reading_reason != "drained":
            return self._reading_reason
        return self._close_reason or self._reading_reason

    # Incoming bytes.

    def receive_opening(self, chunk: bytes, now_s: float) -> tuple[bytes, bytes]:
        """Processes the next bytes in the state OPENING; none if the peer's hello did not come. Returns the bytes to
        send at once, and the received bytes after the hello. Raises RemoteProtocolError."""
        reply = b""
        wire = self.wire
        if wire is None:
            # The peer has called us. Its first bytes show its framing, and may begin a frame already. The deadline of
            # that frame counts from here, so that it cannot stay unfinished.
            detector = self._detector
            reply = detector.feed(chunk)
            if detector.frame_begun and self.frame_deadline_s == math.inf:
                self.frame_deadline_s = now_s + self.limits.frame_s
            wire = detector.wire
            if wire is None:
                return reply, b""
            self._speak(wire)
            # The detector keeps all bytes that it gets, so a new one replaces it.
            chunk, self._detector = detector.received, FramingDetector()
        # The framing is known. If its hello stayed in the bytes, it would be read as the length of a frame.
        frames = strip_hello(chunk, wire)
        self._change(TransportEvent.OPENED)
        return reply, frames

    def _speak(self, wire: Wire) -> None:
        self.wire = wire
        self._reader = FrameReader(wire, self._origin(wire), self._prefix)
        self.writer = FrameWriter(wire)

    def renew_origin(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Gives later messages an origin with the peer's new identity. Returns the earlier `messages` with it, too."""
        assert self._reader is not None
        assert self.wire is not None
        origin = self._reader.origin = self._origin(self.wire)
        return [Message(each.onward_route, each.return_route, each.payload, origin) for each in messages]

    def receive_data(self, chunk: bytes, now_s: float) -> tuple[Sequence[Message], RemoteProtocolError | None]:
        """Processes the next bytes. Returns the complete messages, and the error of the frame after them or None."""
        assert self._reader is not None
        reader = self._reader
        failure: RemoteProtocolError | None = None
        try:
            messages: Sequence[Message] = reader.feed(chunk)
        except BadFrame as error:
            # A fresh error: the caught one has the messages, and the caller can keep the error.
            failure, messages = RemoteProtocolError(error.kind, str(error)), error.messages
        # A heartbeat counts as bytes only: it does not extend the time for answers (`linger_until_s`).
        self.received_bytes += len(chunk)
        if messages:
            self.received += len(messages)
            self._received_at_s = now_s
        # Each frame has its own deadline, so a new one is set when the next frame has begun: fewer bytes wait than the
        # unfinished frame and the chunk had together. A slow peer cannot renew the deadline of one frame.
        waiting_bytes = reader.waiting_bytes
        if not waiting_bytes:
            self.frame_deadline_s = math.inf
        elif waiting_bytes < self.partial_bytes + len(chunk) or self.frame_deadline_s == math.inf:
            self.frame_deadline_s = now_s + self.limits.frame_s
        self.partial_bytes = waiting_bytes
        return messages, failure

    def drop_partial(self) -> int:
        if self._reader is not None:
            self._reader.drop_partial()
        dropped_bytes, self.partial_bytes = self.partial_bytes, 0
        return dropped_bytes

    def excuse(self, waited_s: float) -> None:
        self.frame_deadline_s += waited_s

    def read_deadline_s(self, now_s: float) -> float:
        """Returns the time by which the next bytes must come; infinite if the peer may be silent without limit."""
        idle_s = self.limits.idle_s
        return self.frame_deadline_s if idle_s is None else min(self.frame_deadline_s, now_s + idle_s)

    def read_timeout(self, deadline_s: float) -> RemoteProtocolError:
        if deadline_s == self.frame_deadline_s:
            return RemoteProtocolError("slow_frame", f"a frame was not complete after {self.limits.frame_s} s")
        return RemoteProtocolError("idle", f"nothing came for {self.limits.idle_s} s")

    def linger_until_s(self) -> float:
        # A peer that has closed its sending side can still read answers, and messages before a bad frame are answered
        # too. If no message came shortly before the end, no answer is due.
        ended_s = self._reading_ended_at_s
        if self._received_at_s < ended_s - LINGER_S_MAX:
            return ended_s
        # Each sent answer extends the time, because more may follow. LINGER_S_MAX ends it.
        return min(max(ended_s, self.sent_at_s) + LINGER_QUIET_S, ended_s + LINGER_S_MAX)

    # Outgoing bytes.

    @property
    def is_full(self) -> bool:
        return bool(self.backlog.forwarded) or self.backlog.size_bytes > self.soft_bytes()

    @property
    def unread_bytes(self) -> int:
        """The unsent bytes for the peer; for a peer that has called us, with the forwarded messages that wait."""
        return self.backlog.size_bytes + (self.backlog.forwarded_bytes if self._has_called else 0)

    @property
    def is_slow_consumer(self) -> bool:
        return self.unread_bytes > BACKLOG_BYTES_HARD

    def take_forwarded(self) -> list[Message]:
        room_bytes = self.soft_bytes() - self.backlog.size_bytes
        return self.backlog.take_forwarded(room_bytes) if room_bytes >= 0 else []

    def encode(self, run: Sequence[Message], too_large: Callable[[FrameTooLarge], None]) -> list[bytes]:
        """Returns the pieces of the frames, as `FrameWriter.pieces` does."""
        assert self.writer is not None
        pieces = self.writer.pieces(run, too_large)
        self.sent += len(pieces) // 3
        return pieces

    # The memory of headers.

    @property
    def header_bytes(self) -> int:
        if self._reader is None or self.writer is None:
            return 0
        return self._reader.known_bytes + self.writer.known_bytes

    def forget_headers(self) -> None:
        for known in (self._reader, self.writer):
            if known is not None:
                known.forget()

    def was_idle(self) -> bool:
        before, self._activity = self._activity, self.received + self.sent
        return before == self._activity

    def check(self) -> None:
        self.backlog.check()
        # The framing decides reader and writer, so messages are never exchanged before it is known.
        assert self.wire is not None or self.state not in (TransportState.OPEN, TransportState.HELD_BACK)
        assert (self.wire is None) == (self._reader is None) == (self.writer is None)
        # An unfinished frame without a deadline would occupy memory as long as the peer likes.
        assert not self.partial_bytes or self.frame_deadline_s < math.inf
        assert self._close_reason is None or self.state is TransportState.CLOSED
        # A closed connection forwards nothing any more, and `end` counts what waits.
        assert not self.backlog.forwarded or self.backlog.size_bytes or self.state is TransportState.CLOSED
