"""Requests with an answer each: sent, sent again, and finished by what comes to their return addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ockam.address import Address, Route
from ockam.message import Message
from ockam.protocol import ERROR
from stream_client.core.client_connection import ClientConnection
from stream_client.core.partition_handle import PartitionHandle
from stream_client.core.payloads import refusal
from stream_client.core.requests import Call
from stream_client.errors import ClientError, RouteLost


class Calls:
    """The calls without an answer, by return address.

    on_route_lost: told that a node on the way has lost the next one; whether the call stays to be asked again.
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
        """All of them, oldest first; they may be finished meanwhile."""
        return iter(list(self._calls.values()))

    def add(self, call: Call) -> None:
        """Send it, now or when there is a way to its target."""
        self._calls[call.address] = call
        route = call.target.route if isinstance(call.target, PartitionHandle) else call.target
        if route is not None:
            self.send(call, route)

    def send(self, call: Call, route: Route) -> None:
        call.checks = 0
        header = self._connection.header(route, call.address)
        if header:
            error = self._connection.put_frame(header, call.payload)
            if error is not None:
                self.finish(call, error)

    def send_again(self, call: Call, route: Route) -> None:
        """Ask a service once more; an answer of many parts is gathered anew, so that none is counted twice."""
        if call.answers:
            del self._calls[call.address]
            call.answers.clear()
            call.return_routes.clear()
            call.address = self._new_address()
            self._calls[call.address] = call
        self.send(call, route)

    def take(self, message: Message) -> None:
        """What came to this address answers a call, or nothing any more."""
        call = self._calls.get(message.onward_route[0])
        if call is None:
            return
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
        self.forget(call)
        call.finish(error)

    def forget(self, call: Call) -> None:
        """Nobody waits for it any more: an answer that still comes is dropped."""
        self._calls.pop(call.address, None)
