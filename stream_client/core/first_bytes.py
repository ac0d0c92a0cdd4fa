"""Recognizes the kind of a server by the first bytes that it sends."""

from __future__ import annotations

import re

from ockam.transport.wire import Wire
from stream_client.errors import SPEAKS_TLS

SHOWN_BYTES = 16
"""The number of unknown first bytes that an error shows. No pattern in SIGNS matches more bytes."""

SIGNS: tuple[tuple[bytes, str], ...] = (
    (rb"HTTP/\d", "it answered HTTP"),
    (rb"-[A-Z]+ |\+PONG", "it answered as Redis does"),
    (rb"SSH-", "it is an SSH server"),
    (rb"[\x14-\x17]\x03[\x00-\x04]", SPEAKS_TLS),
    (rb"\x00\x00[\x00-\xff]\x04\x00", "it speaks HTTP/2, as gRPC servers do"),
    (rb"INFO \{", "it is a NATS server"),
    (rb"AMQP", "it speaks AMQP"),
    (rb"[\x00-\xff]{3}\x00\x0a\d", "it is a MySQL server"),
    (rb"220[ -]", "it is a mail or FTP server"),
    (rb"\+OK|\* OK", "it is a mail server"),
)
"""The kinds of servers other than nodes: a pattern for the first bytes that each sends, and the text for an error."""


def describe(first: bytes) -> str:
    found = find_sign(first)
    if found is not None:
        return found
    return f"what it sends, {first[:SHOWN_BYTES]!r}, is not what a node sends"


def find_sign(first: bytes) -> str | None:
    return next((name for sign, name in SIGNS if re.match(sign, first)), None)


def opens_as_node(first: bytes, wire: Wire) -> bool:
    """Whether a node that uses the framing `wire` can send these first bytes (at least one)."""
    if wire.hello:
        return first.startswith(wire.hello)
    # A legacy frame is a u16 length and a version, which is 1 or 2; one without content has no version.
    return len(first) < 3 or first[:2] == b"\0\0" or first[2] in (1, 2)
