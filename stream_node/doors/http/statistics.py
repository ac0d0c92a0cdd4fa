"""HttpStatistics: what the HTTP listener counts."""

from __future__ import annotations

import msgspec


class HttpStatistics(msgspec.Struct, frozen=True):
    """The statistics of HTTP. All fields except `open`, `clients` and `body_bytes` are counted since the start.

    open: the number of open connections. accepted: the number of accepted connections.
    closed: the number of connections that the node has closed or refused, by reason.
    requests: the number of answered requests, by status.
    clients: the number of identities, each with its host, that have a client inside the node.
    body_bytes: the bytes of the bodies that requests under way hold.
    """

    open: int
    accepted: int
    closed: dict[str, int]
    requests: dict[str, int]
    clients: int
    body_bytes: int
