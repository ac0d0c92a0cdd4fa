"""Which framing a peer speaks, told from its first bytes (facts/ockam.md §2.5). It reads no sockets and keeps no time.

A head client opens with the byte 01 and then either waits for ours or goes on with a u32 length and a CBOR array; a
legacy client opens with a u16 length and a BARE message whose first byte is its version. Where the first byte is 01 and
the third is 01 or 02, both are possible up to here:

    byte      0    1..4          5                      6
    head      01   u32 length    84 or 9f (array of 4)  80..9f (the onward route, an array)

    byte      0..1         2        3            4            5                      6
    legacy    u16 length   version  hops onward  type of hop  size of hop's value    its first byte, or the size's rest

A legacy frame with such a byte 5 has a first hop of 132 bytes or more, in a frame of 256 or 257 bytes. So its byte 6 is
the rest of that size, which is 01.
"""

from __future__ import annotations

from ockam.wire import Wire
from ockam.wire_head import HEAD, INDEFINITE_ARRAY, MESSAGE_ARRAY
from ockam.wire_legacy import LEGACY

HELLO_TIMEOUT_S = 5.0
"""A node that we called and that has not said hello after this is given up, as the real clients do."""
HEAD_SILENCE_S = 0.2
"""A node that we called and that says nothing for this long does not speak first, as the real head nodes do."""
DECIDING_BYTES = 7
"""No more bytes than these are ever needed to decide."""


def maybe_wire(first: bytes) -> Wire | None:
    """The framing of a peer whose first bytes are these; None while more bytes are needed.

    A lone 01 is None here: it is a hello or, where a legacy frame was torn, the beginning of one (`opening.Opening`).
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
    if len(first) > 5 and first[5] not in (MESSAGE_ARRAY, INDEFINITE_ARRAY):
        return LEGACY
    if len(first) < DECIDING_BYTES:
        return None
    return HEAD if first[6] != 1 else LEGACY
