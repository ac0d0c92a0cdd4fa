"""One connection's bytes: frames out, messages in. It knows of no streams and outlives every single connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ockam.address import Address, Route
from ockam.errors import FrameTooLarge, RemoteProtocolError
from ockam.frames import FrameHeads, FrameReader
from ockam.message import HERE, Message
from ockam.wire import Wire
from ockam.wire_head import HEAD
from stream_client.errors import ClientError, RequestRefused
from stream_client.shell.contact import describe, opens_as_node


class ClientConnection:
    """What goes out and comes in over the connection of the moment. wire: its framing; None while there is none.

    on_outgoing: called when there is something to be sent after there was nothing. closed: why no more is sent.
    received_bytes: of what nodes sent; what is no node's is not counted.
    Invariant: `outgoing_bytes` is the size of what `_outgoing` holds, and 0 without a connection.
    """

    __slots__ = (
        "_heads",
        "_hello",
        "_opened",
        "_outgoing",
        "_reader",
        "closed",
        "on_outgoing",
        "outgoing_bytes",
        "received_bytes",
        "sent_bytes",
        "wire",
    )

    def __init__(self) -> None:
        self.wire: Wire | None = None
        self._reader = FrameReader(HEAD, HERE)
        self._heads = FrameHeads(HEAD)
        self._hello = b""
        self._opened = False
        self._outgoing: list[bytes] = []
        self.outgoing_bytes = 0
        self.on_outgoing: Callable[[], None] = lambda: None
        self.sent_bytes = self.received_bytes = 0
        self.closed: ClientError | None = None

    def connected(self, wire: Wire, *, greeted: bool = False) -> None:
        """A new connection: what waited to be sent is gone, and the hello comes first. greeted: it has been sent."""
        self.disconnected()
        self.wire, self._reader, self._heads, self._hello = wire, FrameReader(wire, HERE), FrameHeads(wire), wire.hello
        self._opened = False
        if wire.hello and not greeted:
            self._put(wire.hello)

    def disconnected(self) -> None:
        self.wire = None
        self._outgoing, self.outgoing_bytes = [], 0

    def check_open(self) -> None:
        """Raises what ended the use of this client, once something has."""
        if self.closed is not None:
            raise self.closed

    def header(self, route: Route, return_address: Address) -> bytes:
        """The routes of a frame along this connection, encoded; empty where there is none."""
        return b"" if self.wire is None else self.wire.encode_routes(route, (return_address,))

    def put_frame(self, header: bytes, payload: bytes) -> RequestRefused | None:
        """Put a frame into what goes out, or say why it cannot be sent. header: as `header` gave it, not empty."""
        assert self.wire is not None, "a frame without a connection"
        pieces = self._heads.around(header).get(len(payload))
        if pieces is None:
            try:
                pieces = self._heads.make(header, len(payload))
            except FrameTooLarge as error:
                return RequestRefused(f"too large to send over the {self.wire.name} framing: {error}")
        self._put(pieces[0] + payload + pieces[1])
        return None

    def data_to_send(self) -> bytes:
        """All that waits to be sent; it is the caller's from now on."""
        data = b"".join(self._outgoing)
        self._outgoing, self.outgoing_bytes = [], 0
        self.sent_bytes += len(data)
        return data

    def put_back(self, data: bytes) -> None:
        """What `data_to_send` gave and could not be sent: it goes before everything else."""
        self.sent_bytes -= len(data)
        self._outgoing.insert(0, data)
        if not self.outgoing_bytes:
            self.on_outgoing()
        self.outgoing_bytes += len(data)

    def messages(self, data: bytes) -> Sequence[Message]:
        """The messages that are complete with these bytes. Raises RemoteProtocolError, which has those before it."""
        assert self.wire is not None, "bytes came without a connection"
        if data and not self._opened:
            if not opens_as_node(data, self.wire):
                raise RemoteProtocolError("header", describe(data))
            data, self._opened = data[len(self._hello) :], True
            self.received_bytes += len(self._hello)
        self.received_bytes += len(data)
        return self._reader.feed(data)

    def _put(self, data: bytes) -> None:
        self._outgoing.append(data)
        if not self.outgoing_bytes:
            self.on_outgoing()
        self.outgoing_bytes += len(data)
