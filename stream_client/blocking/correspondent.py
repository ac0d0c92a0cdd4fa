# Generated from stream_client/correspondent.py by tools/generate_blocking.py; do not edit.
"""Two-way messaging over streams: each party stores its messages in the stream that the other party reads.

The messages have the format of the bidirectional workers of Ockam's Elixir implementation (`routed_messages`).
`Correspondent.reply` does what its PublisherProxy does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from ockam.actors.address import Route
from stream_client.arguments import NEW
from stream_client.blocking.session import ClientSession
from stream_client.blocking.streams import Stream, create_streams
from stream_client.consume.reader import Reader
from stream_client.errors import RequestRefused, RequestTimeout, UnexpectedAnswer, doubted
from stream_client.routed_messages import RoutedAnswers, RoutedMessage, decode_routed, encode_routed
from stream_service.extensions import RichMessage


class Correspondent(RoutedAnswers):
    """One party of two-way messaging over streams. `StreamClient.correspondent` returns a Correspondent.

    inbox: the stream in which the other parties store their answers.
    strays: the number of messages in the inbox that answered no waiting request, or that were not routed messages.
    """

    def __init__(self, session: ClientSession, inbox: Stream) -> None:
        super().__init__()
        self._session = session
        self._streams: dict[str, Stream] = {}
        self._reader: Reader | None = None
        self.inbox = inbox

    def send(self, to_stream: str, onward_route: Route, payload: bytes, *, return_route: Route = ()) -> None:
        """Stores a message in the stream `to_stream`, which is created if it does not exist. Answers go to the inbox.

        onward_route: the route, at the other party, to the worker that receives the message.
        return_route: the route, at this party, to the worker that receives an answer.
        """
        stream = self._streams.get(to_stream)
        if stream is None:
            [stream] = create_streams(self._session, to_stream)
            self._streams[to_stream] = stream
        stream.push(encode_routed(RoutedMessage(onward_route, return_route, payload, self.inbox.name)))

    def reply(self, routed: RoutedMessage, payload: bytes, *, return_route: Route = ()) -> None:
        """Answers the received message `routed`, in the stream that it names for answers. `return_route` is as in
        `send`. Raises ValueError if the message names no stream."""
        if not routed.return_stream:
            raise ValueError("the message names no stream for an answer")
        self.send(routed.return_stream, routed.return_route, payload, return_route=return_route)

    def request(
        self, to_stream: str, onward_route: Route, payload: bytes, *, timeout_s: float | None = None
    ) -> RoutedMessage:
        """Sends a message as `send` does, and returns its answer. Raises RequestTimeout if the message is stored and
        nobody answers it within `timeout_s` seconds (None: the client's `answer_timeout_s`). A later answer counts in
        `strays`."""
        # The reader must know where the inbox ends before the request is sent. Otherwise it could begin after the
        # answer.
        reader = self._reading()
        address, answer = self._wait_for()
        try:
            self.send(to_stream, onward_route, payload, return_route=(address,))
            reader.ask()
            wait_s = self._session.answer_timeout_s if timeout_s is None else timeout_s
            self._session.shell.wait(answer, wait_s)
        finally:
            del self._waiting[address]
        if answer.error is not None:
            # The inbox cannot be read. The request itself is stored.
            raise doubted(answer.error).with_traceback(None)
        if answer.routed is None:
            text = f"nobody who reads {to_stream!r} has answered for {wait_s:g} s; the request is stored there"
            raise RequestTimeout(text)
        return answer.routed

    def routed(self, messages: Iterable[RichMessage]) -> RoutedMessages:
        """Returns an iterator over the routed messages of `messages`, a Follower or a Consumer of the inbox."""
        return RoutedMessages(messages)

    def _reading(self) -> Reader:
        """Returns the reader of the inbox. The first call creates it, at the end that the inbox has at that time."""
        if self._reader is None:
            try:
                index = self.inbox.find_index(NEW)
            except RequestRefused:
                # A node without our own protocols cannot report where its stream ends. The reader then begins with the
                # first message stored, and counts all old messages as strays.
                index = 0
            # Another task may have made the reader during the wait above.
            if self._reader is None:
                self._reader = self._read_inbox(self._session, self.inbox.handle, index)
        return self._reader


class RoutedMessages:
    """An iterator over the routed messages of a stream. It skips all other messages, which `strays` counts."""

    def __init__(self, messages: Iterable[RichMessage]) -> None:
        self._messages = iter(messages)
        self.strays = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RoutedMessage:
        while True:
            message = next(self._messages)
            try:
                return decode_routed(message.data)
            except UnexpectedAnswer:
                self.strays += 1
