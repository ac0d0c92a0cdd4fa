"""PushTraces: matches each announced trace with its push, and makes the spans of a push when its confirm is made:

receive             from the arrival of the push to its confirm; within the span of the client
├── wait in batch   until the writing thread begins the transaction
├── commit          the transaction and its sync; shared by all pushes in it
└── confirm         until the confirm is made
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ockam.actors.address import Route, local
from ockam.actors.message import Message
from ockam.protocol import ProtocolError
from stream_service.extensions import TRACE, TRACEPARENT_BYTES_MAX, PushBatch, RichPush
from stream_service.protocol import PushRequest
from stream_storage.contract import Append

if TYPE_CHECKING:
    from ockam.tracing.spans import Tracing

ANNOUNCED_MAX = 10_000
"""The largest number of announced traces that wait for their pushes: as many as a mailbox delivers at a time."""
SPANS_OF_PUSH = 4


class TracedPush(NamedTuple):
    """A push of a trace: the span of the client, and when the trace was announced, in nanoseconds since 1970."""

    parent: Any
    arrived_ns: int


class PushTraces:
    """The traces of one stream-partition. Invariant: at most ANNOUNCED_MAX traces wait for their push."""

    def __init__(self, tracing: Tracing, name: str, partition: int) -> None:
        self._tracing = tracing
        self._attributes = {
            "messaging.system": "stream-node",
            "messaging.destination.name": name,
            "messaging.destination.partition.id": str(partition),
        }
        self._announced: dict[tuple[Route, int], TracedPush] = {}

    def announce(self, message: Message) -> None:
        """Notes the trace of a push that comes after this message. Raises ProtocolError."""
        notice = TRACE.decode_request(message.payload)
        if len(notice.traceparent) > TRACEPARENT_BYTES_MAX:
            raise ProtocolError(f"a traceparent above {TRACEPARENT_BYTES_MAX} bytes")
        parent = self._tracing.parent_of(notice.traceparent)
        if parent is None:
            return
        if len(self._announced) >= ANNOUNCED_MAX:
            del self._announced[next(iter(self._announced))]
        route = (*message.return_route[:-1], local(notice.publisher))
        self._announced[route, notice.request_id] = TracedPush(parent, time.time_ns())

    def match(
        self, messages: Sequence[Message], requests: Sequence[PushRequest | PushBatch | RichPush]
    ) -> list[TracedPush]:
        if not self._announced:
            return []
        found = (
            self._announced.pop((message.return_route, request.request_id), None)
            for message, request in zip(messages, requests, strict=True)
        )
        return [each for each in found if each is not None]

    def stored(self, traced: Iterable[TracedPush], operation: Append | None) -> None:
        """Makes the spans of confirmed pushes. operation: the append that has stored them; None: nothing was
        new."""
        record, now_ns = self._tracing.record, time.time_ns()
        for each in traced:
            if not self._tracing.admit(SPANS_OF_PUSH):
                continue
            receive = record("receive", each.parent, each.arrived_ns, now_ns, self._attributes, kind="server")
            if operation is None or operation.commit is None:
                continue
            began_ns, ended_ns, rows = operation.commit
            record("wait in batch", receive, each.arrived_ns, began_ns, {})
            sizes = {"stream_node.append_messages": len(operation.data), "stream_node.commit_messages": rows}
            record("commit", receive, began_ns, ended_ns, sizes)
            record("confirm", receive, ended_ns, now_ns, {})

    def refused(self, traced: Iterable[TracedPush], reason: str) -> None:
        record, now_ns = self._tracing.record, time.time_ns()
        for each in traced:
            if self._tracing.admit(1):
                record("receive", each.parent, each.arrived_ns, now_ns, self._attributes, kind="server", error=reason)
