"""CoreStatistics: the figures of a client's core as a frozen value. This module counts nothing itself."""

from __future__ import annotations

import msgspec


class CoreStatistics(msgspec.Struct, frozen=True):
    """The figures of one client at one moment.

    connections: the number of connections made so far. unconfirmed: the number of pushes without an answer. unanswered:
    the number of other requests without an answer. sent_again: the number of pushes that were sent more than once, in
    the queues in use. sent_bytes, received_bytes: the bytes over all connections.
    """

    connections: int
    unconfirmed: int
    unanswered: int
    sent_again: int
    sent_bytes: int
    received_bytes: int
