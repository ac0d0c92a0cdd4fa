"""Tracing: makes the spans of this process. Needs the extra `otel`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ockam.tracing.exporting import CountingProcessor
from ockam.tracing.statistics import TracingStatistics

Attributes: TypeAlias = Mapping[str, str | int]

CLOSE_TIMEOUT_S = 2.0
PROPAGATOR = TraceContextTextMapPropagator()
KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT, "server": SpanKind.SERVER}


class OpenSpan:
    """A span that has begun. traceparent: continues the trace in another process (W3C Trace Context)."""

    __slots__ = ("_span", "traceparent")

    def __init__(self, span: Span) -> None:
        self._span = span
        carrier: dict[str, str] = {}
        PROPAGATOR.inject(carrier, trace.set_span_in_context(span))
        self.traceparent = carrier["traceparent"]

    def end(self, attributes: Attributes, error: str | None = None) -> None:
        """Ends the span. attributes: those that are known now. error: why the work failed; None: it succeeded."""
        self._span.set_attributes(attributes)
        if error is not None:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end()


class Tracing:
    """Makes spans, and hands them to the exporting thread. Any thread may call it. Only `close` waits."""

    def __init__(self, provider: TracerProvider, processor: CountingProcessor) -> None:
        self._processor = processor
        self._tracer = provider.get_tracer("stream-node")

    def start(self, name: str, attributes: Attributes) -> OpenSpan | None:
        """Begins a span of a request to another process. Returns None if the trace is not sampled."""
        span = self._tracer.start_span(name, kind=SpanKind.CLIENT, attributes=attributes)
        return OpenSpan(span) if span.get_span_context().trace_flags.sampled else None

    def admit(self, spans: int) -> bool:
        """Whether there is room for further spans. If not, they count as dropped: do not record them."""
        return self._processor.admit(spans)

    def parent_of(self, traceparent: str) -> Any | None:
        """Returns the parent for `record` that continues a trace; None if the text is wrong or the trace unsampled."""
        context = PROPAGATOR.extract({"traceparent": traceparent})
        span = trace.get_current_span(context).get_span_context()
        return context if span.is_valid and span.trace_flags.sampled else None

    def record(
        self,
        name: str,
        parent: Any,
        started_ns: int,
        ended_ns: int,
        attributes: Attributes,
        *,
        kind: str = "internal",
        error: str | None = None,
    ) -> Any:
        """Records a span of work that has ended. Returns the `parent` of the spans within it.

        parent: the result of `parent_of` or `record`. started_ns, ended_ns: in nanoseconds since 1970.
        kind: "internal", or "server" for the answer to a request of another process."""
        # A clock that was set back meanwhile must not make a span that ends before it begins.
        begun_ns = min(started_ns, ended_ns)
        span = self._tracer.start_span(name, parent, KINDS[kind], attributes, start_time=begun_ns)
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(ended_ns)
        return trace.set_span_in_context(span)

    def statistics(self) -> TracingStatistics:
        return self._processor.statistics()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Sends the waiting spans and ends the exporting thread. Waits at most `timeout_s` seconds. Safe to repeat."""
        self._processor.close(timeout_s)
