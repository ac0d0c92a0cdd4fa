# Generated from stream_client/session.py by tools/generate_blocking.py; do not edit.
"""ClientSession: sends requests to the workers of one node and waits for the answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar

from ockam.actors.address import Route
from ockam.protocol import Protocol as WireProtocol
from ockam.transport.forwarding import OWN_PREFIX
from stream_client.arguments import encoded
from stream_client.core.calls import Call, answer_of
from stream_client.core.client_core import ClientCore
from stream_client.core.partition_handle import PartitionHandle
from stream_client.core.payloads import not_supported
from stream_client.core.pushes import PendingResult
from stream_client.core.service_route import INDEX_SERVICE
from stream_client.errors import ClientError, RequestTimeout, UnexpectedAnswer
from stream_client.shell.clock import ClockTimers
from stream_client.shell.contact import no_contact

Q = TypeVar("Q")
A = TypeVar("A")

Target: TypeAlias = str | Route | PartitionHandle
"""The receiver of a request: a service of the node by its name, a worker by the route to it, or a partition."""


class Shell(ClockTimers, Protocol):
    """The part of a client that does the I/O: it has the socket and the clock, and it waits."""

    def wait(self, waiting: PendingResult, timeout_s: float | None = None) -> None:
        """Waits until `waiting` is done, at most `timeout_s` seconds; None: no limit. A timeout raises no error."""
        ...

    def yield_control(self) -> None:
        """Gives the client's I/O a chance to send and receive, without waiting for the socket."""
        ...

    def send_lagging(self) -> None:
        """Sends the waiting bytes if the client has not exchanged bytes for a while."""
        ...


class Connected(Protocol):
    """The type of an object with a session: a `StreamClient`, or a `Stream` of it."""

    session: ClientSession


class ClientSession:
    """The inner half of a `StreamClient`: sends requests to the workers of one node and waits for the answers.

    core, shell: the client's logic without I/O, and its I/O.
    answer_timeout_s: how many seconds a request waits for its answer; None: for ever.
    best_pull: the best protocol in which the node has ever answered a pull, as a number of `consume.reader`; at first
        one more than the last of them.
    """

    def __init__(self, address: str, core: ClientCore, shell: Shell, answer_timeout_s: float | None) -> None:
        self.address = address
        self.core = core
        self.shell = shell
        self.answer_timeout_s = answer_timeout_s
        self.best_pull = 3

    def now_s(self) -> float:
        return self.shell.now_s()

    def request(self, service: str, payload: bytes) -> bytes:
        """Sends a payload to a service of the node and returns the payload of the answer. Raises ClientErrors."""
        return (self.answered(self.core.call(self.core.route_to(service), payload))).answers[0]

    def ask(self, target: Target, protocol: WireProtocol[Q, A], request: Q) -> A:
        """Sends a request to a worker and returns the decoded answer. Raises ClientErrors."""
        return answer_of(self.answered(self.call(target, protocol, request)), protocol)

    def ask_all(self, target: Target, protocol: WireProtocol[Q, A], requests: Sequence[Q]) -> list[A]:
        """Sends all requests at once and returns the decoded answers in order. Raises the first error."""
        return self.answers_of([self.call(target, protocol, each) for each in requests], protocol)

    def ask_nowait(
        self, target: Target, protocol: WireProtocol[Q, A], request: Q, on_answer: Callable[[A | ClientError], None]
    ) -> Callable[[], None]:
        """Sends a request without waiting. `on_answer` is called with the answer or the error: later, or at once if the
        request fails at once. Returns a function that gives up the request, so that `on_answer` is no longer called."""
        # An immediate error goes to `on_answer` too, so that the caller handles errors in one place.
        try:
            call = self.call(target, protocol, request)
        except ClientError as error:
            on_answer(error)
            return lambda: None

        def answered() -> None:
            try:
                answer: A | ClientError = call.error or answer_of(call, protocol)
            except UnexpectedAnswer as error:
                answer = error
            on_answer(answer)

        def cancel() -> None:
            # Both lines are needed: `on_answer` must not be called, and the core must not send the request again.
            call.forget(answered)
            self.core.calls.forget(call)

        call.when_done(answered)
        return cancel

    def notify(self, service: str, payload: bytes) -> None:
        """Sends a message that the service does not answer. The message can be lost if the connection is lost."""
        self.core.notify(service, payload)
        self.shell.yield_control()

    def call(self, target: Target, protocol: WireProtocol[Q, A], request: Q) -> Call:
        """Sends a request and returns its `Call`, for which `answered` waits. Raises InvalidArgument if the request
        cannot be encoded, NotSupported, and the error that ended the client."""
        # A real Ockam service logs a request in our own protocols as an error. So it is not sent to a service without
        # them.
        is_own = protocol.name.startswith(OWN_PREFIX.decode())
        if is_own and self.core.service_route.is_plain:
            raise not_supported(protocol.name)
        route = self.core.route_to(target) if isinstance(target, str) else target
        call = self.core.call(route, encoded(protocol, request))
        # A real index service never answers such a request. `ServiceRoute` finds out whether it is one, so that the
        # request fails soon instead of after its timeout.
        if is_own and target == INDEX_SERVICE:
            self.core.service_route.need_extensions(call, protocol.name)
        return call

    def answered(self, call: Call, wait_s: float = 0.0) -> Call:
        """Waits until the call has its answer, and returns the call. Raises its error. `wait_s`: the seconds by which
        the node may delay its answer; they are added to the timeout."""
        timeout_s = None if self.answer_timeout_s is None else self.answer_timeout_s + wait_s
        try:
            self.finished(call, timeout_s)
        finally:
            self.core.calls.forget(call)
        return call

    def answers_of(self, calls: Sequence[Call], protocol: WireProtocol[Q, A]) -> list[A]:
        try:
            return [answer_of(self.answered(call), protocol) for call in calls]
        finally:
            for call in calls:
                self.core.calls.forget(call)

    def finished(self, waiting: PendingResult, timeout_s: float | None) -> None:
        """Waits until `waiting` is done. Raises its error, or that of `silence` after `timeout_s` seconds; None: no
        limit."""
        if not waiting.done:
            self.shell.wait(waiting, timeout_s)
        if waiting.error is not None:
            raise waiting.error
        if not waiting.done:
            raise self.silence(timeout_s)

    def silence(self, timeout_s: float | None) -> ClientError:
        """Returns the error after `timeout_s` seconds of silence: RequestTimeout, or why the service never answered."""
        if self.core.asks_route and not self.core.service_route.reached:
            return no_contact(self.address, self.core)
        state = "has not answered" if self.core.connection.wire is not None else "could not be reached"
        return RequestTimeout(f"{self.address} {state} for {timeout_s:g} s")
