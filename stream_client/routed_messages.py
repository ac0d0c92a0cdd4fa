"""Encodes and decodes routed messages: messages with routes, stored as the data of a stream's message. Does no I/O.

The format is that of the bidirectional workers of Ockam's Elixir implementation (facts/ockam.md §6.3):

    +------------------------+-------------+---------------------------------------------------+
    | return_stream: string  | size: uint  | version 1 | onward_route | return_route | payload |
    | where answers go       |             | the legacy framing's message, without its length  |
    +------------------------+-------------+---------------------------------------------------+

The inner message always has version 1 of the legacy framing (that of Ockam before June 2024), whatever framing the
connection uses.
"""

from __future__ import annotations

import msgspec

import bare
from ockam.actors.address import Address, Route
from ockam.errors import RemoteProtocolError
from ockam.transport.wire_legacy import LEGACY
from stream_client.arguments import to_bytes
from stream_client.errors import InvalidArgument, UnexpectedAnswer


# type Envelope struct { return_stream: str  message: data }
class Envelope(msgspec.Struct, frozen=True):
    return_stream: str
    message: bytes


_encoder = bare.Encoder(Envelope)
_decoder = bare.Decoder(Envelope)


class RoutedMessage(msgspec.Struct, frozen=True):
    """A message with its routes, as it is stored in the data of a stream's message.

    onward_route: the route to the worker that receives the message.
    return_route: the route to the worker that receives an answer.
    return_stream: the stream to push an answer to; empty if no answer is expected.
    """

    onward_route: Route
    return_route: Route
    payload: bytes
    return_stream: str


def encode_routed(routed: RoutedMessage) -> bytes:
    """Encodes a routed message as the data of a stream's message. Raises InvalidArgument for a wrong type."""
    for address in (*routed.onward_route, *routed.return_route):
        if not isinstance(address, Address):
            raise InvalidArgument(f"a route is a sequence of Address, such as (local('worker'),); it has {address!r}")
    payload = LEGACY.encode_payload(to_bytes(routed.payload, "a payload"))
    message = LEGACY.encode_routes(routed.onward_route, routed.return_route) + payload
    return _encoder.encode(Envelope(routed.return_stream, message))


def decode_routed(data: bytes) -> RoutedMessage:
    """Decodes the data of a stream's message. Raises UnexpectedAnswer if the data is not a routed message."""
    try:
        envelope = _decoder.decode(data)
        message = envelope.message
        onward_route, return_route, at = LEGACY.decode_routes(message, 0, len(message))
        payload = LEGACY.decode_payload(message, 0, at, len(message))
    except (bare.DecodeError, RemoteProtocolError) as error:
        raise UnexpectedAnswer(f"a message of the stream is no routed message: {error}") from error
    return RoutedMessage(onward_route, return_route, payload, envelope.return_stream)
