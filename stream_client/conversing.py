"""Conversing: the parts of a `Conversation` that never wait. The async and the blocking class share them."""

from __future__ import annotations

from collections import deque

from stream_client.core.pushes import PendingResult
from stream_client.errors import ClientError, ConnectionLost
from stream_client.requests import Requests


class Conversing:
    """The client's end of a conversation: its received messages, and the error if the conversation is lost."""

    def __init__(self, session: Requests, service: str) -> None:
        self._session = session
        self._changed: PendingResult | None = None
        self._lost: ClientError | None = None
        self._was_open = False
        self._core = session.core.converse(service)
        self._core.on_change = self._note_change
        self._was_open = self._core.is_open

    @property
    def received(self) -> deque[bytes]:
        """The payloads of the messages that have arrived and that `receive` has not returned yet, oldest first."""
        return self._core.received

    def send_nowait(self, payload: bytes) -> None:
        """Queues a message for sending, without waiting. Raises what `send` raises."""
        self._check()
        self._core.send(payload)

    def close(self) -> None:
        """Ends the conversation. Messages that arrive later are dropped. Safe to call twice."""
        self._session.core.end_conversation(self._core)

    def _check(self) -> None:
        # A new connection does not reopen a conversation.
        if self._lost is not None:
            raise self._lost.with_traceback(None)
        if self._was_open and self._core.error is not None:
            raise self._core.error.with_traceback(None)

    def _note_change(self) -> None:
        if not self._core.is_open and self._was_open:
            closed = self._session.core.connection.closed
            self._lost = closed or ConnectionLost(f"the connection to {self._session.address} ended")
            self._session.core.end_conversation(self._core)
        self._was_open = self._was_open or self._core.is_open
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.finish()
