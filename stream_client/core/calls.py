"""Calls: the requests without an answer. They are sent, sent again, and finished by the messages to their return
addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from ockam.address import Address, Route
from ockam.message import Message
from ockam.protocol import ERROR, Protocol, ProtocolError
from stream_client.core.client_connection import ClientConnection
from stream_client.core.partition_handle import PartitionHandle
from stream_client.core.payloads import refusal
from stream_client.core.pushes import Waiting
from stream_client.core.states_machine import CallState, Event, after
from stream_client.errors import ClientError, RouteLost, UnexpectedAnswer
from stream_service.protocol import PULL, StreamMessage

PATIENCE_CHECKS = 2
"""The number of checks without an answer after which a request is sent again (`ClientCore.check_progress`)."""

Q = TypeVar("Q")
A = TypeVar("A")


class Call(Waiting):
    """A request with its own return address.

    answers: the payloads received so far; the request is done when there are `wanted` of them. state: see `CallState`.
    target: a route from the node connected to, or a partition. checks: the number of checks since the request was sent;
    at `patience` it is sent again. return_routes: the routes from which the answers came.
    """

    __slots__ = ("address", "answers", "checks", "patience", "payload", "return_routes", "state", "target", "wanted")

    def __init__(
        self,
        target: Route | PartitionHandle,
        payload: bytes,
        wanted: int,
        address: Address,
        patience: int = PATIENCE_CHECKS,
    ) -> None:
        super().__init__()
        self.state = CallState.HELD
        self.target = target
        self.payload = payload
        self.wanted = wanted
        self.address = address
        self.patience = patience
        self.checks = 0
        self.answers: list[bytes] = []
        self.return_routes: list[Route] = []


class Create(Call):
    """A request that creates a stream. made: the handles of its partitions; empty until the client uses them."""

    __slots__ = ("made",)

    def __init__(self, target: Route, payload: bytes, wanted: int, address: Address) -> None:
        super().__init__(target, payload, wanted, address)
        self.made: list[PartitionHandle] | None = None


class Calls:
    """The unanswered requests of one client, by return address.

    on_route_lost: called when a node on the route reports that it cannot reach the next node. It returns whether to
    keep the request, to be sent again when the route is back.

    Invariant: each request is here under its own address and is not done; none is SENT without a connection.
    """

    def __init__(
        self,
        connection: ClientConnection,
        new_address: Callable[[], Address],
        on_route_lost: Callable[[RouteLost], bool],
    ) -> None:
        self._connection = connection
        self._on_route_lost = on_route_lost
        self._new_address = new_address
        self._calls: dict[Address, Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Call]:
        """Iterate over all unanswered requests, oldest first. Requests may be finished during the iteration."""
        return iter(list(self._calls.values()))

    def check(self) -> None:
        """Raise AssertionError if the invariant does not hold."""
        for address, call in self._calls.items():
            assert call.address == address
            assert not call.done
            assert call.state is not CallState.DONE
            assert call.state is CallState.HELD or self._connection.wire is not None

    def add(self, call: Call) -> None:
        """Add a request, and send it at once or as soon as there is a route to its target."""
        self._calls[call.address] = call
        route = call.target.route if isinstance(call.target, PartitionHandle) else call.target
        if route is not None:
            self.send(call, route)

    def send(self, call: Call, route: Route) -> None:
        """Append the request to the bytes to send, if there is a connection."""
        call.checks = 0
        header = self._connection.header(route, call.address)
        if header:
            call.state = after(call.state, Event.SENT)
            error = self._connection.put_frame(header, call.payload)
            if error is not None:
                self.finish(call, error)

    def send_again(self, call: Call, route: Route) -> None:
        """Send a request to a service once more.

        An answer of several parts is then collected from the beginning, at a new return address. Otherwise a part of
        the first answer that is still on its way would be counted twice.
        """
        if call.answers:
            del self._calls[call.address]
            call.answers.clear()
            call.return_routes.clear()
            call.address = self._new_address()
            self._calls[call.address] = call
        self.send(call, route)

    def disconnected(self) -> None:
        """Note that the connection is lost, so no request is on its way any more."""
        for call in self._calls.values():
            call.state = after(call.state, Event.DISCONNECTED)

    def take(self, message: Message) -> None:
        """Use a message as an answer to a request, or as one part of it. Drops a message that belongs to no request."""
        call = self._calls.get(message.onward_route[0])
        if call is None:
            return
        # An `error` finishes the request, except if a node on the route reports that it has lost the next node.
        if ERROR.is_in(message.payload):
            error = refusal(message.payload, of_stream=isinstance(call.target, PartitionHandle), request=call.payload)
            if not (isinstance(error, RouteLost) and self._on_route_lost(error)):
                self.finish(call, error)
            return
        call.answers.append(message.payload)
        call.return_routes.append(message.return_route)
        if len(call.answers) >= call.wanted:
            self.finish(call)

    def finish(self, call: Call, error: ClientError | None = None) -> None:
        """Finish a request, with its answers or with an error, and wake its caller."""
        self.forget(call)
        call.finish(error)

    def forget(self, call: Call) -> None:
        """Drop a request whose caller no longer waits. An answer that still comes is dropped too."""
        if self._calls.pop(call.address, None) is not None:
            call.state = after(call.state, Event.FINISHED)


def answer_of(call: Call, protocol: Protocol[Q, A]) -> A:
    """Decode the one answer of a finished request. Raises UnexpectedAnswer."""
    try:
        return protocol.decode_response(call.answers[0])
    except ProtocolError as error:
        raise UnexpectedAnswer(f"not an answer to a {protocol.name}: {error}") from error


def pulled(call: Call) -> Sequence[StreamMessage]:
    """Decode the messages that a finished pull has brought. Raises UnexpectedAnswer."""
    return answer_of(call, PULL).messages
