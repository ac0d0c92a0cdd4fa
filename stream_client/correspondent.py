"""Two-way messaging over streams: letters into others' inboxes, answers into one's own (`letters`).

A party needs no connection to the other one, and both may be away when they are written to. Wire-compatible with the
Elixir bidirectional workers; what carries a letter on inside a node (the Elixir PublisherProxy) is `reply` here.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Self

from ockam.address import Address, Route, local
from stream_client.consume.follower import PAGE_MESSAGES
from stream_client.consume.reader import Reader
from stream_client.core.requests import Waiting
from stream_client.errors import ClientError, RequestRefused, UnexpectedAnswer
from stream_client.letters import Letter, decode_letter, encode_letter
from stream_client.starts import NEW
from stream_client.streams import Stream
from stream_service.extensions import FromIndex, RichMessage

if TYPE_CHECKING:
    from stream_client.client import StreamClient


class Correspondent:
    """One party, whose answers come to the stream `inbox`. Made by `StreamClient.correspondent`."""

    def __init__(self, client: StreamClient, inbox: Stream) -> None:
        self._client = client
        self._streams: dict[str, Stream] = {}
        self._reader: Reader | None = None
        self._waiting: dict[Address, _Answer] = {}
        self._name = f"asked_{secrets.token_hex(8)}_"
        self._requests = 0
        self._strays = 0
        self.inbox = inbox

    @property
    def strays(self) -> int:
        """How many messages of the inbox `request` has passed over: no letters, or answers that nobody waited for."""
        return self._strays

    async def send(self, to_stream: str, onward_route: Route, payload: bytes, *, return_route: Route = ()) -> None:
        """Store a letter in that stream, made if it does not exist; answers to it come to the inbox."""
        stream = self._streams.get(to_stream)
        if stream is None:
            stream = self._streams[to_stream] = await self._client.create(to_stream)
        await stream.push(encode_letter(Letter(onward_route, return_route, payload, self.inbox.name)))

    async def reply(self, letter: Letter, payload: bytes, *, return_route: Route = ()) -> None:
        """Answer a letter: to its return stream, along its return route. Raises ValueError where it wants none."""
        if not letter.return_stream:
            raise ValueError("the letter names no stream for an answer")
        await self.send(letter.return_stream, letter.return_route, payload, return_route=return_route)

    async def request(
        self, to_stream: str, onward_route: Route, payload: bytes, *, timeout_s: float | None = None
    ) -> Letter:
        """Send a letter and wait for its answer. timeout_s: for how long; None: as the client waits for a node.

        Raises RequestTimeout; an answer that comes later is a stray.
        """
        reader = await self._reading()
        self._requests += 1
        address = local(f"{self._name}{self._requests}")
        answer = self._waiting[address] = _Answer()
        try:
            await self.send(to_stream, onward_route, payload, return_route=(address,))
            reader.ask()
            session = self.inbox.session
            await session.finished(answer, session.answer_timeout_s if timeout_s is None else timeout_s)
        finally:
            del self._waiting[address]
        assert answer.letter is not None
        return answer.letter

    def letters(self, messages: AsyncIterator[RichMessage]) -> Letters:
        """The letters among the messages of an inbox, as a follower or a consumer of that stream gives them."""
        return Letters(messages)

    async def _reading(self) -> Reader:
        """The reader of answers: of all that is stored in the inbox from the first request on."""
        if self._reader is None:
            try:
                index = await self.inbox.find_index(NEW)
            except RequestRefused:
                # A node without our own protocols: what is there already is passed over.
                index = 0
            if self._reader is None:
                self._reader = Reader(
                    self.inbox.session,
                    self.inbox.handle,
                    FromIndex(index),
                    page_messages=PAGE_MESSAGES,
                    waits=True,
                    on_page=self._arrived,
                )
        return self._reader

    def _arrived(self, reader: Reader) -> None:
        """Hand each answer to who waits for it. Nothing is read while nobody does."""
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
        try:
            letter = decode_letter(data)
        except UnexpectedAnswer:
            self._strays += 1
            return
        answer = self._waiting.get(letter.onward_route[0]) if letter.onward_route else None
        if answer is None or answer.done:
            self._strays += 1
        else:
            answer.letter = letter
            answer.finish()


class Letters:
    """An iteration over letters. strays: messages that were none, and were passed over."""

    def __init__(self, messages: AsyncIterator[RichMessage]) -> None:
        self._messages = messages
        self.strays = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Letter:
        while True:
            message = await anext(self._messages)
            try:
                return decode_letter(message.data)
            except UnexpectedAnswer:
                self.strays += 1


class _Answer(Waiting):
    __slots__ = ("letter",)

    def __init__(self) -> None:
        super().__init__()
        self.letter: Letter | None = None
