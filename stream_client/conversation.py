"""Messages back and forth with one service of a node, over the client's connection.

It waits and sends; what happens when the connection ends is decided in `core.conversation`.
"""

from __future__ import annotations

from collections import deque
from typing import TypeVar

from ockam.protocol import Protocol as WireProtocol
from ockam.protocol import ProtocolError
from stream_client.core.requests import Waiting
from stream_client.errors import ClientError, ConnectionLost, NodeUnreachable, RequestTimeout, UnexpectedAnswer
from stream_client.session import Session

UNSENT_BYTES_MAX = 64 * 1024
"""A conversation with this number of bytes unsent waits before it sends more."""

Q = TypeVar("Q")
A = TypeVar("A")


class Conversation:
    """A conversation with one service. Made by `StreamClient.converse`, to be ended by `close`.

    It ends when its connection does, with ConnectionLost from each later call; a program that goes on begins another
    one, and `opened` waits until the client has made the next connection.
    """

    def __init__(self, session: Session, service: str) -> None:
        self._session = session
        self._changed: Waiting | None = None
        self._lost: ClientError | None = None
        self._was_open = False
        self._core = session.core.converse(service)
        self._core.on_change = self._note_change
        self._was_open = self._core.is_open

    @property
    def received(self) -> deque[bytes]:
        """The messages that have come and were not received by the program."""
        return self._core.received

    async def opened(self, timeout_s: float | None = None) -> None:
        """Wait until messages can be sent. Raises NodeUnreachable where the next attempt to connect fails."""
        connection = self._session.core.connection
        while not self._core.is_open:
            self._check()
            # An attempt that has failed already says nothing: the node may have come back since.
            attempted = connection.attempted()
            await self._session.shell.wait(attempted, timeout_s)
            if not attempted.done:
                raise NodeUnreachable(f"{self._session.address} could not be reached for {timeout_s:g} s")
            connection.check_open()
            if not self._core.is_open:
                raise connection.trouble or NodeUnreachable(f"{self._session.address} cannot be reached")
        self._check()

    async def send(self, payload: bytes) -> None:
        """Send a message; waits first while much is unsent. Raises ConnectionLost, and RequestRefused if too large."""
        connection = self._session.core.connection
        while self._core.is_open and connection.outgoing_bytes > UNSENT_BYTES_MAX:
            await self._session.shell.wait(connection.taken())
        self.send_nowait(payload)
        # blocking only: self._session.shell.give_way()

    def send_nowait(self, payload: bytes) -> None:
        """As `send`, without waiting: the message goes out with the next ones, however much is unsent."""
        self._check()
        self._core.send(payload)

    async def receive(self, timeout_s: float | None = None) -> bytes | None:
        """The next message; None where none came in that time.

        Raises ConnectionLost, and the error that an `error` of the other side says, such as RequestRefused.
        """
        # Messages that came before the connection ended are whole, and are received first.
        if not self._core.received:
            self._check()
            self._changed = Waiting()
            await self._session.shell.wait(self._changed, timeout_s)
            if not self._core.received:
                self._check()
        return self._core.take()

    async def ask(self, protocol: WireProtocol[Q, A], request: Q, timeout_s: float) -> A:
        """Send a request and receive its one answer. Raises RequestRefused, RequestTimeout, UnexpectedAnswer."""
        await self.send(protocol.encode_request(request))
        payload = await self.receive(timeout_s)
        if payload is None:
            raise RequestTimeout(f"{self._session.address} has not answered for {timeout_s:g} s")
        try:
            return protocol.decode_response(payload)
        except ProtocolError as error:
            raise UnexpectedAnswer(f"not an answer to a {protocol.name}: {error}") from error

    def close(self) -> None:
        """Drop the messages that still come. Safe to repeat."""
        self._session.core.end_conversation(self._core)

    def _check(self) -> None:
        """Raises the reason why the conversation has ended. A connection made since is for another conversation."""
        if self._lost is not None:
            raise self._lost
        if self._was_open and self._core.error is not None:
            raise self._core.error

    def _note_change(self) -> None:
        if not self._core.is_open and self._was_open:
            closed = self._session.core.connection.closed
            self._lost = closed or ConnectionLost(f"the connection to {self._session.address} ended")
            self._session.core.end_conversation(self._core)
        self._was_open = self._was_open or self._core.is_open
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.finish()
