"""Calls: the unanswered requests of a client. It sends and repeats them, and finishes them when answers arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from ockam.actors.address import Address, Route
from ockam.actors.message import Message
from ockam.protocol import ERROR, Protocol, ProtocolError
from stream_client.core.client_connection import ClientConnection
from stream_client.core.partition_handle import PartitionHandle
from stream_client.core.payloads import refusal
from stream_client.core.pushes import PendingResult
from stream_client.core.states_machine import CallState, CoreEvent, after
from stream_client.errors import ClientError, RouteLost, UnexpectedAnswer, doubted
from stream_service.page_codec import decode_page
from stream_service.protocol import PULL, StreamMessage

PATIENCE_CHECKS = 2
"""The checks for late answers (`ClientCore.check_progress`) after which an unanswered request is sent again."""

Q = TypeVar("Q")
A = TypeVar("A")


class Call(PendingResult):
    """A request with its own return address.

    target: the receiver: a partition, or a route from the node that the client is connected to.
    wanted: the number of answers after which the request is done. They are in `answers` and `return_routes`.
    checks: the number of checks for late answers since the request was sent. It is sent again after `patience` checks.
    on_part: called with each answer; returns whether other parts follow this answer. None: no answer is a part.
    renew: encodes the request again, for the parts that have not come yet. None: `payload` itself is sent again.
    made: for a create, the handles of the created partitions; None until it is answered.
    was_lost: whether the answer to a sent copy of the request may be lost, because the connection ended or the request
        was sent again. The node may have carried out that copy, whatever it answers to a later copy.
    """

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
        self.on_part: Callable[[bytes], bool] | None = None
        self.renew: Callable[[], bytes] | None = None
        self.made: list[PartitionHandle] | None = None
        self.was_lost = False


class Calls:
    """The unanswered requests of one client, by return address.

    on_route_lost: called when a node on the route reports that it cannot reach the next node. It returns whether to
        retain the request and to send it again when the route works again.

    Invariant: each request is stored under its own return address and is not done. Without a connection, none is SENT.
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
        """Iterates over all unanswered requests, oldest first. Requests can be finished during the iteration."""
        return iter(list(self._calls.values()))

    def check(self) -> None:
        for address, call in self._calls.items():
            assert call.address == address
            assert not call.done
            assert call.state is not CallState.DONE
            assert call.state is CallState.HELD or self._connection.wire is not None

    def add(self, call: Call) -> None:
        """Adds a request. It is sent at once, or as soon as the route to its target is known."""
        # Without a route the request waits in the state HELD: `StreamsInUse` sends it when it finds the partition.
        self._calls[call.address] = call
        route = call.target.route if isinstance(call.target, PartitionHandle) else call.target
        if route is not None:
            self.send(call, route)

    def send(self, call: Call, route: Route) -> None:
        """Appends the request to the bytes to send, if there is a connection. A request that is too large fails."""
        call.checks = 0
        header = self._connection.header(route, call.address)
        if header:
            # The node may carry out the first copy, and refuse the second one.
            call.was_lost = call.was_lost or call.state is CallState.SENT
            call.state = after(call.state, CoreEvent.SENT)
            error = self._connection.put_frame(header, call.payload)
            if error is not None:
                self.finish(call, error)

    def send_again(self, call: Call, route: Route) -> None:
        # If answers have arrived or can come in parts, a late answer to the first copy of the request would be counted
        # twice. So all answers to the new copy are awaited at a new return address.
        if call.answers or call.renew is not None:
            del self._calls[call.address]
            call.answers.clear()
            call.return_routes.clear()
            if call.renew is not None:
                call.payload = call.renew()
            call.address = self._new_address()
            self._calls[call.address] = call
        self.send(call, route)

    def disconnected(self) -> None:
        for call in self._calls.values():
            call.was_lost = call.was_lost or call.state is CallState.SENT
            call.state = after(call.state, CoreEvent.DISCONNECTED)

    def take(self, message: Message) -> None:
        call = self._calls.get(message.onward_route[0])
        if call is None:
            return
        # An `error` finishes the request, unless a node on the route reports that it cannot reach the next node.
        if ERROR.is_in(message.payload):
            error = refusal(message.payload, of_stream=isinstance(call.target, PartitionHandle), request=call.payload)
            if not (isinstance(error, RouteLost) and self._on_route_lost(error)):
                self.finish(call, error)
            return
        if call.on_part is not None and call.on_part(message.payload):
            # The node is at work, so the request is not sent again.
            call.checks = 0
            return
        # A create of several partitions has an answer for each.
        call.answers.append(message.payload)
        call.return_routes.append(message.return_route)
        if len(call.answers) >= call.wanted:
            self.finish(call)

    def finish(self, call: Call, error: ClientError | None = None) -> None:
        self.forget(call)
        # A create of several partitions has made the partitions whose answers have arrived.
        if error is not None and (call.was_lost or call.answers):
            error = doubted(error)
        call.finish(error)

    def forget(self, call: Call) -> None:
        """Removes a request whose caller no longer waits. An answer that arrives later is dropped."""
        if self._calls.pop(call.address, None) is not None:
            call.state = after(call.state, CoreEvent.FINISHED)


def answer_of(call: Call, protocol: Protocol[Q, A], decode: Callable[[bytes], A] | None = None) -> A:
    """Returns the decoded answer of a finished request. decode: a faster decoder of answers than that of `protocol`.
    Raises UnexpectedAnswer."""
    try:
        return (decode or protocol.decode_response)(call.answers[0])
    except ProtocolError as error:
        raise UnexpectedAnswer(f"not an answer to a {protocol.name}: {error}") from error


def pulled(call: Call) -> Sequence[StreamMessage]:
    return answer_of(call, PULL, decode_page).messages
