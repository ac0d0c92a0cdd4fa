"""The envelope of every payload: which protocol it belongs to, and that protocol's message.

A request and its answer carry the same protocol name. This module turns payloads into typed values and back; which
protocols exist is the services' business (`stream_service.protocol`, `index_service.protocol`).
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

import bare

Q = TypeVar("Q")
A = TypeVar("A")


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
    """

    def __init__(self, name: str, request: type[Q], response: type[A]) -> None:
        self.name = name
        self.tag = bare.encode(name, str)
        self._request_encoder: bare.Encoder[Q] = bare.Encoder(request)
        self._request_decoder: bare.Decoder[Q] = bare.Decoder(request)
        self._response_encoder: bare.Encoder[A] = bare.Encoder(response)
        self._response_decoder: bare.Decoder[A] = bare.Decoder(response)

    def encode_request(self, request: Q) -> bytes:
        return self._wrap(self._request_encoder.encode(request))

    def encode_response(self, response: A) -> bytes:
        return self._wrap(self._response_encoder.encode(response))

    def decode_request(self, payload: bytes) -> Q:
        """Raises ProtocolError."""
        try:
            return self._request_decoder.decode(self.body(payload))
        except bare.DecodeError as error:
            raise ProtocolError(f"{self.name} request: {error}") from error

    def decode_response(self, payload: bytes) -> A:
        """Raises ProtocolError."""
        try:
            return self._response_decoder.decode(self.body(payload))
        except bare.DecodeError as error:
            raise ProtocolError(f"{self.name} response: {error}") from error

    def is_in(self, payload: bytes) -> bool:
        """Whether this payload names this protocol."""
        return payload.startswith(self.tag)

    def body(self, payload: bytes) -> bytes:
        """What the envelope holds. Raises ProtocolError where it names another protocol or its size is wrong."""
        if not payload.startswith(self.tag):
            raise ProtocolError(f"the payload is not a {self.name} message")
        at = len(self.tag)
        if at < len(payload) and payload[at] < 128 and at + 1 + payload[at] == len(payload):
            return payload[at + 1 :]
        try:
            return _body_decoder.decode(payload[at:])
        except bare.DecodeError as error:
            raise ProtocolError(f"{self.name} envelope: {error}") from error

    def _wrap(self, body: bytes) -> bytes:
        size = len(body)
        if size < 128:
            return self.tag + SMALL_SIZES[size] + body
        return self.tag + _body_encoder.encode(body)


REFUSAL = "Invalid request: "
"""How the text of an `error` begins, as that of the real services does."""
FAILURE = "the node failed: "
"""How it goes on where not the request is wrong."""
SHOWN_CHARACTERS_MAX = 64
"""Of a peer's text that goes into an answer or a log line; a payload can have 16 MiB of it."""
SMALL_SIZES = [bytes((size,)) for size in range(128)]
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
