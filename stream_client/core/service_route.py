"""ServiceRoute: the route to the stream service: whether it works, and which protocols the service has.

The test request (`ServiceRoute.ask`) is a `node/stream_list/1`, which is always answered at once. A stream node answers
with a list, a real Ockam service with an `error`. A node on the route that cannot forward the test request, or is not
allowed to, answers with an `error` of its own (`ockam.transport.forwarding`). This module has no clock; the shell
decides when to test again.
"""

from __future__ import annotations

from collections.abc import Callable

from ockam.actors.address import Address, Route
from stream_client.core.calls import Call, Calls
from stream_client.core.payloads import not_supported
from stream_client.core.states_machine import CallState, CoreEvent, RouteState, after
from stream_client.errors import ClientError, NodeFailed, NotSupported, RequestRefused, RouteLost, RouteRefused
from stream_service.extensions import LIST, ListRequest

STREAM_SERVICE = "stream_service"
INDEX_SERVICE = "stream_index_service"
"""The default name of the index service at a node, as STREAM_SERVICE is that of the stream service."""


def index_service_of(service: str) -> str:
    """Returns the usual name of the index service that belongs to a stream service (facts/ockam.md §5.4)."""
    base = service.removesuffix("_service")
    return f"{base}_index{service[len(base) :]}"


class ServiceRoute:
    """The state of the route to the stream service over the current connection.

    trouble: the error with which the route was last lost or refused; None if it never was.
    on_lost: called each time a node on the route reports that it cannot reach the next node. Its argument: whether the
        route worked until now. The function plans a later call of `ask`. None: the request that met the fault fails.
    on_link: called with the reason when the service becomes unreachable, and with None when it answers again.
    is_assumed_plain: whether the program says that the service has none of our own protocols. This is believed until
        the service shows its protocols, or until a connection over which it has answered is lost: the next connection
        may lead to another service.
    has_extensions: whether the service has our own protocols, as the current connection has shown; None: unknown.

    Invariant: at most one test request (`ask`) is unanswered.
    """

    def __init__(
        self,
        calls: Calls,
        service: Route,
        new_address: Callable[[], Address],
        on_refused: Callable[[RouteRefused], None],
        on_found: Callable[[], None],
    ) -> None:
        """on_refused: called when a node on the route refuses to forward. on_found: when a lost route works again."""
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
        self.is_assumed_plain = False
        self.has_extensions: bool | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the service is known, or assumed, to have none of our own protocols."""
        return self.is_assumed_plain if self.has_extensions is None else not self.has_extensions

    @property
    def reached(self) -> bool:
        """Whether the service has ever answered, over any connection."""
        return self.state not in (RouteState.UNREACHED, RouteState.UNREACHED_LOST)

    @property
    def is_lost(self) -> bool:
        """Whether the route is lost, until the service answers or the connection ends."""
        return self.state in (RouteState.LOST, RouteState.UNREACHED_LOST)

    @property
    def is_asking(self) -> bool:
        return self._question is not None

    def check(self) -> None:
        questions = [call for call in self._calls if call.target == self._service and call is self._question]
        assert len(questions) == (self._question is not None)

    def connected(self) -> None:
        self.state = after(self.state, CoreEvent.CONNECTED)
        # The new connection can lead to another version of the node.
        self.has_extensions = None

    def note_received(self) -> None:
        """Records a message from the node that the client is connected to, if this node has the services."""
        self.state = after(self.state, CoreEvent.RECEIVED)

    def made(self, is_named: bool) -> None:
        """Records an answer to a create. `is_named`: whether the address is made from the stream's name."""
        if self.state is RouteState.UNREACHED:
            self.state = after(self.state, CoreEvent.ANSWERED)
        if self.is_assumed_plain and self.has_extensions is None:
            self.has_extensions = is_named

    def ask(self) -> Call:
        """Tests the route: sends the test request, again if the last one is unanswered, and returns its Call."""
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
        """Records that a node on the route cannot reach the next node. Returns whether to retain unanswered requests
        until the route works again."""
        self.trouble = error
        if self.on_lost is None:
            return False
        is_news = not self.is_lost
        self._unreachable(CoreEvent.ROUTE_LOST, error)
        self.on_lost(is_news)
        return True

    def disconnected(self, error: ClientError) -> None:
        self._unreachable(CoreEvent.DISCONNECTED, error)

    def need_extensions(self, call: Call, protocol: str) -> None:
        """Makes a request in one of our own protocols fail soon if the service has none and would never answer."""
        # If the protocols of the service are unknown, the answer to a test request shows them.
        if self.has_extensions is None:
            # Nothing reports the end of a request that was given up, so the ended requests are removed here.
            waiting = [(each, name) for each, name in self._needs_extensions if each.state is not CallState.DONE]
            self._needs_extensions = waiting
            self._needs_extensions.append((call, protocol))
            if self._question is None:
                self.ask()

    def _unreachable(self, event: CoreEvent, error: ClientError) -> None:
        # A service that was never reached cannot become unreachable now, so `on_link` is not called. Its requests fail
        # with the reason.
        told = self.state is RouteState.REACHED
        self.is_assumed_plain = self.is_assumed_plain and not told
        self.state = after(self.state, event)
        if told:
            self.on_link(error)

    def _answered(self, call: Call) -> None:
        self._question = None
        error = call.error
        if isinstance(error, RouteRefused):
            # A node on the route refuses to forward, so the service was not reached.
            self.trouble = error
            self._on_refused(error)
            return
        # A refusal and a failure are answers too: the service was reached.
        if error is not None and not isinstance(error, RequestRefused | NodeFailed):
            return
        before, self.state = self.state, after(self.state, CoreEvent.ANSWERED)
        if before in (RouteState.GONE, RouteState.LOST):
            self.on_link(None)
        # Requests in our own protocols waited for this answer, since a real Ockam service would never answer them.
        self.has_extensions = not isinstance(error, NotSupported)
        needing, self._needs_extensions = self._needs_extensions, []
        for each, protocol in needing if not self.has_extensions else ():
            self._calls.finish(each, not_supported(protocol))
        # This is done last, since it repeats all requests that waited for the route.
        if before in (RouteState.LOST, RouteState.UNREACHED_LOST):
            self._on_found()
