"""The counts of the listeners for HTTP and for gRPC."""

from __future__ import annotations

import msgspec


class HttpStatistics(msgspec.Struct, frozen=True):
    """The counts since the start; `open`, `clients` and `body_bytes` are those of now. closed: by reason.
    requests: the answered ones, by status. clients: how many identities, each with its host, have one in the node."""

    open: int
    accepted: int
    closed: dict[str, int]
    requests: dict[str, int]
    clients: int
    body_bytes: int


class GrpcDoorStatistics(msgspec.Struct, frozen=True):
    """The counts since the start; `open`, `open_calls` and `unfinished_bytes` are those of now.

    closed: by reason. calls: ended calls, by status. unfinished_bytes: received bytes of large messages."""

    open: int
    accepted: int
    closed: dict[str, int]
    open_calls: int
    calls: dict[str, int]
    unfinished_bytes: int
