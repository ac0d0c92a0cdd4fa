"""What a client's core counts. It counts nothing itself."""

from __future__ import annotations

import msgspec


class CoreStatistics(msgspec.Struct, frozen=True):
    """connections: made so far. unconfirmed, unanswered: pushes and other requests without an answer now.

    sent_again: pushes that went out more than once, by queues in use. sent_bytes, received_bytes: over all connections.
    """

    connections: int
    unconfirmed: int
    unanswered: int
    sent_again: int
    sent_bytes: int
    received_bytes: int
