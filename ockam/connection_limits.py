"""What an operator sets about a connection, and what it tells about itself. It does neither read nor send."""

from __future__ import annotations

import msgspec

HELLO_TIMEOUT_S = 5.0
"""A node that we called and that has not said hello after this time is given up, as the real clients do."""


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds. idle_s None keeps silent connections for ever, those too that have not sent anything yet.

    hello_s: of a head node that we called. frame_s: from a frame's first byte to its last. send_s: of 1 MiB that a peer
    is to take.
    """

    hello_s: float = HELLO_TIMEOUT_S
    frame_s: float = 30.0
    send_s: float = 30.0
    idle_s: float | None = None


class ConnectionStatistics(msgspec.Struct, frozen=True):
    """Since the connection began."""

    peer: str
    framing: str
    received: int
    received_bytes: int
    sent: int
    sent_bytes: int
    backlog_bytes: int
