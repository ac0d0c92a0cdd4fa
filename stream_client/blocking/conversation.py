# Generated from stream_client/conversation.py by tools/generate_blocking.py; do not edit.
"""Conversation: an exchange of messages with one service of a node. `core.conversation` keeps its state, without
I/O."""

from __future__ import annotations

from typing import TypeVar

from ockam.protocol import Protocol as WireProtocol
from ockam.protocol import ProtocolError
from stream_client.blocking.session import ClientSession
from stream_client.conversing import Conversing
from stream_client.core.conversation import UNSENT_BYTES_MAX
from stream_client.core.pushes import PendingResult
from stream_client.errors import NodeUnreachable, RequestTimeout, UnexpectedAnswer

Q = TypeVar("Q")
A = TypeVar("A")


class Conversation(Conversing):
    """An exchange of any number of messages with one service of a node. `StreamClient.converse` begins a conversation.

    A conversation ends when `close` is called or the connection is lost. Every `send` after the loss raises
    ConnectionLost. `receive` first returns the messages that have arrived, and then raises ConnectionLost. To continue,
    begin another conversation and wait for its `opened`, which returns after the client has reconnected.
    """

    _session: ClientSession

    def opened(self, timeout_s: float | None = None) -> None:
        """Waits until messages can be sent. Raises NodeUnreachable if the next attempt to connect fails or takes longer
        than `timeout_s` seconds; None: no limit."""
        connection = self._session.core.connection
        while not self._core.is_open:
            self._check()
            # Wait for the next attempt to connect. The result of an earlier attempt may be out of date, since the node
            # may run again.
            attempted = connection.attempted()
            self._session.shell.wait(attempted, timeout_s)
            if not attempted.done:
                raise NodeUnreachable(f"{self._session.address} could not be reached for {timeout_s:g} s")
            connection.check_open()
            if not self._core.is_open:
                raise connection.trouble or NodeUnreachable(f"{self._session.address} cannot be reached")
        self._check()

    def send(self, payload: bytes) -> None:
        """Sends a message, after a wait while the connection has more than UNSENT_BYTES_MAX unsent bytes. Raises
        ConnectionLost, and RequestRefused if the message is too large."""
        connection = self._session.core.connection
        while self._core.is_open and connection.outgoing_bytes > UNSENT_BYTES_MAX:
            self._session.shell.wait(connection.taken())
        self.send_nowait(payload)
        self._session.shell.yield_control()

    def receive(self, timeout_s: float | None = None) -> bytes | None:
        """Returns the payload of the next message, or None if none arrives within `timeout_s` seconds (None: no limit).
        Raises ConnectionLost, and the error of an `error` message, for example RequestRefused."""
        # Messages that arrived before the connection ended are complete, so the program receives them first.
        if not self._core.received:
            self._check()
            self._changed = PendingResult()
            self._session.shell.wait(self._changed, timeout_s)
            if not self._core.received:
                self._check()
        return self._core.take()

    def ask(self, protocol: WireProtocol[Q, A], request: Q, timeout_s: float) -> A:
        """Sends a request, and decodes the next received message as its answer. Raises RequestTimeout if no message
        arrives within `timeout_s` seconds, and RequestRefused, UnexpectedAnswer and ConnectionLost."""
        self.send(protocol.encode_request(request))
        payload = self.receive(timeout_s)
        if payload is None:
            raise RequestTimeout(f"{self._session.address} has not answered for {timeout_s:g} s")
        try:
            return protocol.decode_response(payload)
        except ProtocolError as error:
            raise UnexpectedAnswer(f"not an answer to a {protocol.name}: {error}") from error
