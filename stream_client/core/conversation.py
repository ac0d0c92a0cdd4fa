"""A conversation with one worker of the node: messages back and forth over the client's connection, without I/O.

A request has one answer and is sent again after a reconnect. A conversation has any number of messages both ways, and
only the two parties know what a lost message means. So a conversation that breaks with the connection drops what was
under way, and opens again over the next connection, at a new address and with the service that it began with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ockam.address import Address, Route
from ockam.message import Message
from ockam.protocol import ERROR
from stream_client.core.client_connection import ClientConnection
from stream_client.core.payloads import refusal
from stream_client.core.states_machine import ConversationState, Event, after
from stream_client.errors import ClientClosed, ClientError, ConnectionLost


class CoreConversation:
    """One end of a conversation: the address where its messages arrive, and the route that its own messages take.

    state: see `ConversationState`. error: why the conversation is not open; None if it is open. received: the payloads
    that have arrived and not been taken. on_change: called after a message has arrived and after the state has changed.

    Invariant: `error` is None exactly in the state OPEN, which needs a connection.
    """

    def __init__(self, connection: ClientConnection, service: Route) -> None:
        """service: the route to the worker that receives the first message after every new connection."""
        self.state = ConversationState.BROKEN
        self.error: ClientError | None = ConnectionLost("there is no connection to the node")
        self.address: Address | None = None
        self.received: deque[bytes] = deque()
        self.on_change: Callable[[], None] = lambda: None
        self._connection = connection
        self._service = service
        self._route = service

    @property
    def is_open(self) -> bool:
        """Whether messages can be sent."""
        return self.state is ConversationState.OPEN

    def check(self) -> None:
        """Raise AssertionError if the invariant does not hold."""
        assert (self.error is None) == self.is_open
        assert not self.is_open or (self._connection.wire is not None and self.address is not None)

    def send(self, payload: bytes) -> None:
        """Send a message: the first one to the service, the later ones to the worker that answered last.

        Raises the reason why the conversation is not open, and RequestRefused if the message is too large.
        """
        if self.error is not None:
            raise self.error
        assert self.address is not None
        refused = self._connection.put_frame(self._connection.header(self._route, self.address), payload)
        if refused is not None:
            raise refused

    def take(self) -> bytes | None:
        """Return the oldest received message; None if there is none. Raises the error if it is an `error` message."""
        if not self.received:
            return None
        payload = self.received.popleft()
        if ERROR.is_in(payload):
            raise refusal(payload)
        return payload

    def open(self, address: Address, event: Event) -> None:
        """Open the conversation over a new connection, at a new address.

        At the old address, late messages of the earlier connection would be taken for new ones.
        """
        self.state = after(self.state, event)
        self.error = None
        self.address, self._route = address, self._service
        self.received.clear()
        self.on_change()

    def break_off(self, error: ClientError, event: Event) -> None:
        """Note that the connection or the route is lost, so no messages pass until the conversation is opened again."""
        self.state = after(self.state, event)
        self.error = error
        self.on_change()

    def close(self, error: ClientError | None = None) -> None:
        """End the conversation for good. Messages that still come are dropped."""
        self.state = after(self.state, Event.CLOSED)
        self.error = error or self.error or ClientClosed("the conversation has been closed")

    def arrived(self, message: Message) -> None:
        """Keep a received message. Later messages of ours go to the worker that sent this message."""
        self._route = message.return_route
        self.received.append(message.payload)
        self.on_change()
