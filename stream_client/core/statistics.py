"""The figures of a client's core, as a frozen value. It counts nothing itself."""

from __future__ import annotations

import msgspec


class CoreStatistics(msgspec.Struct, frozen=True):
    """The figures of one client at one moment.

    connections: made so far. unconfirmed, unanswered: pushes and other requests without an answer now. sent_again:
    pushes of the queues in use that were sent more than once. sent_bytes, received_bytes: over all connections.
    """

    connections: int
    unconfirmed: int
    unanswered: int
    sent_again: int
    sent_bytes: int
    received_bytes: int
