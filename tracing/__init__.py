"""Tracing: OpenTelemetry spans of what a client and a node do with one push, sent to a collector over HTTP.

    tracing = open_tracing("http://127.0.0.1:4318", "stream-node")
    span = tracing.start("push", {})
    receive = tracing.record("receive", tracing.parent_of(span.traceparent), started_ns, ended_ns, {})
    tracing.close()

- `tracing.opening` opens a Tracing. It needs the extra `otel`, and raises TracingUnavailable without it.
- `tracing.spans` makes spans; `tracing.exporting` sends them, in a thread of its own, and counts those that are lost.

This package knows nothing of streams. A program that does not call `open_tracing` loads no part of OpenTelemetry.
"""

from __future__ import annotations

from tracing.errors import TracingUnavailable
from tracing.opening import open_tracing
from tracing.statistics import TracingStatistics

__all__ = ["TracingStatistics", "TracingUnavailable", "open_tracing"]
