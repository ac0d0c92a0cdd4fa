"""Detects the framing of a peer from the first bytes that the peer sends (facts/ockam.md §2.5). It reads no sockets.

A client with the head framing (Ockam since June 2024) first sends its hello, the byte 01. Then it waits for our hello,
also 01, or sends a u32 length and a CBOR array. A client with the legacy framing first sends a u16 length and a BARE
message, which begins with its version. If the first byte is 01 and the third byte is 01 or 02, only later bytes
distinguish the two framings:

    byte      0    1..4          5                      6
    head      01   u32 length    84 or 9f (array of 4)  80..9f (the onward route, an array)

    byte      0..1         2        3            4            5                      6
    legacy    u16 length   version  hops onward  type of hop  size of hop's value    its first byte, or the size's rest

A legacy frame with 84 or 9f as byte 5 has a first hop of 132 bytes or more, in a frame of 256 or 257 bytes. The size of
such a hop takes two bytes, 5 and 6, and byte 6 is 01. In the head framing, byte 6 is never 01.

A client that speaks TLS to a port without TLS first sends a ClientHello. It is recognized and refused at once."""

from __future__ import annotations

from ockam.errors import RemoteProtocolError
from ockam.identity.tls_layer import PROBE, PROBED, TlsFault
from ockam.transport.wire import Wire
from ockam.transport.wire_head import HEAD, INDEFINITE_ARRAY, MESSAGE_ARRAY
from ockam.transport.wire_legacy import LEGACY

DECIDING_BYTES = 7


def maybe_wire(first: bytes) -> Wire | None:
    if not first:
        return None
    # The head framing begins with 01, and so does a legacy frame of 256 to 511 bytes.
    if first[0] != HEAD.hello[0]:
        return LEGACY
    if len(first) < 3:
        return None
    # In a legacy frame the third byte is the version of its message, 1 or 2.
    if first[2] not in (1, 2):
        return HEAD
    # After a hello, the next byte is the highest byte of a u32 length: 0, or 1 for the largest frame.
    if first[1] > 1:
        return LEGACY
    if len(first) > 5 and first[5] not in (MESSAGE_ARRAY, INDEFINITE_ARRAY):
        return LEGACY
    if len(first) < DECIDING_BYTES:
        return None
    # Both framings are possible up to here; see the drawing at the top of this module.
    return HEAD if first[6] != 1 else LEGACY


def is_client_hello(first: bytes) -> bool:
    """Whether these first bytes are those of a TLS client (RFC 8446 §5.1 and §4.1.2).

        16 03 xx   u16 length of the record   01   u24 length of the message   03 03

    No legacy frame begins so: read as one, the bytes would announce 5632 bytes or more, and routes that do not fit."""
    if len(first) < 11 or first[:2] != b"\x16\x03" or first[5] != 1 or first[9:11] != b"\x03\x03":
        return False
    # A ClientHello may continue in further records, but its first record has no room for anything else.
    return int.from_bytes(first[6:9], "big") + 4 >= int.from_bytes(first[3:5], "big")


class FramingDetector:
    """Collects the first bytes of a peer that connected to us, until the framing of the peer is known.

    Invariant: `received` is everything that the peer has sent, including the hello. `wire` is the peer's framing, or
    None while more bytes are needed."""

    def __init__(self) -> None:
        self.received = b""
        self.wire: Wire | None = None
        self._answered = False

    @property
    def frame_begun(self) -> bool:
        return self.received not in (b"", HEAD.hello)

    def feed(self, chunk: bytes) -> bytes:
        """Processes the next bytes. Returns our hello if it must be sent now, otherwise b"". Raises RemoteProtocolError
        (`torn_header`) if a byte that was answered as a hello began a legacy frame, TlsFault (`tls_unexpected`) if the
        peer speaks TLS, or TlsFault (PROBED) if a client of ours only asks who speaks here."""
        self.received += chunk
        if is_client_hello(self.received):
            # Our hello tells a client of ours that a node without TLS is here.
            if PROBE.encode() in self.received:
                raise TlsFault(PROBED, "a client asks which protocol is spoken here", HEAD.hello)
            raise TlsFault("tls_unexpected", "the peer speaks TLS, and this port does not", HEAD.hello)
        # A single byte 01 is answered with our hello, because the Elixir client sends nothing more before it. The byte
        # could also begin a legacy frame, but no known client sends the first byte of a frame alone. Such a client
        # would read our hello as a length, so its connection is closed.
        self.wire = maybe_wire(self.received)
        if self._answered and self.wire not in (None, HEAD):
            raise RemoteProtocolError("torn_header", "a legacy frame came with its first byte, 01, alone, like a hello")
        if self._answered or not (self.wire is HEAD or self.received == HEAD.hello):
            return b""
        self._answered = True
        return HEAD.hello


def strip_hello(first: bytes, wire: Wire) -> bytes:
    """Returns a peer's first bytes without the hello of its framing. Raises RemoteProtocolError without a hello."""
    hello = wire.hello
    if not first.startswith(hello):
        raise RemoteProtocolError("header", f"the peer opened with {first[:1].hex() or 'nothing'}, not {hello.hex()}")
    return first[len(hello) :]
