"""The counts of the listeners for HTTP and for gRPC."""

from __future__ import annotations

import msgspec


class HttpStatistics(msgspec.Struct, frozen=True):
    """The statistics of HTTP. All fields except `open`, `clients` and `body_bytes` are counted since the start.
    closed: the connections that the node has closed or refused, by reason. requests: the answered requests, by status.
    clients: the identities, each with its host, that have a client inside the node. body_bytes: the bytes of bodies
    that requests hold."""

    open: int
    accepted: int
    closed: dict[str, int]
    requests: dict[str, int]
    clients: int
    body_bytes: int


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
