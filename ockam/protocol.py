"""Protocol: encodes and decodes payloads. A payload is the name of a protocol and a message of this protocol."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec

import bare

Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")


class ProtocolError(ValueError):
    """Error: a payload is not a valid message of its protocol, or this service does not serve its protocol."""


# type Error { reason: string }
class Error(msgspec.Struct, frozen=True):
    reason: str


class Protocol(Generic[Q, A]):
    """A protocol: its name on the wire, and the codecs of its request and its response.

    +---------------------+----------------------+----------------------+
    | name: string        | size: uint           | body: the request or |
    | (uint size + UTF-8) | (of the body)        | the response         |
    +---------------------+----------------------+----------------------+

    encode_request and encode_response turn a message into a payload. decode_request and decode_response turn a payload
    into a message, and raise ProtocolError if the payload is not valid. Each of these four functions is built once,
    when it is first used: every message passes through them and must be fast, and most processes need few of them."""

    def __init__(self, name: str, request: type[Q], response: type[A], *, open_ended: bool = False) -> None:
        """open_ended: whether bytes behind the known fields are ignored when a payload is decoded."""
        self.name = name
        self.open_ended = open_ended
        self.tag = bare.encode(name, str)
        self.request = request
        self.response = response

    @cached_property
    def encode_request(self) -> Callable[[Q], bytes]:
        return _encoder(self, self.request)

    @cached_property
    def encode_response(self) -> Callable[[A], bytes]:
        return _encoder(self, self.response)

    @cached_property
    def decode_request(self) -> Callable[[bytes], Q]:
        return _decoder(self, self.request, "request")

    @cached_property
    def decode_response(self) -> Callable[[bytes], A]:
        return _decoder(self, self.response, "response")

    def is_in(self, payload: bytes) -> bool:
        return payload.startswith(self.tag)

    def body(self, payload: bytes) -> bytes:
        """Returns the body of a payload. Raises ProtocolError for another protocol name or a wrong size."""
        if not payload.startswith(self.tag):
            raise ProtocolError(f"the payload is not a {self.name} message")
        try:
            if self.open_ended:
                return _body_decoder.decode_prefix(payload, len(self.tag))[0]
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
    decoder, tag = bare.Decoder(kind), protocol.tag
    decode = (lambda body: decoder.decode_prefix(body)[0]) if protocol.open_ended else decoder.decode
    at = len(tag)

    def decode_payload(payload: bytes) -> T:
        # Most payloads are small, and their size takes one byte. They are decoded here without calling `body`.
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
"""The beginning of the text of every `error`. The real services use the same text."""
FAILURE = "the node failed: "
"""The text after REFUSAL in an `error` if the request is valid, but the node failed to serve it."""
SHOWN_CHARACTERS_MAX = 64
"""The most characters of a peer's text that an answer or a log line shows. The text itself can have 16 MiB."""
SMALL_SIZE_END = 128
_body_decoder = bare.Decoder(bytes)
_body_encoder = bare.Encoder(bytes)
_name_decoder = bare.Decoder(str)

ERROR = Protocol("error", Error, Error)
"""The answer of every service to a request that it cannot serve."""


def find_name(payload: bytes) -> str | None:
    """Returns the protocol name of a payload, cut to SHOWN_CHARACTERS_MAX, or None if it has no name."""
    try:
        return _name_decoder.decode_prefix(payload)[0][:SHOWN_CHARACTERS_MAX]
    except bare.DecodeError:
        return None


def error_payload(reason: str) -> bytes:
    """Encodes the `error` for a request that cannot be served. Its text begins with REFUSAL, as in real services."""
    return ERROR.encode_response(Error(REFUSAL + reason))


def failed_payload(reason: str) -> bytes:
    """Encodes the `error` for a valid request that the node failed to serve. The same request can succeed later."""
    return error_payload(FAILURE + reason)


def is_failure(reason: str) -> bool:
    return reason.startswith(f"{REFUSAL}{FAILURE}")
