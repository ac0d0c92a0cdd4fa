"""Exports spans by OpenTelemetry's queue and thread, and counts the spans that are lost. Needs the extra `otel`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from ockam.tracing.statistics import TracingStatistics

WAITING_MAX = 8_192
"""The number of spans that may wait. A further span is dropped. A span takes about 2 KiB."""


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


def make_exporting(
    url: str | None, service: str, on_outage: Callable[[bool], None] | None
) -> tuple[TracerProvider, CountingProcessor]:
    """Starts the exporting thread. Environment variables of OpenTelemetry set sampling and more (OTEL_TRACES_SAMPLER,
    OTEL_RESOURCE_ATTRIBUTES, OTEL_EXPORTER_OTLP_HEADERS, OTEL_BSP_SCHEDULE_DELAY). url: None if they name it."""
    if on_outage is not None:
        # OpenTelemetry logs each request that fails. A collector that is down for hours must not fill the log.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    resource = Resource.create({SERVICE_NAME: service}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    processor = CountingProcessor(
        CountingExporter(OTLPSpanExporter(endpoint=url), on_outage or (lambda is_failing: None))
    )
    provider.add_span_processor(processor)
    return provider, processor
