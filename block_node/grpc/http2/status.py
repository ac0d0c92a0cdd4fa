"""The status of a gRPC call, and the texts of headers: `grpc-timeout`, `grpc-message`.

Source: the document "gRPC over HTTP2" (PROTOCOL-HTTP2.md of the gRPC project).
"""

from __future__ import annotations

import enum
import re
from typing import Final
from urllib.parse import quote_from_bytes, unquote

_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_PLAIN: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
MESSAGE_BYTES_MAX: Final = 1024
"""The longest `grpc-message` before its percent-encoding. A peer that bounds its headers by 8 KiB can read it."""


class GrpcStatus(enum.IntEnum):
    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class CallRefused(Exception):
    """The error of a call that ends with another status than OK. text: the `grpc-message`."""

    def __init__(self, status: GrpcStatus, text: str) -> None:
        super().__init__(f"{status.name}: {text}")
        self.status = status
        self.text = text


def read_timeout(value: bytes) -> float:
    """Returns the seconds that a `grpc-timeout` allows. Raises CallRefused."""
    match = _TIMEOUT.fullmatch(value)
    if match is None:
        raise CallRefused(GrpcStatus.INTERNAL, "grpc-timeout is not one to eight digits and a unit")
    return int(match[1]) * _UNIT_S[match[2]]


def decode_message(value: bytes) -> str:
    """Returns the text of a `grpc-message`. A long text is cut short."""
    return unquote(value[: 3 * MESSAGE_BYTES_MAX].decode("latin-1"))[:MESSAGE_BYTES_MAX]


def encode_message(text: str) -> bytes:
    return quote_from_bytes(text.encode()[:MESSAGE_BYTES_MAX], safe=_PLAIN).encode()
