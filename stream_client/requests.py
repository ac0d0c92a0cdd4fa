"""Requests: sends requests to the workers of one node, without waiting. `ClientSession` adds the waiting.
PartitionWatch: notices partitions that are added to a stream.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from ockam.actors.address import Route
from ockam.protocol import Protocol
from ockam.transport.forwarding import OWN_PREFIX
from stream_client.arguments import encoded
from stream_client.core.calls import Call, answer_of
from stream_client.core.client_core import ClientCore
from stream_client.core.partition_handle import PartitionHandle
from stream_client.core.payloads import not_supported
from stream_client.core.service_route import INDEX_SERVICE, STREAM_SERVICE
from stream_client.errors import ClientError, RequestTimeout, UnexpectedAnswer
from stream_client.shell.base_shell import BaseShell
from stream_client.shell.contact import no_contact
from stream_service.extensions import LIST, ListRequest, ListResponse, StreamKey

Q = TypeVar("Q")
A = TypeVar("A")

Target: TypeAlias = str | Route | PartitionHandle
"""The receiver of a request: a service of the node by its name, a worker by the route to it, or a partition."""


class Requests:
    """Sends requests to the workers of one node, without waiting for the answers.

    core, shell: the client's logic without I/O, and its clock.
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
        self, target: Target, protocol: Protocol[Q, A], request: Q, on_answer: Callable[[A | ClientError], None]
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

    def call(self, target: Target, protocol: Protocol[Q, A], request: Q) -> Call:
        """Sends a request and returns its `Call`, for which `ClientSession.answered` waits. Raises NotSupported, the
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


WATCH_S = 5.0
"""The interval between two questions whether a stream has more partitions, in seconds."""
ABSENT_S = 1.0
"""The interval between two questions whether a stream exists by now, in seconds."""
UNANSWERED_S = 30.0
"""After this time, in seconds, a question that was not answered is asked again."""
PARTITIONS_MAX = 4_096


class PartitionWatch:
    """Asks whether a stream has more partitions than the `known` ones (0 if the stream does not exist), while its user
    calls `poll`. `on_more` is called with the numbers of the added partitions, in order. At `due_s`, on the client's
    clock in seconds, `poll` asks again. No message of a node reports that a stream has grown, so all users of a stream
    ask at intervals, and know the same partitions within a few seconds."""

    def __init__(self, session: Requests, name: str, known: int, on_more: Callable[[list[int]], None]) -> None:
        self._session = session
        self._name = name
        self._known = known
        self._on_more = on_more
        self.due_s = 0.0
        self._wait()
        self._cancel: Callable[[], None] | None = None
        self._asked_s = -math.inf

    def poll(self) -> None:
        """Asks the node if the interval is over. Does not wait. The user of the stream calls it often."""
        now_s = self._session.shell.now_s()
        if now_s < self.due_s:
            return
        self._wait()
        # A slow node needs longer for its list than one interval.
        if self._cancel is not None and now_s < self._asked_s + UNANSWERED_S:
            return
        self.stop()
        self._asked_s = now_s
        # The node lists the partitions of this stream in order, and then the streams whose longer names begin alike.
        after = StreamKey(self._name, self._known - 1) if self._known else None
        request = ListRequest(0, self._name, after, PARTITIONS_MAX)
        self._cancel = self._session.ask_nowait(STREAM_SERVICE, LIST, request, self._answered)

    def stop(self) -> None:
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            cancel()

    def _wait(self) -> None:
        self.due_s = self._session.shell.now_s() + (WATCH_S if self._known else ABSENT_S)

    def _answered(self, answer: ListResponse | ClientError) -> None:
        self._cancel, self._asked_s = None, -math.inf
        # A node that cannot list its streams is asked again all the same: it can be replaced by another one.
        if isinstance(answer, ClientError):
            return
        found = [info.partition for info in answer.streams if info.stream_name == self._name]
        count = max(found, default=-1) + 1
        if count > self._known:
            more, self._known = list(range(self._known, count)), count
            self._on_more(more)
