"""Two-way messaging of the blocking client: what `correspondent` does, without `await`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from ockam.address import Route
from stream_client import correspondent as async_form
from stream_client.blocking.streams import Stream
from stream_client.errors import UnexpectedAnswer
from stream_client.letters import Letter, decode_letter
from stream_client.shell.driving import drive
from stream_service.extensions import RichMessage


class Correspondent:
    """As `stream_client.Correspondent`."""

    def __init__(self, inner: async_form.Correspondent) -> None:
        self._inner = inner
        self.inbox = Stream(inner.inbox)

    @property
    def strays(self) -> int:
        """How many messages of the inbox `request` has passed over: no letters, or answers that nobody waited for."""
        return self._inner.strays

    def send(self, to_stream: str, onward_route: Route, payload: bytes, *, return_route: Route = ()) -> None:
        """Store a letter in that stream, made if it does not exist; answers to it come to the inbox."""
        drive(self._inner.send(to_stream, onward_route, payload, return_route=return_route))

    def reply(self, letter: Letter, payload: bytes, *, return_route: Route = ()) -> None:
        """Answer a letter: to its return stream, along its return route. Raises ValueError where it wants none."""
        drive(self._inner.reply(letter, payload, return_route=return_route))

    def request(self, to_stream: str, onward_route: Route, payload: bytes, *, timeout_s: float | None = None) -> Letter:
        """Send a letter and wait for its answer. timeout_s: for how long; None: as the client waits for a node.

        Raises RequestTimeout; an answer that comes later is a stray.
        """
        return drive(self._inner.request(to_stream, onward_route, payload, timeout_s=timeout_s))

    def letters(self, messages: Iterator[RichMessage]) -> Letters:
        """The letters among the messages of an inbox, as a follower or a consumer of that stream gives them."""
        return Letters(messages)


class Letters:
    """An iteration over letters. strays: messages that were none, and were passed over."""

    def __init__(self, messages: Iterator[RichMessage]) -> None:
        self._messages = messages
        self.strays = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Letter:
        while True:
            message = next(self._messages)
            try:
                return decode_letter(message.data)
            except UnexpectedAnswer:
                self.strays += 1
