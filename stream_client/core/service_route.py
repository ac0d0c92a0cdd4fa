"""ServiceRoute: the route to the stream service. It finds out whether the route works and which protocols the service
has.

It keeps no time: the shell decides when to ask again. The question is a `node/stream_list/1`, since it is always
answered at once: a stream node answers with a list, a real Ockam service with an `error`. A node on the route that
cannot or may not forward the question answers with an `error` of its own (`ockam.forwarding`).
"""

from __future__ import annotations

from collections.abc import Callable

from ockam.address import Address, Route
from stream_client.core.calls import Call, Calls
from stream_client.core.payloads import not_supported
from stream_client.core.states_machine import Event, RouteState, after
from stream_client.errors import (
    ClientError,
    NodeFailed,
    NotSupported,
    RequestRefused,
    RouteLost,
    RouteRefused,
)
from stream_service.extensions import LIST, ListRequest

STREAM_SERVICE = "stream_service"
INDEX_SERVICE = "stream_index_service"
"""The names of the services in programs; nodes have them under the same names unless the program says otherwise."""


def index_service_of(service: str) -> str:
    """Return the usual name of the index service that belongs to a stream service (facts/ockam.md §5.4)."""
    base = service.removesuffix("_service")
    return f"{base}_index{service[len(base) :]}"


class ServiceRoute:
    """The route to the stream service over the current connection.

    state: see `RouteState`. trouble: why the route was last lost or not found. on_lost: called each time a node on the
    route reports that it cannot reach the next node, with whether the route worked until now. The owner then calls
    `ask` after a while. If on_lost is None, the request that met the fault fails. on_link: called with the reason when
    the service becomes unreachable, and with None when it answers again.

    Invariant: at most one question is without an answer.
    """

    def __init__(
        self,
        calls: Calls,
        service: Route,
        new_address: Callable[[], Address],
        on_refused: Callable[[RouteRefused], None],
        on_found: Callable[[], None],
    ) -> None:
        """on_refused: called when a node on the route may not forward messages. on_found: called when a lost route is
        back.
        """
        self.state = RouteState.UNREACHED
        self.trouble: ClientError | None = None
        self.on_lost: Callable[[bool], None] | None = None
        self.on_link: Callable[[ClientError | None], None] = lambda error: None
        self._calls = calls
        self._service = service
        self._new_address = new_address
        self._on_refused = on_refused
        self._on_found = on_found
        self._question: Call | None = None
        self._needs_extensions: list[tuple[Call, str]] = []
        self._has_extensions: bool | None = None

    @property
    def reached(self) -> bool:
        """Whether the service has ever answered, over any connection."""
        return self.state not in (RouteState.UNREACHED, RouteState.UNREACHED_LOST)

    @property
    def is_lost(self) -> bool:
        """Whether a node on the route last reported that it cannot reach the next node."""
        return self.state in (RouteState.LOST, RouteState.UNREACHED_LOST)

    @property
    def is_asking(self) -> bool:
        """Whether a question is unanswered."""
        return self._question is not None

    def check(self) -> None:
        """Raise AssertionError if the invariant does not hold."""
        questions = [call for call in self._calls if call.target == self._service and call is self._question]
        assert len(questions) == (self._question is not None)

    def connected(self) -> None:
        """Forget what the old connection revealed, since the new connection may lead to another version of the node."""
        self.state = after(self.state, Event.CONNECTED)
        self._has_extensions = None

    def heard(self) -> None:
        """Note that the node connected to has sent a message. Call this only if the services are at this node."""
        self.state = after(self.state, Event.HEARD)

    def ask(self) -> Call:
        """Ask the service a question that every service answers. An unanswered question is sent again instead."""
        if self._question is not None:
            self._calls.send_again(self._question, self._service)
            return self._question
        self._question = call = Call(
            self._service, LIST.encode_request(ListRequest(0, "", None, 1)), 1, self._new_address()
        )
        call.when_done(lambda: self._answered(call))
        self._calls.add(call)
        return call

    def lost(self, error: RouteLost) -> bool:
        """Note that a node on the route cannot reach the next node. Returns whether to keep requests until it can."""
        self.trouble = error
        if self.on_lost is None:
            return False
        is_news = not self.is_lost
        self._unreachable(Event.ROUTE_LOST, error)
        self.on_lost(is_news)
        return True

    def disconnected(self, error: ClientError) -> None:
        """Note that the connection has ended."""
        self._unreachable(Event.DISCONNECTED, error)

    def need_extensions(self, call: Call, protocol: str) -> None:
        """Make a request fail if the service has none of our own protocols, since it would never answer the request."""
        if self._has_extensions is False:
            self._calls.finish(call, not_supported(protocol))
        elif self._has_extensions is None:
            self._needs_extensions = [(each, name) for each, name in self._needs_extensions if not each.done]
            self._needs_extensions.append((call, protocol))
            if self._question is None:
                self.ask()

    def _unreachable(self, event: Event, error: ClientError) -> None:
        # If the service was never reached, it is not lost now. Its requests then fail with the reason, without
        # `on_link`.
        told = self.state is RouteState.REACHED
        self.state = after(self.state, event)
        if told:
            self.on_link(error)

    def _answered(self, call: Call) -> None:
        self._question = None
        error = call.error
        if isinstance(error, RouteRefused):
            self.trouble = error
            self._on_refused(error)
            return
        # A refusal and a failure are answers too: the service was reached.
        if error is not None and not isinstance(error, RequestRefused | NodeFailed):
            return
        before, self.state = self.state, after(self.state, Event.ANSWERED)
        if before in (RouteState.GONE, RouteState.LOST):
            self.on_link(None)
        # Requests in our own protocols waited for this answer, since a real Ockam service would never answer them.
        self._has_extensions = not isinstance(error, NotSupported)
        needing, self._needs_extensions = self._needs_extensions, []
        for each, protocol in needing if not self._has_extensions else ():
            self._calls.finish(each, not_supported(protocol))
        # This is last, since it repeats all requests that waited for the route.
        if before in (RouteState.LOST, RouteState.UNREACHED_LOST):
            self._on_found()
