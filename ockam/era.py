"""Which framing a peer speaks, told from its first bytes (facts/ockam.md §2.5). It reads no sockets and keeps no time.

A head client opens with the byte 01 and then either waits for ours or goes on with a u32 length and a CBOR array; a
legacy client opens with a u16 length and a BARE message whose first byte is its version. The two collide only where the
first byte is 01 and the third is 01 or 02 (a legacy frame of 256..511 bytes, or a head frame of 64 to 192 KiB or of
16 MiB); there the first byte of the message decides, since a BARE route count of 0x84 or 0x9f is not a real one.
"""

from __future__ import annotations

from ockam.wire import Wire
from ockam.wire_head import HEAD, INDEFINITE_ARRAY, MESSAGE_ARRAY
from ockam.wire_legacy import LEGACY

HEADER_TIMEOUT_S = 5.0
"""A peer that sends nothing at all is closed after this, as the real node does."""
HEAD_SILENCE_S = 0.2
"""A lone 01 followed by this much silence is a head client that waits for our 01."""
DECIDING_BYTES = 6
"""No more bytes than these are ever needed to decide."""


def maybe_wire(first: bytes) -> Wire | None:
    """The framing of a peer whose first bytes are these; None while more bytes are needed.

    A lone 01 is None here: only time tells it from the begin of a legacy frame (`HEAD_SILENCE_S`).
    """
    if not first:
        return None
    if first[0] != HEAD.hello[0]:
        return LEGACY
    if len(first) < 3:
        return None
    if first[2] not in (1, 2):
        return HEAD
    if first[1] > 1:
        return LEGACY
    if len(first) < DECIDING_BYTES:
        return None
    return HEAD if first[5] in (MESSAGE_ARRAY, INDEFINITE_ARRAY) else LEGACY
