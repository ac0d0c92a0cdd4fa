"""The first bytes of a connection: they tell which framing the peer speaks (facts/ockam.md §2.5).

It reads no sockets and keeps no time.

A head client opens with the byte 01 and then either waits for our 01 or goes on with a u32 length and a CBOR array. A
legacy client opens with a u16 length and a BARE message whose first byte is its version. When the first byte is 01 and
the third is 01 or 02, only the bytes behind them tell the two framings apart:

    byte      0    1..4          5                      6
    head      01   u32 length    84 or 9f (array of 4)  80..9f (the onward route, an array)

    byte      0..1         2        3            4            5                      6
    legacy    u16 length   version  hops onward  type of hop  size of hop's value    its first byte, or the size's rest

A legacy frame with 84 or 9f as byte 5 has a first hop of 132 bytes or more, in a frame of 256 or 257 bytes. The size of
such a hop takes two bytes, and the second of them, byte 6, is 01.
"""

from __future__ import annotations

from ockam.errors import RemoteProtocolError
from ockam.wire import Wire
from ockam.wire_head import HEAD, INDEFINITE_ARRAY, MESSAGE_ARRAY
from ockam.wire_legacy import LEGACY

DECIDING_BYTES = 7
"""This many bytes always suffice to tell the framings apart."""


def maybe_wire(first: bytes) -> Wire | None:
    """The framing of a peer whose first bytes are these; None while more bytes are needed.

    A lone 01 gives None: it is the hello of a head client, or the first byte of a legacy frame that came in pieces.
    """
    if not first:
        return None
    # Only the head framing opens with 01, and so does a legacy length of 256 to 511 bytes.
    if first[0] != HEAD.hello[0]:
        return LEGACY
    if len(first) < 3:
        return None
    # In a legacy frame the third byte is the version of its message, 1 or 2.
    if first[2] not in (1, 2):
        return HEAD
    # Behind a hello stands the highest byte of a u32 length, which is 0 or, for the largest frame, 1.
    if first[1] > 1:
        return LEGACY
    if len(first) > 5 and first[5] not in (MESSAGE_ARRAY, INDEFINITE_ARRAY):
        return LEGACY
    if len(first) < DECIDING_BYTES:
        return None
    # Both framings are possible up to here; see the drawing at the top of this module.
    return HEAD if first[6] != 1 else LEGACY


class FramingDetector:
    """Collects the first bytes of a peer that called us, until they tell its framing.

    The byte 01 alone is answered with our hello at once, because the Elixir client sends nothing more before it has our
    hello. That byte could also be the beginning of a legacy frame of 256 to 511 bytes whose first byte came alone. No
    known client tears a frame there. If one does, our hello is in its stream by then, which a legacy client would read
    as the length of a frame; so the connection is closed, and nothing of the torn frame is carried out.
    Invariant: `received` is everything that has come, hello included; `wire` is the framing that it tells, None while
    more bytes are needed.
    """

    def __init__(self) -> None:
        self.received = b""
        self.wire: Wire | None = None
        self._answered = False

    @property
    def frame_begun(self) -> bool:
        """Whether a frame has begun. Before its first frame, and after a lone hello, a peer may be silent for as long
        as it likes."""
        return self.received not in (b"", HEAD.hello)

    def feed(self, chunk: bytes) -> bytes:
        """Take the bytes that came next; returns the bytes to send at once: our hello, once, or nothing.

        Raises RemoteProtocolError (torn_header) when a byte that was answered as a hello began a legacy frame.
        """
        self.received += chunk
        self.wire = maybe_wire(self.received)
        if self._answered and self.wire not in (None, HEAD):
            raise RemoteProtocolError("torn_header", "a legacy frame came with its first byte, 01, alone, like a hello")
        if self._answered or not (self.wire is HEAD or self.received == HEAD.hello):
            return b""
        self._answered = True
        return HEAD.hello


def strip_hello(first: bytes, wire: Wire) -> bytes:
    """The first bytes of a peer without the hello of its framing. Raises RemoteProtocolError when there is no hello."""
    hello = wire.hello
    if not first.startswith(hello):
        raise RemoteProtocolError("header", f"the peer opened with {first[:1].hex() or 'nothing'}, not {hello.hex()}")
    return first[len(hello) :]
