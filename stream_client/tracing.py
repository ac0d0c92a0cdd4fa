"""`start_tracing` and `queue_maker`: the argument `traces` of `connect`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from stream_client.core.streams_in_use import MakeQueue, plain_queue
from stream_client.errors import InvalidArgument

if TYPE_CHECKING:
    from ockam.tracing.spans import Tracing

SERVICE = "stream-client"
"""The name of a client in its spans, unless OTEL_SERVICE_NAME gives another one."""


def start_tracing(traces: str | bool) -> Tracing | None:
    """Returns an object that makes the spans of a client, or None if `traces` is false. Raises InvalidArgument."""
    if traces is False:
        return None
    # Only a client that traces loads OpenTelemetry.
    from ockam.tracing.opening import TracingUnavailable, open_tracing

    try:
        return open_tracing(None if traces is True else traces, SERVICE)
    except TracingUnavailable as error:
        raise InvalidArgument(str(error)) from error


def queue_maker(tracing: Tracing | None) -> MakeQueue:
    """Returns the function that makes the push queues of a client; without `tracing`, plain queues."""
    if tracing is None:
        return plain_queue
    from stream_client.core.traced_queue import traced_queue

    return partial(traced_queue, tracing)
