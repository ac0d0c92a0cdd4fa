"""Session: sends requests to the workers of one node and waits for the answers.

The modules that use a `Session` (`streams`, `publish`, `consume`, `share`, `positions`, `admin`) are written once, as
coroutines. `tools/generate_blocking.py` makes their blocking versions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar

from ockam.address import Route
from ockam.forwarding import OWN_PREFIX
from ockam.protocol import Protocol as WireProtocol
from stream_client.arguments import encoded
from stream_client.core.calls import Call, answer_of
from stream_client.core.client_core import ClientCore
from stream_client.core.partition_handle import PartitionHandle
from stream_client.core.pushes import Waiting
from stream_client.core.service_route import INDEX_SERVICE
from stream_client.core.statistics import CoreStatistics
from stream_client.errors import ClientError, RequestTimeout, UnexpectedAnswer
from stream_client.shell.clock import Timers
from stream_client.shell.contact import no_contact

Q = TypeVar("Q")
A = TypeVar("A")

Target: TypeAlias = str | Route | PartitionHandle
"""The receiver of a request: a service of the node by its name, a worker by the route to it, or a partition."""


class Shell(Timers, Protocol):
    """The interface of a shell: the sockets, the clock and the waiting around one client's core."""

    async def wait(self, waiting: Waiting, timeout_s: float | None = None) -> None:
        """Return when `waiting` is done, or after `timeout_s`."""
        ...

    async def give_way(self) -> None:
        """Send as many bytes as the socket takes and read the bytes that have arrived, without waiting."""
        ...

    # blocking only: def send_lagging(self) -> None:
    # blocking only:     """Send the bytes that have waited for a while, since no call has sent them."""
    # blocking only:     ...


class Session:
    """The connection of one client to its node, and the requests it sends to the node's workers.

    address: `host:port` of the node connected to. answer_timeout_s: how long a request waits for its answer; None: for
    ever. has_rich_pull: whether the node has ever answered a `node/stream_pull/1`.
    """

    def __init__(self, address: str, core: ClientCore, shell: Shell, answer_timeout_s: float | None) -> None:
        self.address = address
        self.core = core
        self.shell = shell
        self.answer_timeout_s = answer_timeout_s
        self.has_rich_pull = False

    def statistics(self) -> CoreStatistics:
        """Return the counts of connections, bytes and unanswered requests over the whole life of the client."""
        return self.core.statistics()

    def now_s(self) -> float:
        """Return the time in seconds on the shell's clock (`Timers.now_s`)."""
        return self.shell.now_s()

    async def request(self, service: str, payload: bytes) -> bytes:
        """Send a payload to a service of the node and return its one answer. Raises RequestRefused, RequestTimeout."""
        return (await self.answered(self.core.call(self.core.route_to(service), payload))).answers[0]

    async def ask(self, target: Target, protocol: WireProtocol[Q, A], request: Q) -> A:
        """Send a request to a worker and return its one answer. Raises RequestRefused, RequestTimeout or
        UnexpectedAnswer.
        """
        return answer_of(await self.answered(self.call(target, protocol, request)), protocol)

    async def ask_all(self, target: Target, protocol: WireProtocol[Q, A], requests: Sequence[Q]) -> list[A]:
        """Send all requests at once and return their answers in order. Raises the first error."""
        return await self.answers_of([self.call(target, protocol, each) for each in requests], protocol)

    def ask_nowait(
        self, target: Target, protocol: WireProtocol[Q, A], request: Q, on_answer: Callable[[A | ClientError], None]
    ) -> Callable[[], None]:
        """Send a request without waiting, and call `on_answer` with the answer or the error, maybe before this returns.

        Returns a function that cancels the call of `on_answer`.
        """
        # An error at once goes to `on_answer` too, so that the caller handles errors in one place.
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
            self.core.forget(call)

        call.when_done(answered)
        return cancel

    def tell(self, service: str, payload: bytes) -> None:
        """Send a message to a service that does not answer it. The message is lost if the connection is lost."""
        self.core.tell(service, payload)
        # blocking only: self.shell.give_way()

    def call(self, target: Target, protocol: WireProtocol[Q, A], request: Q) -> Call:
        """Send a request and return its call; `answered` waits for the answer.

        Raises InvalidArgument, and the error that ended the client if the client has ended.

        An index service without our own protocols never answers a request in one of them. `ServiceRoute` then finds out
        whether the service has any, so that the call fails at once and not after its whole timeout.
        """
        route = self.core.route_to(target) if isinstance(target, str) else target
        call = self.core.call(route, encoded(protocol, request))
        if target == INDEX_SERVICE and protocol.name.startswith(OWN_PREFIX.decode()):
            self.core.service_route.need_extensions(call, protocol.name)
        return call

    async def answered(self, call: Call, wait_s: float = 0.0) -> Call:
        """Wait until the call has its answer and return it. Raises the call's error.

        wait_s: how long the node may hold the answer back; this time is added to the timeout.
        """
        timeout_s = None if self.answer_timeout_s is None else self.answer_timeout_s + wait_s
        try:
            await self.finished(call, timeout_s)
        finally:
            self.core.forget(call)
        return call

    async def answers_of(self, calls: Sequence[Call], protocol: WireProtocol[Q, A]) -> list[A]:
        """Wait for the one answer of each of these calls, and return the answers in order. Raises the first error."""
        try:
            return [answer_of(await self.answered(call), protocol) for call in calls]
        finally:
            for call in calls:
                self.core.forget(call)

    async def finished(self, waiting: Waiting, timeout_s: float | None) -> None:
        """Wait until `waiting` is done. Raises its error, and RequestTimeout after `timeout_s`."""
        if not waiting.done:
            await self.shell.wait(waiting, timeout_s)
        if waiting.error is not None:
            raise waiting.error
        if not waiting.done:
            if self.core.asks_route and not self.core.service_route.reached:
                raise no_contact(self.address, self.core)
            state = "has not answered" if self.core.connection.wire is not None else "could not be reached"
            raise RequestTimeout(f"{self.address} {state} for {timeout_s:g} s")
