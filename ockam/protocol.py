"""The envelope of every payload: which protocol it belongs to, and that protocol's message.

A request and its answer carry the same protocol name. This module turns payloads into typed values and back; which
protocols exist is the services' business (`stream_service.protocol`, `index_service.protocol`).
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
    """A payload that is not a well-formed message of the protocol it names, or names one that is not served here."""


# type Error { reason: string }
class Error(msgspec.Struct, frozen=True):
    reason: str


class Protocol(Generic[Q, A]):
    """One protocol: its name on the wire and the codecs of its two directions.

    +---------------------+----------------------+----------------------+
    | name: string        | size: uint           | body: the request or |
    | (uint size + UTF-8) | (of the body)        | the response         |
    +---------------------+----------------------+----------------------+

    encode_request, encode_response: from a message to its payload. decode_request, decode_response: back; they raise
    ProtocolError. All are functions made for this protocol, since every message passes through them.
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
        """What the envelope holds. Raises ProtocolError where it names another protocol or its size is wrong."""
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
        # The usual case of `body` in place: a size of one byte, which is that of the rest.
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
"""How the text of an `error` begins, as that of the real services does."""
FAILURE = "the node failed: "
"""How it goes on where not the request is wrong."""
SHOWN_CHARACTERS_MAX = 64
"""Of a peer's text that goes into an answer or a log line; a payload can have 16 MiB of it."""
SMALL_SIZE_END = 128
"""Sizes below this take one byte."""
_body_decoder = bare.Decoder(bytes)
_body_encoder = bare.Encoder(bytes)
_name_decoder = bare.Decoder(str)

ERROR = Protocol("error", Error, Error)
"""The answer of every service to what it cannot serve."""


def find_name(payload: bytes) -> str | None:
    """The protocol that a payload names, known to us or not, cut to what a log line can bear; None where none."""
    try:
        return _name_decoder.decode_prefix(payload)[0][:SHOWN_CHARACTERS_MAX]
    except bare.DecodeError:
        return None


def error_payload(reason: str) -> bytes:
    """The answer to what cannot be served. Its text begins as the real services' text does, so that peers match it."""
    return ERROR.encode_response(Error(REFUSAL + reason))


def failed_payload(reason: str) -> bytes:
    """The answer to a request that is right, and that this node could not carry out; it may succeed later."""
    return error_payload(FAILURE + reason)


def is_failure(reason: str) -> bool:
    """Whether the reason of an `error` is one of those that `failed_payload` gives."""
    return reason.startswith(f"{REFUSAL}{FAILURE}")
