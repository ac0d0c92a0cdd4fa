"""ClientConnection: turns frames into the bytes to send, and received bytes into messages. It does no I/O.
`find_sign`: recognizes the kind of another server by the first bytes that it sends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import ClassVar

from mypy_extensions import mypyc_attr

from ockam.actors.address import Address, Route
from ockam.actors.message import HERE, Message
from ockam.errors import FrameTooLarge, RemoteProtocolError
from ockam.transport.frames import FrameHeads, FrameReader
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD
from stream_client.core.pushes import PendingResult
from stream_client.core.states_machine import ConnectionState, CoreEvent, after
from stream_client.errors import SPEAKS_TLS, ClientError, ConnectionLost, RequestRefused
from stream_service.extensions import BATCH_MESSAGES_MAX
from stream_service.limits import DELIVERY_BYTES
from stream_service.push_codec import encode_batch, encode_push

GATHERED_BYTES_MAX = 1024 * 1024
"""With more bytes to send than this, no further pushes are gathered."""
GATHERED_BATCHES_MIN = 64
"""Fewer open batches than this are sent without gathering."""
BATCH_BYTES_MIN = 1024
"""Open batches of at least this average size are sent without gathering. A batch costs client and node as much as some
ten pushes in it, so many batches of one push each would cost far more than the pushes."""

BATCHED_DATA_BYTES_MAX = 4 * 1024
"""The size of the largest message that goes into a batch, in bytes. Larger messages gain nothing from a batch."""
BATCHED_SIZE_BYTES = 2
BATCH_BYTES_MAX = 48 * 1024
"""A batch of this size takes no further message, so that it fits into a frame of either framing."""

SHOWN_BYTES = 16
"""The number of unknown first bytes that an error shows. No pattern in SIGNS matches more bytes."""

SIGNS: tuple[tuple[bytes, str], ...] = (
    (rb"HTTP/\d", "it answered HTTP"),
    (rb"-[A-Z]+ |\+PONG", "it answered as Redis does"),
    (rb"SSH-", "it is an SSH server"),
    (rb"[\x14-\x17]\x03[\x00-\x04]", SPEAKS_TLS),
    (rb"\x00\x00[\x00-\xff]\x04\x00", "it speaks HTTP/2, as gRPC servers do"),
    (rb"INFO \{", "it is a NATS server"),
    (rb"AMQP", "it speaks AMQP"),
    (rb"[\x00-\xff]{3}\x00\x0a\d", "it is a MySQL server"),
    (rb"220[ -]", "it is a mail or FTP server"),
    (rb"\+OK|\* OK", "it is a mail server"),
)
"""The kinds of servers other than nodes: a pattern for the first bytes that each sends, and the text for an error."""

UP = ConnectionState.UP
"""`ConnectionState.UP`, the state in which nearly all bytes arrive. A global name is read faster than a member."""


def describe(first: bytes) -> str:
    found = find_sign(first)
    if found is not None:
        return found
    return f"what it sends, {first[:SHOWN_BYTES]!r}, is not what a node sends"


def find_sign(first: bytes) -> str | None:
    return next((name for sign, name in SIGNS if re.match(sign, first)), None)


def opens_as_node(first: bytes, wire: Wire) -> bool:
    """Whether a node that uses the framing `wire` can send these first bytes (at least one)."""
    if wire.hello:
        return first.startswith(wire.hello)
    # A legacy frame is a u16 length and a version, which is 1 or 2; one without content has no version.
    return len(first) < 3 or first[:2] == b"\0\0" or first[2] in (1, 2)


class OpenBatch:
    """Pushes of one queue that are sent in one frame. A batch is open from its first push until the shell takes the
    bytes to send, so no push waits for others.

    header: the encoded routes of the frame.
    request_id: the request id of the first push. The others have the next numbers.
    size_bytes: the size of the messages and of their length fields.
    """

    __slots__ = ("header", "is_open", "messages", "request_id", "size_bytes")

    def __init__(self, header: bytes, request_id: int) -> None:
        self.header = header
        self.request_id = request_id
        self.messages: list[bytes] = []
        self.size_bytes = 0
        self.is_open = True

    def takes(self, request_id: int) -> bool:
        return (
            self.is_open
            and self.size_bytes < BATCH_BYTES_MAX
            and len(self.messages) < BATCH_MESSAGES_MAX
            and request_id == self.request_id + len(self.messages)
        )


@mypyc_attr(allow_interpreted_subclasses=True)
class ClientConnection:
    """The bytes to send over the current connection, and the bytes received from it. One object serves all connections.

    framing: the framing of the connection; None without a connection.
    wire: `framing` while requests can be sent (with a secure channel, only while the channel is open), else None.
    closed: the error that ended the client; None while the client has not ended.
    trouble: why the last attempt to connect failed; None if it succeeded.
    on_outgoing: called when there are bytes to send and there were none before.
    on_channel: called with None when a secure channel has opened, and with the reason when it is lost.
    outgoing_bytes, sent_bytes: the bytes to send, and the bytes given to the socket so far.
    received_bytes: the bytes received from nodes, not counting bytes of other kinds of servers.

    Invariant: `outgoing_bytes` is the size of everything that waits to be sent, and 0 without a connection. `framing`
    is set exactly in the states SILENT and UP, and `closed` exactly in the state CLOSED. `wire` is `framing` or None.
    """

    is_encrypted: ClassVar[bool] = False

    __slots__ = (
        "_attempted",
        "_batches",
        "_heads",
        "_hello",
        "_outgoing",
        "_reader",
        "_taken",
        "closed",
        "framing",
        "on_channel",
        "on_outgoing",
        "outgoing_bytes",
        "received_bytes",
        "sent_bytes",
        "state",
        "trouble",
        "wire",
    )

    def __init__(self) -> None:
        self.state = ConnectionState.DOWN
        self.wire: Wire | None = None
        self.framing: Wire | None = None
        self.closed: ClientError | None = None
        self.trouble: ClientError | None = None
        self._attempted: PendingResult | None = None
        self._reader = FrameReader(HEAD, HERE)
        self._heads = FrameHeads(HEAD)
        self._hello = b""
        self._outgoing: list[bytes] = []
        self._batches: list[OpenBatch] = []
        self._taken: PendingResult | None = None
        self.outgoing_bytes = 0
        self.on_outgoing: Callable[[], None] = lambda: None
        self.on_channel: Callable[[ClientError | None], None] = lambda error: None
        self.sent_bytes = self.received_bytes = 0

    def check(self) -> None:
        assert self.outgoing_bytes == self._counted_bytes()
        assert (self.framing is not None) == (self.state in (ConnectionState.SILENT, ConnectionState.UP))
        assert self.wire in (None, self.framing)
        assert self.is_encrypted or self.wire is self.framing
        assert (self.closed is not None) == (self.state is ConnectionState.CLOSED)
        assert self.framing is not None or not self._outgoing

    def connected(self, wire: Wire, *, greeted: bool = False) -> None:
        """Begins to use a new connection. `greeted`: whether the hello, the byte before the first frame, was sent."""
        self._forget()
        self.state = after(self.state, CoreEvent.CONNECTED)
        # The shell may have connected just before the client ended.
        if self.state is ConnectionState.CLOSED:
            return
        # Reader and writer begin anew: the old connection may have ended inside a frame, and both remember headers.
        self.wire = self.framing = wire
        self._hello = wire.hello
        self._reader, self._heads = FrameReader(wire, HERE), FrameHeads(wire)
        if wire.hello and not greeted:
            self._put(wire.hello)
        self.trouble = None

    def unreachable(self, error: ClientError) -> None:
        self.trouble = error
        self.finish_attempt()

    def attempted(self) -> PendingResult:
        """Returns a result that is done after the next attempt to connect, when a lost route works again, or when the
        client ends."""
        if self._attempted is None:
            self._attempted = PendingResult()
        return self._attempted

    def disconnected(self) -> None:
        """Drops the unsent bytes of the connection that has ended. The core sends unanswered requests again later."""
        self._forget()
        self.state = after(self.state, CoreEvent.DISCONNECTED)

    def close(self, error: ClientError) -> None:
        """Ends the client: nothing more is sent over any connection, and every later request raises `error`."""
        self._forget()
        self.state = after(self.state, CoreEvent.CLOSED)
        self.closed = error
        self.finish_attempt()

    def check_open(self) -> None:
        if self.closed is not None:
            # Each `raise` of one error object lengthens its traceback, which retains the frames of all callers.
            raise self.closed.with_traceback(None)

    def header(self, route: Route, return_address: Address) -> bytes:
        """Returns the encoded routes of a frame, in the framing of this connection; empty without a connection."""
        return b"" if self.wire is None else self.wire.encode_routes(route, (return_address,))

    def put_frame(self, header: bytes, payload: bytes) -> RequestRefused | None:
        """Appends a frame to the bytes to send. Returns an error if the frame is too large for the framing."""
        # The node must get the pushes in open batches first: a pull sees every push that was sent before it.
        if self._batches:
            self._close_batches()
        return self._put_frame(header, payload)

    def begin_batch(self, header: bytes, request_id: int) -> OpenBatch:
        """Begins a batch, which is encoded when the shell takes the bytes to send, or when another frame follows."""
        batch = OpenBatch(header, request_id)
        self._batches.append(batch)
        return batch

    def add_to_batch(self, batch: OpenBatch, data: bytes) -> None:
        size_bytes = len(data) + BATCHED_SIZE_BYTES
        batch.messages.append(data)
        batch.size_bytes += size_bytes
        # The shell waits for the first bytes only. Later ones are in the same `data_to_send`.
        if not self.outgoing_bytes:
            self.on_outgoing()
        self.outgoing_bytes += size_bytes

    @property
    def gathers(self) -> bool:
        """Whether the open batches are so many and so small that further pushes should join them before they are sent.
        Pushes to one stream fill its batch soon; pushes to a thousand streams in turn make batches of one push."""
        batches = len(self._batches)
        return (
            batches >= GATHERED_BATCHES_MIN
            and self.outgoing_bytes < BATCH_BYTES_MIN * batches
            and self.outgoing_bytes < GATHERED_BYTES_MAX
        )

    def _close_batches(self) -> None:
        """Encodes the open batches. A batch of one push is encoded as a plain push."""
        batches, self._batches = self._batches, []
        for batch in batches:
            batch.is_open = False
            messages = batch.messages
            if len(messages) > 1:
                payload = encode_batch(batch.request_id, messages)
            else:
                payload = encode_push(batch.request_id, messages[0])
            refused = self._put_frame(batch.header, payload)
            assert refused is None, "a batch fits into every frame"
            # The estimate of the open batch is replaced by the bytes of the frame, which `_put_frame` has counted.
            self.outgoing_bytes -= batch.size_bytes

    def _drop_batches(self) -> None:
        """Forgets the pushes in open batches, which the core sends again over the next connection."""
        batches, self._batches = self._batches, []
        for batch in batches:
            batch.is_open = False

    def _put_frame(self, header: bytes, payload: bytes) -> RequestRefused | None:
        assert self.wire is not None, "a frame without a connection"
        # Frames with the same route and payload size differ only in the payload, so the bytes around it are remembered.
        pieces = self._heads.around(header).get(len(payload))
        if pieces is None:
            # A node refuses a push that no consumer with this framing could get.
            if len(payload) > self.wire.send_bytes_max - DELIVERY_BYTES:
                return RequestRefused(
                    f"too large to send over the {self.wire.name} framing: {len(payload)} bytes, at most "
                    f"{self.wire.send_bytes_max - DELIVERY_BYTES}"
                )
            try:
                pieces = self._heads.make(header, len(payload))
            except FrameTooLarge as error:
                return RequestRefused(f"too large to send over the {self.wire.name} framing: {error}")
        self._put(pieces[0] + payload + pieces[1])
        return None

    def data_to_send(self) -> bytes:
        """Removes and returns all bytes to send. The caller sends them, and passes unsent ones to `put_back`."""
        if self._batches:
            self._close_batches()
        data = b"".join(self._outgoing)
        self._outgoing, self.outgoing_bytes = [], 0
        self.sent_bytes += len(data)
        # A sender that waits for this may append more at once, which belongs to the next `data_to_send`.
        if self._taken is not None:
            self.finish_taken()
        return data

    def put_back(self, data: bytes) -> None:
        """Takes back the part of `data_to_send` that the socket did not accept. It is sent before all other bytes."""
        self.sent_bytes -= len(data)
        self._outgoing.insert(0, data)
        if not self.outgoing_bytes:
            self.on_outgoing()
        self.outgoing_bytes += len(data)

    def taken(self) -> PendingResult:
        """Returns a result that is done when the shell has taken all present bytes with `data_to_send`, or the
        connection has ended. A sender of much data waits for it, so that only a portion is in memory."""
        if self._taken is None:
            self._taken = PendingResult()
        return self._taken

    def messages(self, data: bytes) -> Sequence[Message]:
        """Processes received bytes, and returns the messages that are now complete. After the client's end, returns
        none. Raises RemoteProtocolError for bytes that no node sends; a BadFrame has the messages before the fault."""
        if self.framing is None:
            assert self.closed is not None, "bytes came without a connection"
            return ()
        if self.state is not UP and data:
            # A server of another protocol is recognized by its first bytes, before they are read as a frame.
            if not opens_as_node(data, self.framing):
                raise RemoteProtocolError("header", describe(data))
            self.state = after(self.state, CoreEvent.RECEIVED)
            data = data[len(self._hello) :]
            self.received_bytes += len(self._hello)
        self.received_bytes += len(data)
        return self._reader.feed(data)

    # A connection without a secure channel has nothing to do in these methods.

    @property
    def has_worked(self) -> bool:
        """Whether a message has ever come through a secure channel of this client."""
        return True

    def settle(self) -> None:
        """Ends a secure channel that the other side has closed (`ChannelConnection.settle`)."""

    def check_channel(self) -> ClientError | None:
        """Does what `ChannelConnection.check_channel` does, for a client with a secure channel."""
        return None

    def renew(self, error: ClientError) -> None:
        """Replaces a secure channel through which nothing comes any more, because of `error`."""

    def silence(self) -> ClientError:
        """Returns the error for a listener of secure channels that does not answer."""
        return ConnectionLost("there is no connection to the node")

    def _counted_bytes(self) -> int:
        return sum(map(len, self._outgoing)) + sum(batch.size_bytes for batch in self._batches)

    def _put(self, data: bytes) -> None:
        self._outgoing.append(data)
        if not self.outgoing_bytes:
            self.on_outgoing()
        self.outgoing_bytes += len(data)

    def _forget(self) -> None:
        self.wire = self.framing = None
        self._drop_batches()
        self._outgoing, self.outgoing_bytes = [], 0

    def finish_attempt(self) -> None:
        """Finishes the result of `attempted`, if there is one. After a new connection, it is called when all parts of
        the client use the connection."""
        attempted, self._attempted = self._attempted, None
        if attempted is not None:
            attempted.finish()

    def finish_taken(self) -> None:
        """Finishes the result of `taken`, if there is one. After the end of a connection, it is called when all parts
        of the client have learned of the end: the waiting senders send their next portion at once."""
        # The callbacks may call `taken` again.
        taken, self._taken = self._taken, None
        if taken is not None:
            taken.finish()
