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

import secrets

import msgspec

import bare
from ockam.actors.address import Address, Route, local
from ockam.errors import RemoteProtocolError
from ockam.transport.wire_legacy import LEGACY
from stream_client.arguments import to_bytes
from stream_client.consume.page import PAGE_MESSAGES
from stream_client.consume.reader import Reader
from stream_client.core.partition_handle import PartitionHandle
from stream_client.core.pushes import PendingResult
from stream_client.errors import ClientError, InvalidArgument, UnexpectedAnswer
from stream_client.requests import Requests
from stream_service.extensions import FromIndex


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


class RoutedAnswers:
    """The requests of one correspondent that wait for an answer.

    strays: the number of messages in the inbox that answered no waiting request, or that were not routed messages.
    """

    def __init__(self) -> None:
        self._waiting: dict[Address, _RoutedAnswer] = {}
        self._name = f"asked_{secrets.token_hex(8)}_"
        self._requests = 0
        self.strays = 0

    def _wait_for(self) -> tuple[Address, _RoutedAnswer]:
        """Returns a new address and the answer awaited at it. The caller deletes the address from `_waiting`."""
        self._requests += 1
        address = local(f"{self._name}{self._requests}")
        answer = self._waiting[address] = _RoutedAnswer()
        return address, answer

    def _read_inbox(self, session: Requests, inbox: PartitionHandle, index: int) -> Reader:
        return Reader(session, inbox, FromIndex(index), page_messages=PAGE_MESSAGES, waits=True, on_page=self._arrived)

    def _arrived(self, reader: Reader) -> None:
        # Without a page no answer can come, so every waiting request fails with the error.
        try:
            page = reader.take()
        except ClientError as error:
            for answer in list(self._waiting.values()):
                answer.finish(error)
            return
        # The position means nothing in an inbox that was made again.
        if page.created_us is not None and page.created_us != reader.created_us:
            if reader.created_us:
                reader.begin_anew()
            reader.created_us = page.created_us
        for message in page.messages:
            self._deliver(message.data)
        # An answer that has not come yet will be in a later page.
        if any(not answer.done for answer in self._waiting.values()):
            reader.ask()

    def _deliver(self, data: bytes) -> None:
        """Finishes the request that this data of a message answers. Without such a request, the message is a stray."""
        try:
            routed = decode_routed(data)
        except UnexpectedAnswer:
            self.strays += 1
            return
        answer = self._waiting.get(routed.onward_route[0]) if routed.onward_route else None
        if answer is None or answer.done:
            self.strays += 1
        else:
            answer.routed = routed
            answer.finish()


class _RoutedAnswer(PendingResult):
    __slots__ = ("routed",)

    def __init__(self) -> None:
        super().__init__()
        self.routed: RoutedMessage | None = None
