"""TracedPushQueue: a push queue that makes a span of each push, and reports the trace of the push to the node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ockam.actors.address import Address, Route, local
from stream_client.core.push_queue import PushQueue, SequencedPushQueue
from stream_client.core.pushes import KeyedPush, Push
from stream_service.extensions import TRACE, Header, TraceNotice

if TYPE_CHECKING:
    from ockam.tracing.spans import OpenSpan, Tracing

P = TypeVar("P", bound=Push)


class TracedPushQueue(PushQueue):
    """A push queue with the open spans of its pushes, by request id. Pushes whose trace is not sampled have no span.
    `_trace_header` begins the frames of the notices; it is empty before the first connection."""

    _tracing: Tracing
    _trace_name: str
    _trace_address: Address
    _trace_header = b""
    _span_name: str
    _attributes: dict[str, str]
    _spans: dict[int, OpenSpan]

    def trace(self, tracing: Tracing, name: str) -> None:
        """Begins to trace the pushes to the stream `name`. To be called once, before the first push."""
        self._tracing = tracing
        self._trace_name = self.address.value.decode()
        # No queue has this return address of the messages that announce traces, so the `error` of a node that does not
        # know these messages reaches no push.
        self._trace_address = local(f"{self._trace_name}/trace")
        self._span_name = f"push {name}"
        self._attributes = {
            "messaging.system": "stream-node",
            "messaging.operation.name": "push",
            "messaging.destination.name": name,
            "messaging.destination.partition.id": str(self.partition),
        }
        self._spans = {}

    def push(self, data: bytes) -> Push:
        return self._traced(partial(super().push, data))

    def push_keyed(self, data: bytes, key: bytes | None, headers: Sequence[Header]) -> KeyedPush:
        return self._traced(partial(super().push_keyed, data, key, headers))

    def _traced(self, send: Callable[[], P]) -> P:
        request_id = self._next_request_id
        span = self._tracing.start(self._span_name, self._attributes)
        if span is None:
            return send()
        self._spans[request_id] = span
        try:
            push = send()
        except BaseException:
            self._abandon(request_id)
            raise
        push.when_done(partial(self._end, request_id, push))
        return push

    def _end(self, request_id: int, push: Push) -> None:
        span = self._spans.pop(request_id, None)
        if span is None:
            return
        attributes: dict[str, str | int] = {"messaging.message.body.size": len(push.data)}
        if push.error is None:
            attributes["messaging.message.id"] = str(push.index)
        span.end(attributes, None if push.error is None else str(push.error))

    def _abandon(self, request_id: int) -> None:
        """Ends the span of a push whose confirm the program does not wait for, or whose client has ended."""
        span = self._spans.pop(request_id, None)
        if span is not None:
            span.end({}, "the program did not wait for the confirm")

    def open(self, route: Route) -> None:
        self._trace_header = self._connection.header(route, self._trace_address)
        super().open(route)

    def forget(self, push: Push) -> None:
        for request_id in [request_id for request_id, each in self.pushes.items() if each is push]:
            self._abandon(request_id)
        super().forget(push)

    def _send(self, request_id: int, push: Push) -> None:
        # The notice that announces the trace goes directly before the push, so that both arrive together.
        span = self._spans.get(request_id)
        if span is not None and self._trace_header:
            notice = TraceNotice(request_id, self._trace_name, span.traceparent)
            self._connection.put_frame(self._trace_header, TRACE.encode_request(notice))
        super()._send(request_id, push)


class TracedSequencedQueue(TracedPushQueue, SequencedPushQueue):
    """The traced push queue of an idempotent publisher."""
