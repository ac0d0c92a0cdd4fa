"""The machine of one connection: its states, its frames, the bytes that wait to be sent, and its deadlines.

It reads no sockets, starts no tasks and keeps no time: bytes and times are given to it. `connection.Connection` is the
worker that reads and sends for it.

    accepted, or called with the head framing          called with the legacy framing
                      |                                              |
                   OPENING ------------ hello -------------------> OPEN <---- backlog ----> HELD_BACK
                      |                                              |
                      +--------> PEER_CLOSED <-----------------------+
                                      |        NOT_READING: from any state before, when the node stops
                                      v              |
                                  DRAINING <---------+
                                      |
                                    CLOSED
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from ockam.address import Address
from ockam.errors import FrameTooLarge, RemoteProtocolError
from ockam.frames import BadFrame, FrameReader, FrameWriter
from ockam.handshake import FramingDetector, strip_hello
from ockam.message import Message, Origin
from ockam.wire import Wire

BACKLOG_BYTES_SOFT = 4 * 1024 * 1024
"""With more than this unsent, no more requests are read from the peer, and no more messages are forwarded to it."""
BACKLOG_BYTES_HARD = 64 * 1024 * 1024
"""With more than this unsent, the peer is closed as a slow consumer."""
SEND_BYTES = 1024 * 1024
"""Size of one send; the time limit of a slow consumer applies to each."""
LINGER_QUIET_S = 1.0
"""When a peer has closed its sending side, we keep ours open until we have sent nothing for this long. An answer that
still waits for its commit leaves within that time: a commit takes less."""
LINGER_S_MAX = 5.0
"""We keep our sending side open no longer than this, and not at all when the peer has sent no message for this long."""
HELLO_TIMEOUT_S = 5.0
"""A node that we called and that has not said hello after this time is given up, as the real clients do."""


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The time limits of a connection, which an operator sets. All are in seconds.

    hello_s: until the hello of a node that we called. frame_s: from a frame's first byte to its last. send_s: until the
    peer has taken 1 MiB. idle_s: without a byte from the peer; None keeps silent connections for ever.
    """

    hello_s: float = HELLO_TIMEOUT_S
    frame_s: float = 30.0
    send_s: float = 30.0
    idle_s: float | None = None


class ConnectionStatistics(msgspec.Struct, frozen=True):
    """Messages and bytes of one connection since it began, and the bytes that wait to be sent now."""

    peer: str
    framing: str
    received: int
    received_bytes: int
    sent: int
    sent_bytes: int
    backlog_bytes: int


class State(enum.Enum):
    """What a connection does at the moment."""

    OPENING = "opening"
    """The framing of the peer is not known yet, or its hello has not come yet."""
    OPEN = "open"
    """Messages go both ways."""
    HELD_BACK = "held back"
    """The peer takes its answers too slowly: nothing is read from it until it has taken some."""
    PEER_CLOSED = "peer closed"
    """Nothing more comes: the peer has closed its sending side, or has sent a bad frame. Answers still go out."""
    NOT_READING = "not reading"
    """The node is stopping and takes no more requests. Answers still go out."""
    DRAINING = "draining"
    """The connection ends when everything that waits has been sent."""
    CLOSED = "closed"
    """Nothing is read or sent any more."""


class Event(enum.Enum):
    """What can happen to a connection."""

    OPENED = "the peer's framing is known, and its hello has come"
    BACKLOG_HIGH = "more than the soft bound waits to be sent"
    BACKLOG_LOW = "no more than the soft bound waits to be sent"
    READING_ENDED = "the peer closed its sending side, broke the connection or the protocol, or was too slow"
    STOP_READING = "the node stops"
    CLOSE_WHEN_SENT = "the connection is to end once everything is sent"
    CLOSE = "the connection is to end now, or has ended"


# The node may stop, drain or close a connection in any state.
_ORDERS = {
    Event.STOP_READING: State.NOT_READING,
    Event.CLOSE_WHEN_SENT: State.DRAINING,
    Event.CLOSE: State.CLOSED,
}
TRANSITIONS: dict[State, dict[Event, State]] = {
    State.OPENING: {Event.OPENED: State.OPEN, Event.READING_ENDED: State.PEER_CLOSED} | _ORDERS,
    State.OPEN: {Event.BACKLOG_HIGH: State.HELD_BACK, Event.READING_ENDED: State.PEER_CLOSED} | _ORDERS,
    State.HELD_BACK: {Event.BACKLOG_LOW: State.OPEN} | _ORDERS,
    State.PEER_CLOSED: _ORDERS,
    # A read that was under way may still end after the order to stop: what it brings changes the state no more.
    State.NOT_READING: dict.fromkeys(Event, State.NOT_READING)
    | {Event.CLOSE_WHEN_SENT: State.DRAINING, Event.CLOSE: State.CLOSED},
    State.DRAINING: dict.fromkeys(Event, State.DRAINING) | {Event.CLOSE: State.CLOSED},
    State.CLOSED: dict.fromkeys(Event, State.CLOSED),
}
"""The next state for each event. An event that is missing in a row cannot happen in that state."""


class Backlog:
    """The bytes that wait to be sent to one peer, and behind them the messages that other peers want forwarded to it.

    Forwarded messages are encoded only when there is room, so that a slow peer holds up the peers that feed it, and not
    our memory.
    Invariant: `size_bytes` is the size of all `chunks` and of the `sending_bytes`, which were taken and not sent yet.
    """

    __slots__ = ("chunks", "forwarded", "sending_bytes", "size_bytes")

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.forwarded: deque[Message] = deque()
        self.size_bytes = self.sending_bytes = 0

    def add(self, data: bytes) -> None:
        self.chunks.append(data)
        self.size_bytes += len(data)

    def take(self) -> bytes:
        """All bytes that wait. They count until `note_sent` was called for each of them."""
        data = b"".join(self.chunks)
        self.chunks.clear()
        self.sending_bytes += len(data)
        return data

    def note_sent(self, sent_bytes: int) -> None:
        """The peer has taken this many of the bytes that `take` gave."""
        self.sending_bytes -= sent_bytes
        self.size_bytes -= sent_bytes

    def take_forwarded(self, room_bytes: int) -> list[Message]:
        """The forwarded messages that fit into so much room, and one more, oldest first."""
        run: list[Message] = []
        while self.forwarded and room_bytes >= 0:
            run.append(self.forwarded.popleft())
            room_bytes -= len(run[-1].payload)
        return run

    def clear(self) -> int:
        """Drop everything; returns the number of forwarded messages that were dropped."""
        dropped = len(self.forwarded)
        self.chunks.clear()
        self.forwarded.clear()
        self.size_bytes = self.sending_bytes = 0
        return dropped

    def check(self) -> None:
        """Raise AssertionError where the invariant does not hold."""
        assert self.size_bytes == sum(map(len, self.chunks)) + self.sending_bytes
        assert self.sending_bytes >= 0


class ConnectionMachine:
    """The state of one connection, its frames both ways, and its deadlines.

    wire: the framing, None while the first bytes of the peer have not told it yet.
    frame_deadline_s: when the frame that has begun must have ended; infinite between frames.
    partial_bytes: the size of the part of a frame that has come.
    Invariant: in OPEN and HELD_BACK the framing is known; a part of a frame has a deadline; there is a reason for the
    end only in CLOSED; and forwarded messages wait only behind bytes that wait.
    """

    def __init__(
        self,
        wire: Wire | None,
        address: Address,
        limits: ConnectionLimits,
        share_bytes: Callable[[int], int],
        origin: Callable[[Wire], Origin],
    ) -> None:
        """wire: the framing to speak with a node that we called, None for a peer that called us. address: the
        connection's own, which goes in front of return routes. share_bytes: lowers a bound on the backlog to what the
        memory of all peers allows (`ockam.memory.PeerMemory.share_bytes`). origin: makes the origin of messages."""
        self.limits = limits
        self._share_bytes = share_bytes
        self.backlog = Backlog()
        self._address = address
        self._origin = origin
        self._detector = FramingDetector()
        self._reader: FrameReader | None = None
        self.writer: FrameWriter | None = None
        self.wire: Wire | None = None
        self.state = State.OPENING
        self.received = self.received_bytes = self.sent = self.sent_bytes = 0
        self.partial_bytes = 0
        self.frame_deadline_s = math.inf
        self.sent_at_s = self._received_at_s = self._reading_ended_at_s = -math.inf
        self._close_reason: str | None = None
        self._reading_reason = "drained"
        self._activity = -1
        if wire is not None:
            self._speak(wire)
            if wire.hello:
                self.backlog.add(wire.hello)
            else:
                self._change(Event.OPENED)

    # The state.

    def _change(self, event: Event) -> None:
        state = TRANSITIONS[self.state].get(event)
        assert state is not None, f"{event} in {self.state}"
        self.state = state

    def soft_bytes(self) -> int:
        """The soft bound of the backlog, which is lower while all peers together make the node hold much."""
        return self._share_bytes(BACKLOG_BYTES_SOFT)

    def must_hold_back(self) -> bool:
        """Whether the peer must take answers before more is read from it."""
        is_high = self.backlog.size_bytes > self.soft_bytes()
        if is_high is not (self.state is State.HELD_BACK):
            self._change(Event.BACKLOG_HIGH if is_high else Event.BACKLOG_LOW)
        return is_high

    def reading_ended(self, reason: str, now_s: float) -> None:
        """Nothing more comes from the peer. reason: a short stable word for counters."""
        self._reading_reason = reason
        self._reading_ended_at_s = now_s
        self._change(Event.READING_ENDED)

    def stop_reading(self) -> None:
        self._change(Event.STOP_READING)

    def close_when_sent(self) -> None:
        self._change(Event.CLOSE_WHEN_SENT)

    def close(self, reason: str) -> None:
        """End the connection now, for this reason. Safe to repeat: the first reason counts."""
        if self._close_reason is None:
            self._close_reason = reason
        self._change(Event.CLOSE)

    def end(self) -> int:
        """The connection has ended; returns the number of forwarded messages that were not sent."""
        self._change(Event.CLOSE)
        return self.backlog.clear()

    @property
    def end_reason(self) -> str:
        """Why the connection ended: a short stable word for counters."""
        # A peer that has ended its sending side may be gone when we send: the first of the two tells more.
        if self._close_reason == "broken" and self._reading_reason != "drained":
            return self._reading_reason
        return self._close_reason or self._reading_reason

    # Bytes that come in.

    def receive_opening(self, chunk: bytes, now_s: float) -> tuple[bytes, bytes]:
        """Take the next bytes in OPENING; b"" says that the peer's hello did not come.

        Returns the bytes to send at once, and the bytes behind the peer's hello. Raises RemoteProtocolError.
        """
        reply = b""
        wire = self.wire
        if wire is None:
            detector = self._detector
            reply = detector.feed(chunk)
            if detector.frame_begun and self.frame_deadline_s == math.inf:
                self.frame_deadline_s = now_s + self.limits.frame_s
            wire = detector.wire
            if wire is None:
                return reply, b""
            self._speak(wire)
            chunk = detector.received
        frames = strip_hello(chunk, wire)
        self._change(Event.OPENED)
        return reply, frames

    def _speak(self, wire: Wire) -> None:
        self.wire = wire
        self._reader = FrameReader(wire, self._origin(wire), (self._address,))
        self.writer = FrameWriter(wire)

    def receive_data(self, chunk: bytes, now_s: float) -> tuple[Sequence[Message], BadFrame | None]:
        """The messages that are complete with these bytes, and the error of a bad frame behind them."""
        assert self._reader is not None
        reader = self._reader
        failure: BadFrame | None = None
        try:
            messages: Sequence[Message] = reader.feed(chunk)
        except BadFrame as error:
            failure, messages = error, error.messages
        self.received_bytes += len(chunk)
        if messages:
            self.received += len(messages)
            self._received_at_s = now_s
        # The deadline belongs to one frame: it begins anew when that frame has ended and the next one has begun.
        waiting_bytes = reader.waiting_bytes
        if not waiting_bytes:
            self.frame_deadline_s = math.inf
        elif waiting_bytes < self.partial_bytes + len(chunk) or self.frame_deadline_s == math.inf:
            self.frame_deadline_s = now_s + self.limits.frame_s
        self.partial_bytes = waiting_bytes
        return messages, failure

    def drop_partial(self) -> int:
        """Drop the part of a frame whose rest will not come; returns its size."""
        dropped_bytes, self.partial_bytes = self.partial_bytes, 0
        return dropped_bytes

    def excuse(self, waited_s: float) -> None:
        """Give the frame that has begun more time: it was this node that did not read on for so long."""
        self.frame_deadline_s += waited_s

    def read_deadline_s(self, now_s: float) -> float:
        """When the next bytes must have come; infinite where the peer may be silent."""
        idle_s = self.limits.idle_s
        return self.frame_deadline_s if idle_s is None else min(self.frame_deadline_s, now_s + idle_s)

    def read_timeout(self, deadline_s: float) -> RemoteProtocolError:
        """The error to raise when nothing has come by this deadline."""
        if deadline_s == self.frame_deadline_s:
            return RemoteProtocolError("slow_frame", f"a frame was not complete after {self.limits.frame_s} s")
        return RemoteProtocolError("idle", f"nothing came for {self.limits.idle_s} s")

    def linger_until_s(self) -> float:
        """How long the sending side stays open after the peer has closed its own.

        A peer may close its sending side and still read, and the good messages before a bad frame are answered like any
        others. So answers get time while some still go out, within bounds.
        """
        ended_s = self._reading_ended_at_s
        if self._received_at_s < ended_s - LINGER_S_MAX:
            return ended_s
        return min(max(ended_s, self.sent_at_s) + LINGER_QUIET_S, ended_s + LINGER_S_MAX)

    # Bytes that go out.

    @property
    def is_full(self) -> bool:
        """Whether the peers that want messages forwarded to this one must wait."""
        return bool(self.backlog.forwarded) or self.backlog.size_bytes > self.soft_bytes()

    @property
    def is_slow_consumer(self) -> bool:
        return self.backlog.size_bytes > BACKLOG_BYTES_HARD

    def take_forwarded(self) -> list[Message]:
        """The forwarded messages that may be sent now."""
        room_bytes = self.soft_bytes() - self.backlog.size_bytes
        return self.backlog.take_forwarded(room_bytes) if room_bytes >= 0 else []

    def encode(self, run: Sequence[Message], too_large: Callable[[FrameTooLarge], None]) -> bytes:
        """The frames of these messages. See `FrameWriter.encode`."""
        assert self.writer is not None
        count, data = self.writer.encode(run, too_large)
        self.sent += count
        return data

    # The memory of headers.

    @property
    def header_bytes(self) -> int:
        """The estimated memory of the headers that are remembered for both directions."""
        if self._reader is None or self.writer is None:
            return 0
        return self._reader.known_bytes + self.writer.known_bytes

    def forget_headers(self) -> None:
        """Free that memory; the next messages teach the headers again."""
        for known in (self._reader, self.writer):
            if known is not None:
                known.forget()

    def was_idle(self) -> bool:
        """Whether no message has come or gone since this was asked last."""
        before, self._activity = self._activity, self.received + self.sent
        return before == self._activity

    def check(self) -> None:
        """Raise AssertionError where an invariant does not hold. Tests call it after every step."""
        self.backlog.check()
        assert self.wire is not None or self.state not in (State.OPEN, State.HELD_BACK)
        assert (self.wire is None) == (self._reader is None) == (self.writer is None)
        assert not self.partial_bytes or self.frame_deadline_s < math.inf
        assert self._close_reason is None or self.state is State.CLOSED
        assert not self.backlog.forwarded or self.backlog.size_bytes
