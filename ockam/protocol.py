"""The envelope of every payload: the name of a protocol, and a message of that protocol.

A request and its answer carry the same protocol name. This module turns payloads into typed values and back; the
services define the protocols (`stream_service.protocol`, `index_service.protocol`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

import bare

Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")


class ProtocolError(ValueError):
    """The payload is not a well-formed message of the protocol that it names, or names one that is not served here."""


# type Error { reason: string }
class Error(msgspec.Struct, frozen=True):
    reason: str


class Protocol(Generic[Q, A]):
    """One protocol: its name on the wire and the codecs of its two directions.

    +---------------------+----------------------+----------------------+
    | name: string        | size: uint           | body: the request or |
    | (uint size + UTF-8) | (of the body)        | the response         |
    +---------------------+----------------------+----------------------+

    encode_request and encode_response turn a message into a payload. decode_request and decode_response turn a payload
    into a message, and raise ProtocolError. The four are functions made for this protocol, since every message passes
    through them.
    """

    encode_request: Callable[[Q], bytes]
    encode_response: Callable[[A], bytes]
    decode_request: Callable[[bytes], Q]
    decode_response: Callable[[bytes], A]

    def __init__(self, name: str, request: type[Q], response: type[A]) -> None:
        self.name = name
        self.tag = bare.encode(name, str)
        self.encode_request = _encoder(self, request)
        self.encode_response = _encoder(self, response)
        self.decode_request = _decoder(self, request, "request")
        self.decode_response = _decoder(self, response, "response")

    def is_in(self, payload: bytes) -> bool:
        """Whether this payload names this protocol."""
        return payload.startswith(self.tag)

    def body(self, payload: bytes) -> bytes:
        """The body of an envelope. Raises ProtocolError if it names another protocol or its size is wrong."""
        if not payload.startswith(self.tag):
            raise ProtocolError(f"the payload is not a {self.name} message")
        try:
            return _body_decoder.decode(payload[len(self.tag) :])
        except bare.DecodeError as error:
            raise ProtocolError(f"{self.name} envelope: {error}") from error


def _encoder(protocol: Protocol[Any, Any], kind: type[T]) -> Callable[[T], bytes]:
    encode, tag = bare.Encoder(kind).encode, protocol.tag
    small = [tag + bytes((size,)) for size in range(SMALL_SIZE_END)]

    def encode_payload(message: T) -> bytes:
        body = encode(message)
        size = len(body)
        if size < SMALL_SIZE_END:
            return small[size] + body
        return tag + _body_encoder.encode(body)

    return encode_payload


def _decoder(protocol: Protocol[Any, Any], kind: type[T], direction: str) -> Callable[[bytes], T]:
    decode, tag = bare.Decoder(kind).decode, protocol.tag
    at = len(tag)

    def decode_payload(payload: bytes) -> T:
        # Most payloads are small: their size takes one byte. This case is decoded here, without the call of `body`.
        size = len(payload) - at - 1
        if 0 <= size < SMALL_SIZE_END and payload[at] == size and payload.startswith(tag):
            body = payload[at + 1 :]
        else:
            body = protocol.body(payload)
        try:
            return decode(body)
        except bare.DecodeError as error:
            raise ProtocolError(f"{protocol.name} {direction}: {error}") from error

    return decode_payload


REFUSAL = "Invalid request: "
"""The text of every `error` begins like this, as that of the real services does."""
FAILURE = "the node failed: "
"""The text goes on like this if the request is right and the node could not carry it out."""
SHOWN_CHARACTERS_MAX = 64
"""A peer's text is cut to this length in an answer or a log line; a payload can have 16 MiB of it."""
SMALL_SIZE_END = 128
"""A size below this takes one byte."""
_body_decoder = bare.Decoder(bytes)
_body_encoder = bare.Encoder(bytes)
_name_decoder = bare.Decoder(str)

ERROR = Protocol("error", Error, Error)
"""The answer of every service to a request that it cannot serve."""


def find_name(payload: bytes) -> str | None:
    """The name of the protocol of a payload, cut for a log line; None if the payload names none."""
    try:
        return _name_decoder.decode_prefix(payload)[0][:SHOWN_CHARACTERS_MAX]
    except bare.DecodeError:
        return None


def error_payload(reason: str) -> bytes:
    """The answer to a request that cannot be served. Its text begins as that of the real services, which peers know."""
    return ERROR.encode_response(Error(REFUSAL + reason))


def failed_payload(reason: str) -> bytes:
    """The answer to a request that is right, but that this node could not carry out. The same may succeed later."""
    return error_payload(FAILURE + reason)


def is_failure(reason: str) -> bool:
    """Whether this is the reason of an `error` that `failed_payload` made."""
    return reason.startswith(f"{REFUSAL}{FAILURE}")
