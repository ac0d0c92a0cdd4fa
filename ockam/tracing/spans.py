"""Tracing: makes the spans of this process, exports them by OpenTelemetry's queue and thread, and counts those that are
lost. Needs the extra `otel`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ockam.tracing.statistics import TracingStatistics

Attributes: TypeAlias = Mapping[str, str | int]

WAITING_MAX = 8_192
"""The number of spans that may wait. A further span is dropped. A span takes about 2 KiB."""
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


class CountingExporter(SpanExporter):
    """Sends spans by another exporter, and counts them. on_outage: called when sending fails (True) or works again."""

    def __init__(self, exporter: SpanExporter, on_outage: Callable[[bool], None]) -> None:
        self._exporter = exporter
        self._on_outage = on_outage
        self._is_failing = self._is_shut = False
        self.exported = 0
        self.failed = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            # The queue may still hand over spans after the time of `CountingProcessor.close` is up.
            if not self._is_shut:
                result = self._exporter.export(spans)
        finally:
            is_failing = result is not SpanExportResult.SUCCESS
            if is_failing:
                self.failed += len(spans)
            else:
                self.exported += len(spans)
            if is_failing is not self._is_failing:
                self._is_failing = is_failing
                self._on_outage(is_failing)
        return result

    def shutdown(self) -> None:
        if not self._is_shut:
            self._is_shut = True
            self._exporter.shutdown()


class CountingProcessor(BatchSpanProcessor):
    """The queue of spans, bounded and counted. Invariant: `waiting` is at least the number of spans in OpenTelemetry's
    own queue, which would drop without counting."""

    def __init__(self, exporter: CountingExporter) -> None:
        super().__init__(exporter, max_queue_size=WAITING_MAX)
        self._exporter = exporter
        self._lock = threading.Lock()
        self._accepted = 0
        self._dropped = 0

    @property
    def waiting(self) -> int:
        return self._accepted - self._exporter.exported - self._exporter.failed

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is None or not span.context.trace_flags.sampled:
            return
        with self._lock:
            if self.waiting >= WAITING_MAX:
                self._dropped += 1
                return
            self._accepted += 1
        super().on_end(span)

    def admit(self, spans: int) -> bool:
        """Whether there is room for this number of further spans. If not, they count as dropped: do not make them."""
        with self._lock:
            if self.waiting + spans <= WAITING_MAX:
                return True
            self._dropped += spans
        return False

    def statistics(self) -> TracingStatistics:
        exporter = self._exporter
        return TracingStatistics(exporter.exported, exporter.failed, self._dropped, self.waiting)

    def close(self, timeout_s: float) -> None:
        ending = threading.Thread(target=self.shutdown, name="traces-end", daemon=True)
        try:
            ending.start()
        except RuntimeError:
            # The system has no room for one more thread. The spans that wait are lost.
            self._exporter.shutdown()
            return
        ending.join(timeout_s)
        if ending.is_alive():
            # The exporter waits for a collector that does not answer: this ends its waiting.
            self._exporter.shutdown()


class Tracing:
    """Makes spans, and hands them to the exporting thread. Any thread may call it. Only `close` waits."""

    def __init__(self, url: str | None, service: str, on_outage: Callable[[bool], None] | None) -> None:
        """Starts the exporting thread. Parameters as for `open_tracing`, with the path in `url`. Environment variables
        of OpenTelemetry set sampling and more (OTEL_TRACES_SAMPLER, OTEL_RESOURCE_ATTRIBUTES,
        OTEL_EXPORTER_OTLP_HEADERS, OTEL_BSP_SCHEDULE_DELAY)."""
        if on_outage is not None:
            # OpenTelemetry logs each request that fails. A collector that is down for hours must not fill the log.
            logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        resource = Resource.create({SERVICE_NAME: service}).merge(OTELResourceDetector().detect())
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = CountingExporter(OTLPSpanExporter(endpoint=url), on_outage or (lambda is_failing: None))
        self._processor = CountingProcessor(exporter)
        provider.add_span_processor(self._processor)
        self.admit, self.statistics = self._processor.admit, self._processor.statistics
        self._tracer = provider.get_tracer("stream-node")

    def start(self, name: str, attributes: Attributes) -> OpenSpan | None:
        """Begins a span of a request to another process. Returns None if the trace is not sampled."""
        span = self._tracer.start_span(name, kind=SpanKind.CLIENT, attributes=attributes)
        return OpenSpan(span) if span.get_span_context().trace_flags.sampled else None

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

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Sends the waiting spans and ends the exporting thread. Waits at most `timeout_s` seconds. Safe to repeat."""
        self._processor.close(timeout_s)
