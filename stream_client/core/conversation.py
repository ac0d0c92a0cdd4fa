"""CoreConversation: an exchange of messages with one worker of the node, over the client's connection. Does no I/O.

Only the two parties know the meaning of a lost message, so nothing is sent again. Over the next connection the
conversation opens again, with a new return address, and its first message goes to the service again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ockam.actors.address import Address, Route
from ockam.actors.message import Message
from ockam.protocol import ERROR
from stream_client.core.client_connection import ClientConnection
from stream_client.core.payloads import refusal
from stream_client.errors import ClientClosed, ClientError, ConnectionLost

UNSENT_BYTES_MAX = 64 * 1024
"""While the connection has more unsent bytes than this, the messages of a conversation wait."""


class CoreConversation:
    """One client's side of a conversation with a worker of the node.

    error: why no message can be sent; None while the conversation is open.
    address: the return address of the messages sent; None before the first connection.
    is_closed: whether the program has ended the conversation, or the client has ended.
    received: the payloads that have arrived and that `take` has not returned yet.
    on_change: a function called after a message has arrived and after a change of the state.

    Invariant: while `error` is None, the conversation is open, there is a connection, and `address` is set.
    """

    def __init__(self, connection: ClientConnection, service: Route) -> None:
        """service: the route to the worker that receives the first message after every new connection."""
        self.is_closed = False
        self.error: ClientError | None = ConnectionLost("there is no connection to the node")
        self.address: Address | None = None
        self.received: deque[bytes] = deque()
        self.on_change: Callable[[], None] = lambda: None
        self._connection = connection
        self._service = service
        self._route = service

    @property
    def is_open(self) -> bool:
        return self.error is None

    def check(self) -> None:
        assert not (self.is_open and self.is_closed)
        assert not self.is_open or (self._connection.wire is not None and self.address is not None)

    def send(self, payload: bytes) -> None:
        """Sends a message: the first one to the service, later ones to the worker that sent the latest received
        message. Raises `error` if the conversation is not open, and RequestRefused if the message is too large."""
        if self.error is not None:
            raise self.error.with_traceback(None)
        assert self.address is not None
        refused = self._connection.put_frame(self._connection.header(self._route, self.address), payload)
        if refused is not None:
            raise refused

    def take(self) -> bytes | None:
        """Removes and returns the oldest received payload; None if there is none. Raises a received `error`."""
        if not self.received:
            return None
        payload = self.received.popleft()
        if ERROR.is_in(payload):
            raise refusal(payload)
        return payload

    def open(self, address: Address) -> None:
        """Opens the conversation over a new connection, with a new return address. Unread messages are dropped."""
        assert not self.is_closed, "a closed conversation opened again"
        self.error = None
        self.address, self._route = address, self._service
        self.received.clear()
        self.on_change()

    def break_off(self, error: ClientError) -> None:
        assert not self.is_closed, "a closed conversation was lost"
        self.error = error
        self.on_change()

    def close(self, error: ClientError | None = None) -> None:
        """Ends the conversation. Later calls of `send` raise `error`; None: the present `error`, or ClientClosed."""
        self.is_closed = True
        self.error = error or self.error or ClientClosed("the conversation has been closed")

    def arrived(self, message: Message) -> None:
        """Stores a received message. Our later messages go to the worker that sent it."""
        self._route = message.return_route
        self.received.append(message.payload)
        self.on_change()
