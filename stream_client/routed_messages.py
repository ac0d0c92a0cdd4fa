"""Routed messages carried as the data of stream messages, as the Elixir bidirectional workers write them
(facts/ockam.md §6.3).

    +------------------------+-------------+---------------------------------------------------+
    | return_stream: string  | size: uint  | version 1 | onward_route | return_route | payload |
    | where answers go       |             | the legacy framing's message, without its length  |
    +------------------------+-------------+---------------------------------------------------+

The inner message is version 1 of the BARE form, whatever framing the connection speaks. This module does no I/O.
"""

from __future__ import annotations

import msgspec

import bare
from ockam.address import Route
from ockam.errors import RemoteProtocolError
from ockam.wire_legacy import LEGACY
from stream_client.errors import UnexpectedAnswer


# type Envelope struct { return_stream: str  message: data }
class Envelope(msgspec.Struct, frozen=True):
    return_stream: str
    message: bytes


_encoder = bare.Encoder(Envelope)
_decoder = bare.Decoder(Envelope)


class RoutedMessage(msgspec.Struct, frozen=True):
    """A message together with its routes, in the form in which a stream stores it.

    onward_route: the workers that receive the message. return_route: the workers that receive an answer. return_stream:
    the stream to push an answer to; empty if no answer is expected.
    """

    onward_route: Route
    return_route: Route
    payload: bytes
    return_stream: str


def encode_routed(routed: RoutedMessage) -> bytes:
    """Encode a routed message to the data that is pushed into a stream."""
    message = LEGACY.encode_routes(routed.onward_route, routed.return_route) + LEGACY.encode_payload(routed.payload)
    return _encoder.encode(Envelope(routed.return_stream, message))


def decode_routed(data: bytes) -> RoutedMessage:
    """Decode the data of a stream message. Raises UnexpectedAnswer if the data is not a routed message."""
    try:
        envelope = _decoder.decode(data)
        message = envelope.message
        onward_route, return_route, at = LEGACY.decode_routes(message, 0, len(message))
        payload = LEGACY.decode_payload(message, 0, at, len(message))
    except (bare.DecodeError, RemoteProtocolError) as error:
        raise UnexpectedAnswer(f"a message of the stream is no routed message: {error}") from error
    return RoutedMessage(onward_route, return_route, payload, envelope.return_stream)
