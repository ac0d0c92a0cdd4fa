"""ClientSession: sends requests to the workers of one node and waits for the answers.
Conversation: an exchange of any number of messages with one service of a node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar

from ockam.actors.address import Route
from ockam.protocol import Protocol as WireProtocol
from ockam.protocol import ProtocolError
from ockam.transport.forwarding import OWN_PREFIX
from stream_client.arguments import encoded
from stream_client.core.calls import Call, answer_of
from stream_client.core.client_core import ClientCore
from stream_client.core.conversation import UNSENT_BYTES_MAX
from stream_client.core.partition_handle import PartitionHandle
from stream_client.core.payloads import not_supported
from stream_client.core.pushes import PendingResult
from stream_client.core.service_route import INDEX_SERVICE
from stream_client.errors import ClientError, ConnectionLost, NodeUnreachable, RequestTimeout, UnexpectedAnswer
from stream_client.shell.base_shell import BaseShell
from stream_client.shell.contact import no_contact

Q = TypeVar("Q")
A = TypeVar("A")


Target: TypeAlias = str | Route | PartitionHandle
"""The receiver of a request: a service of the node by its name, a worker by the route to it, or a partition."""


class Connected(Protocol):
    """The type of an object with a session: a `StreamClient`, or a `Stream` of it."""

    session: ClientSession


class ClientSession:
    """The inner half of a `StreamClient`: sends requests to the workers of one node and waits for the answers.

    core, shell: the client's logic without I/O, and its I/O.
    answer_timeout_s: how many seconds a request waits for its answer; None: for ever.
    best_pull: the best protocol in which the node has ever answered a pull, as its number in `consume.reader`; before
        the first answer, one more than the last number.
    """

    def __init__(self, address: str, core: ClientCore, shell: BaseShell, answer_timeout_s: float | None) -> None:
        self.address = address
        self.core = core
        self.shell = shell
        self.answer_timeout_s = answer_timeout_s
        self.best_pull = 4

    def now_s(self) -> float:
        return self.shell.now_s()

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

    def call(self, target: Target, protocol: WireProtocol[Q, A], request: Q) -> Call:
        """Sends a request and returns its `Call`, for which `answered` waits. Raises NotSupported, the
        error of a deleted partition or an ended client, and InvalidArgument for a request that cannot be encoded."""
        # A real Ockam service would log a request in our own protocols as an error, so the request is not sent there.
        is_own = protocol.name.startswith(OWN_PREFIX.decode())
        if is_own and self.core.service_route.is_plain:
            raise not_supported(protocol.name)
        route = self.core.route_to(target) if isinstance(target, str) else target
        call = self.core.call(route, encoded(protocol, request))
        # A real Ockam index service never answers such a request. `ServiceRoute` finds out whether the service is one.
        # The request then fails soon instead of after its timeout.
        if is_own and target == INDEX_SERVICE:
            self.core.service_route.need_extensions(call, protocol.name)
        return call

    def silence(self, timeout_s: float | None) -> ClientError:
        """Returns the error after `timeout_s` seconds of silence: RequestTimeout, or the error of `no_contact` if the
        client tests the route and the service has never answered."""
        if self.core.asks_route and not self.core.service_route.reached:
            return no_contact(self.address, self.core)
        state = "has not answered" if self.core.connection.wire is not None else "could not be reached"
        return RequestTimeout(f"{self.address} {state} for {timeout_s:g} s")

    async def ask(self, target: Target, protocol: WireProtocol[Q, A], request: Q) -> A:
        """Sends a request to a worker and returns the decoded answer. Raises ClientErrors."""
        return answer_of(await self.answered(self.call(target, protocol, request)), protocol)

    async def ask_all(self, target: Target, protocol: WireProtocol[Q, A], requests: Sequence[Q]) -> list[A]:
        """Sends all requests at once and returns the decoded answers in order. Raises the first error."""
        return await self.answers_of([self.call(target, protocol, each) for each in requests], protocol)

    async def answered(self, call: Call, wait_s: float = 0.0) -> Call:
        """Waits until the call has its answer, and returns the call. Raises its error. `wait_s`: the seconds by which
        the node may delay its answer; they are added to the timeout."""
        timeout_s = None if self.answer_timeout_s is None else self.answer_timeout_s + wait_s
        try:
            await self.finished(call, timeout_s)
        finally:
            self.core.calls.forget(call)
        return call

    async def answers_of(self, calls: Sequence[Call], protocol: WireProtocol[Q, A]) -> list[A]:
        try:
            return [answer_of(await self.answered(call), protocol) for call in calls]
        finally:
            for call in calls:
                self.core.calls.forget(call)

    async def finished(self, waiting: PendingResult, timeout_s: float | None) -> None:
        """Waits until `waiting` is done, at most `timeout_s` seconds. Raises its error, or that of `silence`."""
        if not waiting.done:
            await self.shell.wait(waiting, timeout_s)
        if waiting.error is not None:
            raise waiting.error.with_traceback(None)
        if not waiting.done:
            raise self.silence(timeout_s)


class Conversation:
    """An exchange of any number of messages with one service of a node. `StreamClient.converse` begins a conversation.

    A conversation ends when `close` is called or the connection is lost. Every `send` after the loss raises
    ConnectionLost. `receive` first returns the messages that have arrived, and then raises ConnectionLost. To continue,
    begin another conversation and wait for its `opened`, which returns after the client has reconnected.
    """

    def __init__(self, session: ClientSession, service: str) -> None:
        self._session = session
        self._changed: PendingResult | None = None
        self._lost: ClientError | None = None
        self._was_open = False
        self._core = session.core.converse(service)
        self._core.on_change = self._note_change
        self._was_open = self._core.is_open

    @property
    def received(self) -> deque[bytes]:
        """The payloads of the messages that have arrived and that `receive` has not returned yet, oldest first."""
        return self._core.received

    def send_nowait(self, payload: bytes) -> None:
        """Queues a message for sending, without waiting. Raises what `send` raises."""
        self._check()
        self._core.send(payload)

    def close(self) -> None:
        """Ends the conversation. Messages that arrive later are dropped. Safe to call twice."""
        self._session.core.end_conversation(self._core)

    async def opened(self, timeout_s: float | None = None) -> None:
        """Waits until messages can be sent. Raises NodeUnreachable if the next attempt to connect fails or takes longer
        than `timeout_s` seconds; None: no limit."""
        connection = self._session.core.connection
        while not self._core.is_open:
            self._check()
            # Wait for the next attempt to connect. The result of an earlier attempt may be out of date, since the node
            # may run again.
            attempted = connection.attempted()
            await self._session.shell.wait(attempted, timeout_s)
            if not attempted.done:
                raise NodeUnreachable(f"{self._session.address} could not be reached for {timeout_s:g} s")
            connection.check_open()
            if not self._core.is_open:
                raise connection.trouble or NodeUnreachable(f"{self._session.address} cannot be reached")
        self._check()

    async def send(self, payload: bytes) -> None:
        """Sends a message, after a wait while the connection has more than UNSENT_BYTES_MAX unsent bytes. Raises
        ConnectionLost, and RequestRefused if the message is too large."""
        connection = self._session.core.connection
        while self._core.is_open and connection.outgoing_bytes > UNSENT_BYTES_MAX:
            await self._session.shell.wait(connection.taken())
        self.send_nowait(payload)
        self._session.shell.exchange_nowait()

    async def receive(self, timeout_s: float | None = None) -> bytes | None:
        """Returns the payload of the next message, or None if none arrives within `timeout_s` seconds (None: no limit).
        Raises ConnectionLost, and the error of an `error` message, for example RequestRefused."""
        # Messages that arrived before the connection ended are complete, so the program receives them first.
        if not self._core.received:
            self._check()
            self._changed = PendingResult()
            await self._session.shell.wait(self._changed, timeout_s)
            if not self._core.received:
                self._check()
        return self._core.take()

    async def ask(self, protocol: WireProtocol[Q, A], request: Q, timeout_s: float) -> A:
        """Sends a request, and decodes the next received message as its answer. Raises RequestTimeout if no message
        arrives within `timeout_s` seconds, and RequestRefused, UnexpectedAnswer and ConnectionLost."""
        await self.send(protocol.encode_request(request))
        payload = await self.receive(timeout_s)
        if payload is None:
            raise RequestTimeout(f"{self._session.address} has not answered for {timeout_s:g} s")
        try:
            return protocol.decode_response(payload)
        except ProtocolError as error:
            raise UnexpectedAnswer(f"not an answer to a {protocol.name}: {error}") from error

    def _check(self) -> None:
        # A new connection does not reopen a conversation.
        if self._lost is not None:
            raise self._lost.with_traceback(None)
        if self._was_open and self._core.error is not None:
            raise self._core.error.with_traceback(None)

    def _note_change(self) -> None:
        if not self._core.is_open and self._was_open:
            closed = self._session.core.connection.closed
            self._lost = closed or ConnectionLost(f"the connection to {self._session.address} ended")
            self._session.core.end_conversation(self._core)
        self._was_open = self._was_open or self._core.is_open
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.finish()
