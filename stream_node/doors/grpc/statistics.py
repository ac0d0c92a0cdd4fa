"""GrpcDoorStatistics: the counts of the gRPC listener."""

from __future__ import annotations

import msgspec


class GrpcDoorStatistics(msgspec.Struct, frozen=True):
    """The statistics of gRPC. `open`, `open_calls` and `unfinished_bytes` are those of now; the others are counted
    since the start.

    closed: the connections that have ended or were refused, by reason. calls: ended calls, by their status.
    unfinished_bytes: the received bytes of large messages that are not complete yet.
    """

    open: int
    accepted: int
    closed: dict[str, int]
    open_calls: int
    calls: dict[str, int]
    unfinished_bytes: int
