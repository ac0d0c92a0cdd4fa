"""Two-way messaging over streams: a request goes into the other party's stream, its answer into one's own.

Neither party needs a connection to the other, and either may be away when a message comes for it. The messages
(`routed_messages`) are those of the Elixir bidirectional workers; `Correspondent.reply` does what their PublisherProxy
does inside a node.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Self

from ockam.address import Address, Route, local
from stream_client.arguments import NEW
from stream_client.consume.page import PAGE_MESSAGES
from stream_client.consume.reader import Reader
from stream_client.core.requests import Waiting
from stream_client.errors import ClientError, RequestRefused, UnexpectedAnswer
from stream_client.routed_messages import RoutedMessage, decode_routed, encode_routed
from stream_client.session import Session
from stream_client.streams import Stream, create_streams
from stream_service.extensions import FromIndex, RichMessage


class Correspondent:
    """Correspondent: one party of two-way messaging, with a stream of its own (`inbox`) for the answers.

    strays: how many messages of the inbox `request` has passed over, since they were no routed messages, or answers
    that no request waited for. Made by `StreamClient.correspondent`.
    """

    def __init__(self, session: Session, inbox: Stream) -> None:
        self._session = session
        self._streams: dict[str, Stream] = {}
        self._reader: Reader | None = None
        self._waiting: dict[Address, _Answer] = {}
        self._name = f"asked_{secrets.token_hex(8)}_"
        self._requests = 0
        self.strays = 0
        self.inbox = inbox

    async def send(self, to_stream: str, onward_route: Route, payload: bytes, *, return_route: Route = ()) -> None:
        """Store a message in that stream, which is made if it does not exist. Answers to it come to the inbox."""
        stream = self._streams.get(to_stream)
        if stream is None:
            [stream] = await create_streams(self._session, to_stream)
            self._streams[to_stream] = stream
        await stream.push(encode_routed(RoutedMessage(onward_route, return_route, payload, self.inbox.name)))

    async def reply(self, routed: RoutedMessage, payload: bytes, *, return_route: Route = ()) -> None:
        """Answer a message: into its return stream, along its return route. Raises ValueError where it wants none."""
        if not routed.return_stream:
            raise ValueError("the message names no stream for an answer")
        await self.send(routed.return_stream, routed.return_route, payload, return_route=return_route)

    async def request(
        self, to_stream: str, onward_route: Route, payload: bytes, *, timeout_s: float | None = None
    ) -> RoutedMessage:
        """Send a message and wait for its answer. timeout_s: how long to wait; None: the client's own timeout.

        Raises RequestTimeout; an answer that comes later is a stray.
        """
        # Reading begins before the question goes out: the position behind the answer would else skip it.
        reader = await self._reading()
        self._requests += 1
        address = local(f"{self._name}{self._requests}")
        answer = self._waiting[address] = _Answer()
        try:
            await self.send(to_stream, onward_route, payload, return_route=(address,))
            reader.ask()
            session = self._session
            await session.finished(answer, session.answer_timeout_s if timeout_s is None else timeout_s)
        finally:
            del self._waiting[address]
        assert answer.routed is not None
        return answer.routed

    def routed(self, messages: AsyncIterator[RichMessage]) -> RoutedMessages:
        """The routed messages among the messages of an inbox. messages: a follower or a consumer of the inbox."""
        return RoutedMessages(messages)

    async def _reading(self) -> Reader:
        """The reader of answers. It begins with the first message stored in the inbox after the first request."""
        if self._reader is None:
            try:
                index = await self.inbox.find_index(NEW)
            except RequestRefused:
                # A node without our own protocols cannot tell where its stream ends. The reader then begins with the
                # first message stored, and passes over the old ones as strays.
                index = 0
            # Another task may have made the reader meanwhile.
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
        """Hand each answer to the request that waits for it. Nothing is read while no request waits."""
        try:
            page = reader.take()
        except ClientError as error:
            for answer in list(self._waiting.values()):
                answer.finish(error)
            return
        for message in page.messages:
            self._deliver(message.data)
        if any(not answer.done for answer in self._waiting.values()):
            reader.ask()

    def _deliver(self, data: bytes) -> None:
        """Finish the request that this message of the inbox answers, or count the message as a stray."""
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


class RoutedMessages:
    """An iteration over routed messages. strays: how many other messages it has passed over."""

    def __init__(self, messages: AsyncIterator[RichMessage]) -> None:
        self._messages = messages
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


class _Answer(Waiting):
    __slots__ = ("routed",)

    def __init__(self) -> None:
        super().__init__()
        self.routed: RoutedMessage | None = None
