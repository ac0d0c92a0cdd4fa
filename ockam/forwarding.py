"""Forwarding between nodes: the answers to messages that cannot be forwarded, and the requests that wait for an answer.

Only requests of protocols that are ours alone get such an answer. Real peers never send those, and one of the real
producers publishes every message that it receives, errors too (facts/ockam.md §0.9). Pushes get no answer: an `error`
would leave open whether they were stored, and their sender repeats them by itself. Nothing is sent or received here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import bare
from ockam.address import LOCAL, SHOWN_BYTES_MAX, Address, Route
from ockam.message import HERE, Message
from ockam.protocol import FAILURE, REFUSAL, error_payload, failed_payload

OWN_PREFIX = b"node/"
"""The beginning of the protocol names that are ours alone (docs/wire.md §5)."""
PUSH_TAG = bare.encode("node/stream_push/1", str)
NOT_FORWARDED = "not passed on: "
"""The reason of the `error` if the operator does not allow a destination, or a message has looped, begins like this."""
UNREACHABLE = "no way to "
"""The reason begins like this if the destination could not be called, or its connection has ended. The same request may
succeed later."""
CONNECTION_PREFIX = b"TCP_"
"""The beginning of the private addresses of connections."""
OPEN_REQUESTS_MAX = 10_000
"""The most forwarded requests that are remembered for one connection. Of more, the oldest are forgotten."""


def is_sender_told(message: Message) -> bool:
    """Whether the sender of this message is told when it cannot be forwarded."""
    # The name of the protocol follows its size, which takes one byte.
    payload = message.payload
    return payload[1:6] == OWN_PREFIX and not payload.startswith(PUSH_TAG)


def forward_refused(message: Message, reason: str) -> Message:
    """The answer to a request that this node does not forward."""
    return _answer(message.return_route, error_payload(NOT_FORWARDED + reason[:SHOWN_BYTES_MAX]))


def destination_unreachable(return_route: Route, destination: str, reason: str) -> Message:
    """The answer to a request whose destination cannot be reached at the moment."""
    text = f"{UNREACHABLE}{destination[:SHOWN_BYTES_MAX]}: {reason[:SHOWN_BYTES_MAX]}"
    return _answer(return_route, failed_payload(text))


def is_forward_refused(reason: str) -> bool:
    """Whether this is the reason of an `error` that `forward_refused` made."""
    return reason.startswith(REFUSAL + NOT_FORWARDED)


def is_destination_unreachable(reason: str) -> bool:
    """Whether this is the reason of an `error` that `destination_unreachable` made."""
    return reason.startswith(REFUSAL + FAILURE + UNREACHABLE)


def _answer(route: Route, payload: bytes) -> Message:
    # Without a return route, so that whoever gets it cannot answer it with an error in turn.
    return Message(route, (), payload, HERE)


def has_looped(return_route: Route, is_here: Callable[[Address], bool]) -> bool:
    """Whether a message with this return route has passed through this node before, over a connection that is open.

    Every node puts the address of the connection that a message came over in front of its return route, and no peer can
    prevent that. If there is such an address of ours behind the first hop, the message has been here before.
    is_here: tells whether an address belongs to this node.
    """
    return any(
        hop.type == LOCAL and hop.value.startswith(CONNECTION_PREFIX) and is_here(hop) for hop in return_route[1:]
    )


class OpenRequests:
    """The requests that were forwarded over one connection and have no answer yet, by the return route of each.

    Invariant: there are at most OPEN_REQUESTS_MAX of them, the oldest first.
    """

    __slots__ = ("_routes",)

    def __init__(self) -> None:
        self._routes: dict[Route, None] = {}

    def __bool__(self) -> bool:
        return bool(self._routes)

    def __len__(self) -> int:
        return len(self._routes)

    def note(self, run: Iterable[Message]) -> None:
        """Remember the requests among these messages, which go out now, but for those of this node's own workers."""
        for message in run:
            if message.origin.kind != "local" and is_sender_told(message):
                self._routes[message.return_route] = None
                if len(self._routes) > OPEN_REQUESTS_MAX:
                    del self._routes[next(iter(self._routes))]

    def answered(self, messages: Iterable[Message]) -> None:
        """Forget the requests that these messages answer. The messages have come in over the connection."""
        last: Route | None = None
        for message in messages:
            if message.onward_route is not last:
                last = message.onward_route
                self._routes.pop(last, None)

    def take(self) -> list[Route]:
        """Take the return routes of all requests without an answer; they are forgotten here."""
        routes, self._routes = list(self._routes), {}
        return routes
