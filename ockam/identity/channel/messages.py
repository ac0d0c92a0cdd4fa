"""The plaintexts inside a channel: a routed message (Payload), a new history of the peer (Refresh), the end (Close).

    plaintext   82 message padding              padding: byte string; we send none (40) and accept any
    Payload     82 00 81 83 route route payload    onward route, return route, byte string
    Refresh     82 01 81 82 ChangeHistory array of credentials
    Close       82 02 80

A Payload resembles the body of a frame in the head framing. So `PLAINTEXT` is a `Wire`, and `ockam.transport.frames`
reads and writes many Payloads at once (facts/secure_channel.md §5). This module does not encrypt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ockam.actors.address import Address, Route
from ockam.actors.message import Message, Origin
from ockam.errors import FrameTooLarge, RemoteProtocolError
from ockam.identity.channel.cbor import CborError, CborReader
from ockam.identity.channel.errors import PlaintextRefused
from ockam.identity.channel.identity_history import PeerIdentity, read_history
from ockam.identity.channel.proof import skip_credentials
from ockam.identity.channel.transport import OVERHEAD_BYTES
from ockam.transport.frames import ENTRY_BYTES, KNOWN_HEADER_BYTES_MAX, BadFrame, FrameReader, FrameWriter
from ockam.transport.wire import Wire
from ockam.transport.wire_head import BYTE_STRING, HEAD, read_head, read_route, write_head, write_route

PAYLOAD_HEAD = bytes.fromhex("8282008183")
CLOSE = bytes.fromhex("8282028040")
"""The whole plaintext of a Close without padding."""
NO_PADDING = b"\x40"
NO_PADDING_BYTE = NO_PADDING[0]
AROUND_BYTES_MAX = OVERHEAD_BYTES + 100
"""The most bytes that encryption and framing add to a message, besides its addresses."""
_REFRESH, _CLOSE = 1, 2


class PlaintextWire(Wire):
    """The form of a Payload as a `Wire`, for `ockam.transport.frames`, with a u32 length that is never sent."""

    name = "channel"
    hello = b""
    length_bytes = 4
    send_bytes_max = HEAD.send_bytes_max - AROUND_BYTES_MAX
    receive_bytes_max = HEAD.receive_bytes_max
    heartbeat = b""

    def decode_routes(self, data: bytes, at: int, end: int) -> tuple[Route, Route, int]:
        if not data.startswith(PAYLOAD_HEAD, at, end):
            raise RemoteProtocolError("undecodable", "not a Payload of a channel")
        onward_route, at = read_route(data, at + len(PAYLOAD_HEAD), end)
        return_route, at = read_route(data, at, end)
        return onward_route, return_route, at

    def decode_payload(self, data: bytes, start: int, at: int, end: int) -> bytes:
        size, at = read_head(data, at, end, BYTE_STRING)
        stop = at + size
        if stop >= end:
            raise RemoteProtocolError("undecodable", "the payload is longer than the message")
        padding, after = read_head(data, stop, end, BYTE_STRING)
        if after + padding != end:
            raise RemoteProtocolError("undecodable", "the padding does not end with the message")
        return data[at:stop]

    def encode_routes(self, onward_route: Route, return_route: Route) -> bytes:
        return PAYLOAD_HEAD + write_route(onward_route) + write_route(return_route)

    def around_payload(self, size_bytes: int) -> tuple[bytes, bytes]:
        return write_head(BYTE_STRING, size_bytes), NO_PADDING


PLAINTEXT = PlaintextWire()


class Alike(NamedTuple):
    """The parts that plaintexts in a row share: the bytes before the payload (head), the whole size, and the routes."""

    head: bytes
    size_bytes: int
    onward_route: Route
    return_route: Route


class PlaintextReader:
    """Decodes the Payloads of one channel. outer: the first hop of all return routes, or None."""

    __slots__ = ("_alike", "_origin", "_prefix", "_reader")

    def __init__(self, origin: Origin, outer: Address | None) -> None:
        self._origin = origin
        self._prefix: Route = () if outer is None else (outer,)
        self._reader = FrameReader(PLAINTEXT, origin, self._prefix)
        self._alike: Alike | None = None

    @property
    def known_bytes(self) -> int:
        alike_bytes = ENTRY_BYTES + len(self._alike.head) if self._alike is not None else 0
        return self._reader.known_bytes + alike_bytes

    def forget(self) -> None:
        self._reader.forget()
        self._alike = None

    def read(self, plaintexts: Sequence[bytes], at: int = 0) -> tuple[list[Message], int, int]:
        """Decodes the Payloads from `plaintexts[at]` on, up to the first plaintext that is not a Payload. Returns their
        messages in order, the number of those that could not be decoded, and the position after them."""
        messages: list[Message] = []
        # A busy peer sends the same routes and sizes again, and such plaintexts are only compared.
        at = self._take_alike(plaintexts, at, messages)
        end = at
        while end < len(plaintexts) and plaintexts[end].startswith(PAYLOAD_HEAD):
            end += 1
        bad = 0
        if at < end:
            found, bad = self._decode(plaintexts[at:end])
            messages += found
            # A message without an onward route is not found. So the last message is that of the last plaintext only if
            # every plaintext has a message.
            if len(found) == end - at:
                self._learn(plaintexts[end - 1], found[-1])
        return messages, bad, end

    def _take_alike(self, plaintexts: Sequence[bytes], at: int, messages: list[Message]) -> int:
        """Appends the messages that differ from `_alike` in the payload only. Returns the position after them."""
        if self._alike is None:
            return at
        head, size_bytes, onward_route, return_route = self._alike
        start, origin, before = len(head), self._origin, len(messages)
        for each in plaintexts[at:] if at else plaintexts:
            if len(each) != size_bytes or not each.startswith(head) or each[-1] != NO_PADDING_BYTE:
                break
            messages.append(Message(onward_route, return_route, each[start:-1], origin))
        return at + len(messages) - before

    def _learn(self, plaintext: bytes, message: Message) -> None:
        head = plaintext[: -1 - len(message.payload)]
        # If the padding is empty, the payload stands directly before the last byte, and the head tells its size.
        size_head = write_head(BYTE_STRING, len(message.payload))
        has_no_padding = head.endswith(size_head) and plaintext == head + message.payload + NO_PADDING
        if has_no_padding and len(head) <= KNOWN_HEADER_BYTES_MAX:
            self._alike = Alike(head, len(plaintext), message.onward_route, message.return_route)

    def _decode(self, plaintexts: Sequence[bytes]) -> tuple[list[Message], int]:
        framed = b"".join([part for each in plaintexts for part in (len(each).to_bytes(4, "big"), each)])
        try:
            return self._reader.feed(framed), 0
        except BadFrame:
            # The reader does not continue after a bad frame, so each plaintext is read by itself.
            self._reader = FrameReader(PLAINTEXT, self._origin, self._prefix)
        messages: list[Message] = []
        bad = 0
        for each in plaintexts:
            try:
                messages += self._reader.feed(len(each).to_bytes(4, "big") + each)
            except BadFrame:
                bad += 1
                self._reader = FrameReader(PLAINTEXT, self._origin, self._prefix)
        return messages, bad


class PlaintextWriter:
    """Encodes messages as Payloads. frames: remembers the encoded routes, and the bytes around payloads by size."""

    __slots__ = ("frames",)

    def __init__(self) -> None:
        self.frames = FrameWriter(PLAINTEXT)

    def write(self, messages: Sequence[Message]) -> tuple[list[bytes], int]:
        """Returns the plaintexts of the messages, in order, and the number of those that are too large. The first hop
        of each onward route is this channel, and is left out."""
        onward_route = return_route = None
        raw = head = tail = b""
        size_bytes = -1
        written: list[bytes] = []
        for message in messages:
            payload = message.payload
            if message.onward_route is not onward_route or message.return_route is not return_route:
                onward_route, return_route = message.onward_route, message.return_route
                raw, size_bytes = self.frames.header(onward_route[1:], return_route), -1
            # Most answers of a run have the same routes and the same size, and differ in the payload only.
            if len(payload) != size_bytes:
                try:
                    head, tail = self.around(raw, len(payload))
                except FrameTooLarge:
                    size_bytes = -1
                    continue
                size_bytes = len(payload)
            written.append(head + payload + tail)
        return written, len(messages) - len(written)

    def around(self, header: bytes, size_bytes: int) -> tuple[bytes, bytes]:
        """Returns the bytes of a Payload before and after a payload of this size. Raises FrameTooLarge."""
        heads = self.frames.heads
        pieces = heads.around(header).get(size_bytes) or heads.make(header, size_bytes)
        # The first four bytes are the length, which belongs to no plaintext.
        return pieces[0][4:], pieces[1]


def read_control(plaintext: bytes) -> PeerIdentity | None:
    """Returns the new identity of a Refresh, or None for a Close. Raises PlaintextRefused and IdentityRefused."""
    try:
        reader = CborReader(plaintext)
        reader.array(2)
        reader.array(2)
        kind = reader.unsigned()
        identity = None
        if kind == _CLOSE:
            reader.array(0)
        elif kind == _REFRESH:
            reader.array(1)
            reader.array(2)
            identity = read_history(reader)
            skip_credentials(reader)
        else:
            raise PlaintextRefused("undecodable", f"a message of the unknown kind {kind} in a channel")
        reader.byte_string()
        reader.finish()
    except CborError as error:
        raise PlaintextRefused("undecodable", f"not a message of a channel: {error}") from error
    return identity
