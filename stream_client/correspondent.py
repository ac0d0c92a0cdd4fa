"""Two-way messaging over streams: each party stores its messages in the stream that the other party reads.

A routed message is a message with routes, stored as the data of a stream's message. The format is that of the
bidirectional workers of Ockam's Elixir implementation (facts/ockam.md §6.3), whose PublisherProxy does what
`Correspondent.reply` does:

    +------------------------+-------------+---------------------------------------------------+
    | return_stream: string  | size: uint  | version 1 | onward_route | return_route | payload |
    | where answers go       |             | the legacy framing's message, without its length  |
    +------------------------+-------------+---------------------------------------------------+

The inner message always has version 1 of the legacy framing (that of Ockam before June 2024), whatever framing the
connection uses.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterable
from contextlib import suppress
from typing import Self

import msgspec

import bare
from ockam.actors.address import Address, Route, local
from ockam.errors import RemoteProtocolError
from ockam.transport.wire_legacy import LEGACY
from stream_client.arguments import NEW, to_bytes
from stream_client.consume.page import PAGE_MESSAGES
from stream_client.consume.reader import Reader
from stream_client.core.pushes import PendingResult
from stream_client.errors import ClientError, InvalidArgument, RequestRefused, RequestTimeout, UnexpectedAnswer, doubted
from stream_client.session import ClientSession
from stream_client.streams import Stream, create_streams
from stream_service.extensions import FromIndex, RichMessage


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


class Correspondent:
    """One party of two-way messaging over streams. `StreamClient.correspondent` returns a Correspondent.

    inbox: the stream in which the other parties store their answers.
    strays: the number of messages in the inbox that answered no waiting request, or that were not routed messages.
    """

    def __init__(self, session: ClientSession, inbox: Stream) -> None:
        self._waiting: dict[Address, _RoutedAnswer] = {}
        self._name = f"asked_{secrets.token_hex(8)}_"
        self._requests = 0
        self.strays = 0
        self._session = session
        self._streams: dict[str, Stream] = {}
        self._reader: Reader | None = None
        self.inbox = inbox

    async def send(self, to_stream: str, onward_route: Route, payload: bytes, *, return_route: Route = ()) -> None:
        """Stores a message in the stream `to_stream`, which is created if it does not exist. Answers go to the inbox.

        onward_route: the route, at the other party, to the worker that receives the message.
        return_route: the route, at this party, to the worker that receives an answer.
        """
        stream = self._streams.get(to_stream)
        if stream is None:
            [stream] = await create_streams(self._session, to_stream)
            self._streams[to_stream] = stream
        await stream.push(encode_routed(RoutedMessage(onward_route, return_route, payload, self.inbox.name)))

    async def reply(self, routed: RoutedMessage, payload: bytes, *, return_route: Route = ()) -> None:
        """Answers the received message `routed`, in the stream that it names for answers. `return_route` is as in
        `send`. Raises ValueError if the message names no stream."""
        if not routed.return_stream:
            raise ValueError("the message names no stream for an answer")
        await self.send(routed.return_stream, routed.return_route, payload, return_route=return_route)

    async def request(
        self, to_stream: str, onward_route: Route, payload: bytes, *, timeout_s: float | None = None
    ) -> RoutedMessage:
        """Sends a message as `send` does, and returns its answer. Raises RequestTimeout if the message is stored and
        nobody answers it within `timeout_s` seconds (None: the client's `answer_timeout_s`). A later answer counts in
        `strays`."""
        # The reader must know where the inbox ends before the request is sent. Otherwise it could begin after the
        # answer.
        reader = await self._reading()
        self._requests += 1
        address = local(f"{self._name}{self._requests}")
        answer = self._waiting[address] = _RoutedAnswer()
        try:
            await self.send(to_stream, onward_route, payload, return_route=(address,))
            reader.ask()
            wait_s = self._session.answer_timeout_s if timeout_s is None else timeout_s
            await self._session.shell.wait(answer, wait_s)
        finally:
            del self._waiting[address]
        if answer.error is not None:
            # The inbox cannot be read. The request itself is stored.
            raise doubted(answer.error).with_traceback(None)
        if answer.routed is None:
            text = f"nobody who reads {to_stream!r} has answered for {wait_s:g} s; the request is stored there"
            raise RequestTimeout(text)
        return answer.routed

    def routed(self, messages: AsyncIterable[RichMessage]) -> RoutedMessages:
        """Returns an iterator over the routed messages of `messages`, a Follower or a Consumer of the inbox."""
        return RoutedMessages(messages)

    async def _reading(self) -> Reader:
        """Returns the reader of the inbox. The first call creates it, at the end that the inbox has at that time."""
        if self._reader is None:
            try:
                index = await self.inbox.find_index(NEW)
            except RequestRefused:
                # A node without our own protocols cannot report where its stream ends. The reader then begins with the
                # first message stored, and counts all old messages as strays.
                index = 0
            # Another task may have made the reader during the wait above.
            if self._reader is None:
                self._reader = Reader(
                    self._session,
                    self.inbox.handle,
                    FromIndex(index),
                    page_messages=PAGE_MESSAGES,
                    waits=True,
                    on_page=self._arrived,
                )
        return self._reader

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
        with suppress(UnexpectedAnswer):
            routed = decode_routed(data)
            answer = self._waiting.get(routed.onward_route[0]) if routed.onward_route else None
            if answer is not None and not answer.done:
                answer.routed = routed
                answer.finish()
                return
        self.strays += 1


class _RoutedAnswer(PendingResult):
    __slots__ = ("routed",)

    def __init__(self) -> None:
        super().__init__()
        self.routed: RoutedMessage | None = None


class RoutedMessages:
    """An iterator over the routed messages of a stream. It skips all other messages, which `strays` counts."""

    def __init__(self, messages: AsyncIterable[RichMessage]) -> None:
        self._messages = aiter(messages)
        self.strays = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RoutedMessage:
        while True:
            message = await anext(self._messages)
            try:
                return decode_routed(message.data)
            except UnexpectedAnswer:
                self.strays += 1
