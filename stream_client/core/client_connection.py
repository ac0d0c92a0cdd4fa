"""The bytes of one connection at a time: frames out, messages in. It knows of no streams and reads no sockets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ockam.address import Address, Route
from ockam.errors import FrameTooLarge, RemoteProtocolError
from ockam.frames import FrameHeads, FrameReader
from ockam.message import HERE, Message
from ockam.wire import Wire
from ockam.wire_head import HEAD
from stream_client.core.first_bytes import describe, opens_as_node
from stream_client.core.requests import Waiting
from stream_client.core.states_machine import ConnectionState, Event, after
from stream_client.errors import ClientError, RequestRefused

UP = ConnectionState.UP
"""The state in which nearly all bytes come; a global name costs less than a member of an enumeration."""


class ClientConnection:
    """The frames to send and the bytes received over the connection of the moment. It outlives every connection.

    state: see `ConnectionState`. wire: the framing spoken; None without a connection. closed: why the client ended.
    trouble: why the last attempt to connect failed; None after one that did not. on_outgoing: called when there is
    something to send after there was nothing. received_bytes: of nodes; the bytes of other servers are not counted.
    Invariant: `outgoing_bytes` is the size of `_outgoing`, and 0 without a connection; `wire` is set exactly in the
    states SILENT and UP, and `closed` exactly in CLOSED.
    """

    __slots__ = (
        "_attempted",
        "_heads",
        "_hello",
        "_outgoing",
        "_reader",
        "_taken",
        "closed",
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
        self.closed: ClientError | None = None
        self.trouble: ClientError | None = None
        self._attempted: Waiting | None = None
        self._reader = FrameReader(HEAD, HERE)
        self._heads = FrameHeads(HEAD)
        self._hello = b""
        self._outgoing: list[bytes] = []
        self._taken: Waiting | None = None
        self.outgoing_bytes = 0
        self.on_outgoing: Callable[[], None] = lambda: None
        self.sent_bytes = self.received_bytes = 0

    def check(self) -> None:
        """Raises AssertionError where the invariant does not hold."""
        assert self.outgoing_bytes == sum(map(len, self._outgoing))
        assert (self.wire is not None) == (self.state in (ConnectionState.SILENT, ConnectionState.UP))
        assert (self.closed is not None) == (self.state is ConnectionState.CLOSED)
        assert self.wire is not None or not self._outgoing

    def connected(self, wire: Wire, *, greeted: bool = False) -> None:
        """Use a new connection. greeted: whether the hello of the framing has been sent already."""
        self._forget()
        self.state = after(self.state, Event.CONNECTED)
        if self.state is ConnectionState.CLOSED:
            return
        # Reader and writer begin anew: the old connection may have ended inside a frame, and headers are remembered.
        self.wire, self._hello = wire, wire.hello
        self._reader, self._heads = FrameReader(wire, HERE), FrameHeads(wire)
        if wire.hello and not greeted:
            self._put(wire.hello)
        self.trouble = None

    def unreachable(self, error: ClientError) -> None:
        """Note that an attempt to connect has failed."""
        self.trouble = error
        self.finish_attempt()

    def attempted(self) -> Waiting:
        """Done when the next attempt to connect has succeeded or failed, or the client has ended."""
        if self._attempted is None:
            self._attempted = Waiting()
        return self._attempted

    def disconnected(self) -> None:
        """Drop what the ended connection has not sent; the core sends again what must arrive."""
        self._forget()
        self.state = after(self.state, Event.DISCONNECTED)

    def close(self, error: ClientError) -> None:
        """Send nothing more, over no connection. error: raised by everything that is asked for later."""
        self._forget()
        self.state = after(self.state, Event.CLOSED)
        self.closed = error
        self.finish_attempt()

    def check_open(self) -> None:
        """Raises the error that ended the client, once one has."""
        if self.closed is not None:
            raise self.closed

    def header(self, route: Route, return_address: Address) -> bytes:
        """The routes of a frame, encoded for this connection; empty without a connection."""
        return b"" if self.wire is None else self.wire.encode_routes(route, (return_address,))

    def put_frame(self, header: bytes, payload: bytes) -> RequestRefused | None:
        """Append a frame to the bytes to send; returns the reason where the framing cannot carry it.

        header: as `header` returned it, not empty.
        """
        assert self.wire is not None, "a frame without a connection"
        # Frames of one route and one payload size differ in the payload only: the bytes around it are remembered.
        pieces = self._heads.around(header).get(len(payload))
        if pieces is None:
            try:
                pieces = self._heads.make(header, len(payload))
            except FrameTooLarge as error:
                return RequestRefused(f"too large to send over the {self.wire.name} framing: {error}")
        self._put(pieces[0] + payload + pieces[1])
        return None

    def data_to_send(self) -> bytes:
        """All bytes that wait to be sent; the caller sends them, or gives the rest back with `put_back`."""
        data = b"".join(self._outgoing)
        self._outgoing, self.outgoing_bytes = [], 0
        self.sent_bytes += len(data)
        if self._taken is not None:
            self._finish_taken()
        return data

    def put_back(self, data: bytes) -> None:
        """Return the rest of `data_to_send` that the socket did not take; it goes out before everything else."""
        self.sent_bytes -= len(data)
        self._outgoing.insert(0, data)
        if not self.outgoing_bytes:
            self.on_outgoing()
        self.outgoing_bytes += len(data)

    def taken(self) -> Waiting:
        """Done when the shell has taken the bytes that wait now, or the connection has ended.

        Whoever sends more than a little waits for this between two portions, so that memory has one portion at a time.
        """
        if self._taken is None:
            self._taken = Waiting()
        return self._taken

    def messages(self, data: bytes) -> Sequence[Message]:
        """The messages that are complete with these bytes; none once the client has ended.

        Raises RemoteProtocolError, which has the messages before the fault.
        """
        if self.wire is None:
            assert self.closed is not None, "bytes came without a connection"
            return ()
        if self.state is not UP and data:
            # A server of another protocol is told apart by its first bytes, before a frame is read from them.
            if not opens_as_node(data, self.wire):
                raise RemoteProtocolError("header", describe(data))
            self.state = after(self.state, Event.HEARD)
            data = data[len(self._hello) :]
            self.received_bytes += len(self._hello)
        self.received_bytes += len(data)
        return self._reader.feed(data)

    def _put(self, data: bytes) -> None:
        self._outgoing.append(data)
        if not self.outgoing_bytes:
            self.on_outgoing()
        self.outgoing_bytes += len(data)

    def _forget(self) -> None:
        """Drop everything that belongs to a connection."""
        self.wire = None
        self._outgoing, self.outgoing_bytes = [], 0
        if self._taken is not None:
            self._finish_taken()

    def finish_attempt(self) -> None:
        """Wake whoever waits for an attempt to connect; after a success, once everything uses the connection."""
        attempted, self._attempted = self._attempted, None
        if attempted is not None:
            attempted.finish()

    def _finish_taken(self) -> None:
        # Its callbacks put in the next portion, and may ask for `taken` again.
        taken, self._taken = self._taken, None
        assert taken is not None
        taken.finish()
