"""Forwarding between nodes: answers requests that cannot be forwarded, and remembers unanswered requests.
RemoteStreams, LinkEnd: the interfaces of a cluster, whose other nodes serve streams, and of the links to these nodes.
The clients import this module, so it imports neither trio nor structlog, which a blocking client does without.

Only requests of our own protocols (`node/…`) get such an answer: one of the real producers publishes every message that
it receives (facts/ockam.md §0.9). Pushes get none: an error would not tell whether the push was stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import bare
from ockam.actors.address import LOCAL, SHOWN_BYTES_MAX, Address, Route
from ockam.actors.message import HERE, Message
from ockam.protocol import FAILURE, REFUSAL, error_payload, failed_payload

OWN_PREFIX = b"node/"
"""The first bytes of the name of each protocol that this project has added (docs/wire.md §5)."""
PUSH_TAGS = (bare.encode("node/stream_push/1", str), bare.encode("node/push_batch/1", str))
PARTS_TAG, MORE = bare.encode("node/stream_pull/4", str), b"\1"
NOT_FORWARDED = "not passed on: "
"""The first words of the reason in an `error` for a message that this node refuses to forward."""
UNREACHABLE = "no way to "
"""The first words of the reason in an `error` for an unreachable destination. The request can succeed later."""
CONNECTION_PREFIX = b"TCP_"
OPEN_REQUESTS_MAX = 10_000
"""The most unanswered forwarded requests that are remembered for one connection. The oldest are forgotten first."""


def reports_to_sender(message: Message) -> bool:
    # The payload begins with the size of the protocol name, one byte, and the name.
    payload = message.payload
    return payload[1:6] == OWN_PREFIX and not payload.startswith(PUSH_TAGS)


def has_more(payload: bytes) -> bool:
    """Whether a payload is a part of an answer that another part follows (docs/wire.md §5, pull in parts)."""
    return payload.endswith(MORE) and payload.startswith(PARTS_TAG)


def forward_refused(message: Message, reason: str) -> Message:
    return _answer(message.return_route, error_payload(NOT_FORWARDED + reason[:SHOWN_BYTES_MAX]))


def destination_unreachable(return_route: Route, destination: str, reason: str) -> Message:
    text = f"{UNREACHABLE}{destination[:SHOWN_BYTES_MAX]}: {reason[:SHOWN_BYTES_MAX]}"
    return _answer(return_route, failed_payload(text))


def is_forward_refused(reason: str) -> bool:
    return reason.startswith(REFUSAL + NOT_FORWARDED)


def is_destination_unreachable(reason: str) -> bool:
    return reason.startswith(REFUSAL + FAILURE + UNREACHABLE)


def _answer(route: Route, payload: bytes) -> Message:
    # The answer has no return route, so that its receiver cannot answer it with another error.
    return Message(route, (), payload, HERE)


def through(connection: Address, message: Message) -> Message:
    return Message((connection, *message.onward_route[1:]), message.return_route, message.payload, message.origin)


def has_looped(return_route: Route, is_here: Callable[[Address], bool]) -> bool:
    """Whether a message with this return route has passed through this node before, over a still open connection."""
    # The node adds the connection as the first hop, which a peer cannot prevent. A later hop that is also a connection
    # of this node was added when the message was here before.
    return any(
        hop.type == LOCAL and hop.value.startswith(CONNECTION_PREFIX) and is_here(hop) for hop in return_route[1:]
    )


def is_passed_on(return_route: Route) -> bool:
    """Whether another node has passed this message on. A sender can pretend it, and is then refused sooner."""
    return any(hop.type == LOCAL and hop.value.startswith(CONNECTION_PREFIX) for hop in return_route[1:])


def leaves(onward_route: Route) -> bool:
    return onward_route[0].type != LOCAL or onward_route[0].value.startswith(CONNECTION_PREFIX)


class OpenRequests:
    """The routes of the unanswered requests that were forwarded over one connection, and their senders. Invariant:
    there are at most OPEN_REQUESTS_MAX routes and as many senders, the oldest first."""

    __slots__ = ("_routes", "_senders")

    def __init__(self) -> None:
        self._routes: dict[Route, None] = {}
        self._senders: dict[Address, None] = {}

    def __len__(self) -> int:
        return len(self._routes)

    def note(self, run: Iterable[Message]) -> None:
        """Remembers the requests among these outgoing messages, except the requests of this node's own workers."""
        last: Route | None = None
        for message in run:
            if message.origin.kind == "local":
                continue
            route = message.return_route
            if route is not last and route:
                last = route
                self._note_sender(route[0])
            if reports_to_sender(message):
                self._routes[route] = None
                # A dict keeps its order, so the first route is the oldest.
                if len(self._routes) > OPEN_REQUESTS_MAX:
                    del self._routes[next(iter(self._routes))]

    def is_sender(self, connection: Address) -> bool:
        return connection in self._senders

    def _note_sender(self, connection: Address) -> None:
        # The sender that was quiet for longest is forgotten first. Its next message notes it again.
        self._senders.pop(connection, None)
        self._senders[connection] = None
        if len(self._senders) > OPEN_REQUESTS_MAX:
            del self._senders[next(iter(self._senders))]

    def answered(self, messages: Iterable[Message]) -> None:
        last: Route | None = None
        for message in messages:
            # A request stays open while a further part of its answer is to come.
            if message.onward_route is not last and not has_more(message.payload):
                last = message.onward_route
                self._routes.pop(last, None)

    def take(self) -> list[Route]:
        routes, self._routes = list(self._routes), {}
        return routes


class RemoteStreams(Protocol):
    """Tells which streams other nodes serve, and sends messages to these nodes. name: the name of this node."""

    name: str

    def is_remote(self, stream: Address) -> bool: ...

    def send(self, stream: Address, message: Message) -> None:
        """Sends a message to the node that serves the stream, once a node does, in the order of the calls."""

    def home_of(self, stream_name: str) -> Address:
        """Returns the address of the first partition of a stream. The node that serves this partition also serves the
        positions and leases of the stream's consumers."""

    def served_since_s(self, stream: Address) -> float: ...

    def owner_of(self, stream: Address) -> tuple[str, int]:
        """Returns the `host:port` of another node that serves a stream, or "", and the epoch of its ownership."""

    def ask_all(self, message: Message, on_done: Callable[[list[bytes] | None], None]) -> bool:
        """Sends a request to the worker of every node with a database of its own, if there are several; else returns
        False. on_done: called once with the payloads of the answers, or with None if one does not come in time."""


class LinkEnd(Protocol):
    def receive(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Takes the messages that arrived. Returns those that the node delivers, as messages of its own."""

    def ended(self, requests: OpenRequests) -> None:
        """Called when the connection has ended. requests: the unanswered requests that were forwarded over it."""
