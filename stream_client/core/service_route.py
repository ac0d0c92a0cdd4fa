"""Whether the stream service can be reached, and what it can: asked, and asked again when a node between has lost it.

It keeps no time: the shell says when to ask again. The question is `node/stream_list/1`, since every service answers it
at once: a stream node with a list, a real Ockam service with an `error`, and a node on the way that cannot or may not
pass it on says so (`ockam.forwarding`).
"""

from __future__ import annotations

from collections.abc import Callable

from ockam.address import Address, Route
from stream_client.core.calls import Calls
from stream_client.core.payloads import not_supported
from stream_client.core.requests import Call
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
"""What the services are called in programs, and at nodes unless said otherwise."""


def index_service_of(service: str) -> str:
    """The name that an index service has beside a stream service of that name (facts/ockam.md §5.4)."""
    base = service.removesuffix("_service")
    return f"{base}_index{service[len(base) :]}"


class ServiceRoute:
    """The way to the service over the connection of the moment.

    reached: whether the service has answered over any connection. trouble: why the way was lost last. is_lost: whether
    a node between has said that it cannot reach the next one, and the service has not answered since.
    on_lost: called each time a node between says so, to have `ask` called after a while; where it is None, what was
    asked fails instead. on_found: called when the service answers again.
    Invariant: there is at most one question under way.
    """

    def __init__(
        self,
        calls: Calls,
        service: Route,
        new_address: Callable[[], Address],
        on_refused: Callable[[RouteRefused], None],
        on_found: Callable[[], None],
    ) -> None:
        """on_refused: a node on the way is not allowed to pass on. on_found: the service answers again."""
        self._calls = calls
        self._service = service
        self._new_address = new_address
        self._on_refused = on_refused
        self._on_found = on_found
        self._question: Call | None = None
        self._in_doubt: list[tuple[Call, str]] = []
        self._supported: bool | None = None
        self.reached = self.is_lost = False
        self.trouble: ClientError | None = None
        self._is_gone = False
        self.on_lost: Callable[[bool], None] | None = None
        self.on_link: Callable[[ClientError | None], None] = lambda error: None

    @property
    def is_asking(self) -> bool:
        """Whether there is a question without an answer."""
        return self._question is not None

    def connected(self) -> None:
        """A new connection stands: all that is known of the way is of the old one."""
        self.is_lost = False
        self._supported = None

    def ask(self) -> Call:
        """Ask the service for a sign of life; a question that has no answer yet is sent again."""
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
        """A node between cannot reach the next one; whether what was asked is to be asked again when it can."""
        self.trouble = error
        if self.on_lost is None:
            return False
        first, self.is_lost = not self.is_lost, True
        self.gone(error)
        self.on_lost(first)
        return True

    def gone(self, error: ClientError) -> None:
        """The service cannot be reached any more: the connection ended, or a node between has lost the next one.

        What was never reached is not gone: `on_link` hears nothing of it, and the requests fail with the reason.
        """
        if self.reached and not self._is_gone:
            self._is_gone = True
            self.on_link(error)

    def need_extensions(self, call: Call, protocol: str) -> None:
        """Have a call fail where the peer has none of our protocols, and the worker asked would say nothing."""
        if self._supported is False:
            self._calls.finish(call, not_supported(protocol))
        elif self._supported is None:
            self._in_doubt = [(each, name) for each, name in self._in_doubt if not each.done]
            self._in_doubt.append((call, protocol))
            if self._question is None:
                self.ask()

    def _answered(self, call: Call) -> None:
        self._question = None
        error = call.error
        if isinstance(error, RouteRefused):
            self.trouble = error
            self._on_refused(error)
            return
        if error is not None and not isinstance(error, RequestRefused | NodeFailed):
            return
        self.reached = True
        if self._is_gone:
            self._is_gone = False
            self.on_link(None)
        self._supported = not isinstance(error, NotSupported)
        in_doubt, self._in_doubt = self._in_doubt, []
        for each, protocol in in_doubt if not self._supported else ():
            self._calls.finish(each, not_supported(protocol))
        if self.is_lost:
            self.is_lost = False
            self._on_found()
