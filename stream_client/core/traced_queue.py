"""TracedPushQueue: a push queue that makes a span of each push, and reports the trace of the push to the node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ockam.actors.address import Address, Route, local
from stream_client.core.client_connection import ClientConnection
from stream_client.core.push_queue import PushQueue, SequencedPushQueue
from stream_client.core.pushes import KeyedPush, Push
from stream_client.core.sequence_machine import SequenceMachine
from stream_service.extensions import TRACE, Header, TraceNotice

if TYPE_CHECKING:
    from ockam.tracing.spans import OpenSpan, Tracing

P = TypeVar("P", bound=Push)


class QueueTraces:
    """The open spans of one push queue.

    notice_address: the return address of the messages that announce traces. No queue has this address, so the `error`
        of a node that does not know these messages reaches no push.
    """

    def __init__(self, tracing: Tracing, name: str, partition: int, publisher: Address) -> None:
        self.tracing = tracing
        self.publisher = publisher.value.decode()
        self.notice_address = local(f"{self.publisher}/trace")
        self.header = b""
        self._name = f"push {name}"
        self._attributes = {
            "messaging.system": "stream-node",
            "messaging.operation.name": "push",
            "messaging.destination.name": name,
            "messaging.destination.partition.id": str(partition),
        }
        self._open: dict[int, OpenSpan] = {}

    def begin(self, request_id: int) -> bool:
        """Begins the span of a push. Returns whether its trace is sampled; if not, the push has no span."""
        span = self.tracing.start(self._name, self._attributes)
        if span is not None:
            self._open[request_id] = span
        return span is not None

    def end(self, request_id: int, push: Push) -> None:
        span = self._open.pop(request_id, None)
        if span is None:
            return
        attributes: dict[str, str | int] = {"messaging.message.body.size": len(push.data)}
        if push.error is None:
            attributes["messaging.message.id"] = str(push.index)
        span.end(attributes, None if push.error is None else str(push.error))

    def abandon(self, request_id: int) -> None:
        """Ends the span of a push whose confirm the program does not wait for, or whose client has ended."""
        span = self._open.pop(request_id, None)
        if span is not None:
            span.end({}, "the program did not wait for the confirm")

    def notice(self, request_id: int) -> bytes:
        """Returns the payload that announces the trace of a push; empty if the trace is not sampled."""
        span = self._open.get(request_id)
        if span is None:
            return b""
        return TRACE.encode_request(TraceNotice(request_id, self.publisher, span.traceparent))


class TracedPushQueue(PushQueue):
    """A push queue with the spans of its pushes, `traces`, which `traced_queue` sets."""

    traces: QueueTraces

    def push(self, data: bytes) -> Push:
        return self._trace(partial(super().push, data))

    def push_keyed(self, data: bytes, key: bytes | None, headers: Sequence[Header]) -> KeyedPush:
        return self._trace(partial(super().push_keyed, data, key, headers))

    def _trace(self, send: Callable[[], P]) -> P:
        request_id = self._next_request_id
        if not self.traces.begin(request_id):
            return send()
        try:
            push = send()
        except BaseException:
            self.traces.abandon(request_id)
            raise
        push.when_done(partial(self.traces.end, request_id, push))
        return push

    def open(self, route: Route) -> None:
        self.traces.header = self._connection.header(route, self.traces.notice_address)
        super().open(route)

    def forget(self, push: Push) -> None:
        for request_id in [request_id for request_id, each in self.pushes.items() if each is push]:
            self.traces.abandon(request_id)
        super().forget(push)

    def _send(self, request_id: int, push: Push) -> None:
        # The notice goes directly before the push, so that both arrive together.
        notice = self.traces.notice(request_id)
        if notice and self.traces.header:
            self._connection.put_frame(self.traces.header, notice)
        super()._send(request_id, push)


class TracedSequencedQueue(TracedPushQueue, SequencedPushQueue):
    """The traced push queue of an idempotent publisher."""


def traced_queue(
    tracing: Tracing,
    name: str,
    connection: ClientConnection,
    address: Address,
    partition: int,
    failed: list[Push] | None,
    sequences: SequenceMachine | None,
) -> PushQueue:
    """Returns a push queue that makes a span of each push to the stream `name`. Other parameters: see PushQueue."""
    queue = (
        TracedPushQueue(connection, address, partition, failed)
        if sequences is None
        else TracedSequencedQueue(connection, address, partition, failed, sequences)
    )
    queue.traces = QueueTraces(tracing, name, partition, address)
    return queue
