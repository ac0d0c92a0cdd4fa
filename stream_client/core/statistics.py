"""ClientStatistics: counts of a client's connections, requests and bytes. The core computes them."""

from __future__ import annotations

import msgspec


class ClientStatistics(msgspec.Struct, frozen=True):
    """The counts of one client at one moment.

    connections: the number of connections made so far.
    unconfirmed: the number of unanswered pushes. `unanswered`: the number of other unanswered requests.
    sent_again: the number of pushes that were sent more than once, by publishers that are not closed.
    sent_bytes, received_bytes: the number of bytes over all connections.
    """

    connections: int
    unconfirmed: int
    unanswered: int
    sent_again: int
    sent_bytes: int
    received_bytes: int
