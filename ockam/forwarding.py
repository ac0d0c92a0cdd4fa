"""What is said to the sender of a message that cannot go on: the way it names is not allowed, or is gone.

Only requests by names of our own are answered so. Real peers never send those, and one of the real producers takes
whatever comes to it for a message and publishes it (facts/ockam.md §0.9). Pushes are left out: an `error` would leave
open whether they were stored, and their sender sends them again by itself. Nothing is sent or received here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import bare
from ockam.address import LOCAL, SHOWN_BYTES_MAX, Address, Route
from ockam.message import HERE, Message
from ockam.protocol import FAILURE, REFUSAL, error_payload, failed_payload

OWN_PREFIX = b"node/"
"""How the protocol names begin that are ours alone (docs/wire.md §5)."""
PUSH_TAG = bare.encode("node/stream_push/1", str)
NOT_FORWARDED = "not passed on: "
"""How the reason goes on where the operator does not allow a destination, or a message has gone in a circle."""
UNREACHABLE = "no way to "
"""And where the destination could not be called, or its connection ended; the same may succeed later."""
CONNECTION_PREFIX = b"TCP_"
"""How the private addresses of connections begin."""
OPEN_REQUESTS_MAX = 10_000
"""How many requests that were passed on are remembered for each connection; of more, the oldest are forgotten."""


def is_sender_told(message: Message) -> bool:
    """Whether its sender learns that it does not go on. The name of a protocol follows its size, which is one byte."""
    payload = message.payload
    return payload[1:6] == OWN_PREFIX and not payload.startswith(PUSH_TAG)


def forward_refused(message: Message, reason: str) -> Message:
    """The answer to a request that this node does not pass on."""
    return _answer(message.return_route, error_payload(NOT_FORWARDED + reason[:SHOWN_BYTES_MAX]))


def destination_unreachable(return_route: Route, destination: str, reason: str) -> Message:
    """The answer to a request whose destination cannot be reached just now."""
    text = f"{UNREACHABLE}{destination[:SHOWN_BYTES_MAX]}: {reason[:SHOWN_BYTES_MAX]}"
    return _answer(return_route, failed_payload(text))


def is_forward_refused(reason: str) -> bool:
    """Whether the reason of an `error` is one of those that `forward_refused` gives."""
    return reason.startswith(REFUSAL + NOT_FORWARDED)


def is_destination_unreachable(reason: str) -> bool:
    """Whether the reason of an `error` is one of those that `destination_unreachable` gives."""
    return reason.startswith(REFUSAL + FAILURE + UNREACHABLE)


def _answer(route: Route, payload: bytes) -> Message:
    # Without a return route, so that whoever gets it cannot answer it with an error in turn.
    return Message(route, (), payload, HERE)


def has_looped(return_route: Route, is_here: Callable[[Address], bool]) -> bool:
    """Whether a message that came along this way has passed through this node before, over a connection still open.

    Every node puts the connection that a message came over in front of its way back, and a peer cannot take it off. So
    one of ours behind the first says that the message has been here. is_here: whether an address is one of this node.
    """
    return any(
        hop.type == LOCAL and hop.value.startswith(CONNECTION_PREFIX) and is_here(hop) for hop in return_route[1:]
    )


class OpenRequests:
    """The requests passed on over one connection that have no answer yet, by the return route that it will come along.

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
        """These messages go out now; those of this node's own workers are not its business."""
        for message in run:
            if message.origin.kind != "local" and is_sender_told(message):
                self._routes[message.return_route] = None
                if len(self._routes) > OPEN_REQUESTS_MAX:
                    del self._routes[next(iter(self._routes))]

    def answered(self, messages: Iterable[Message]) -> None:
        """These have come back over the connection."""
        last: Route | None = None
        for message in messages:
            if message.onward_route is not last:
                last = message.onward_route
                self._routes.pop(last, None)

    def take(self) -> list[Route]:
        """All that have no answer; they are forgotten."""
        routes, self._routes = list(self._routes), {}
        return routes
