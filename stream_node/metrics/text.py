"""Makes the text for Prometheus of a snapshot. prometheus-client makes every line of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from storage.histogram import Histogram
from stream_node.metrics.catalogue import METRICS
from stream_node.metrics.family import Metric, Values
from stream_node.metrics.snapshot import Snapshot

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


class SnapshotCollector(Collector):
    """The metrics of one snapshot, for a registry of prometheus-client."""

    def __init__(self, snapshot: Snapshot, metrics: Iterable[Metric] = METRICS) -> None:
        self._snapshot = snapshot
        self._metrics = tuple(metrics)

    def collect(self) -> Iterator[Family]:
        for metric in self._metrics:
            values = metric.values(self._snapshot)
            if values is not None:
                yield family_of(metric, values)


def family_of(metric: Metric, values: Values) -> Family:
    """Returns the values of one metric as prometheus-client has them."""
    if isinstance(values, Histogram):
        # The counts may grow while they are read, and the text must fit together.
        counts = list(values.counts)
        bounds = [*(str(float(bound)) for bound in values.bounds), "+Inf"]
        buckets = list(zip(bounds, map(float, accumulate(counts)), strict=True))
        family = HistogramMetricFamily(metric.name, metric.text)
        family.add_metric([], buckets=buckets, sum_value=values.total)
        return family
    kind = "unknown" if metric.kind == "untyped" else metric.kind
    # prometheus-client adds the ending of a counter itself.
    made = Family(metric.name.removesuffix("_total") if kind == "counter" else metric.name, metric.text, kind)
    if not isinstance(values, dict):
        assert isinstance(values, int | float), f"{metric.name} has no number"
        made.add_sample(metric.name, {}, float(values))
        return made
    for names, value in values.items():
        each = (names,) if isinstance(names, str) else names
        made.add_sample(metric.name, dict(zip(metric.labels, each, strict=True)), float(value))
    return made


def render(snapshot: Snapshot) -> bytes:
    """Returns the text of all metrics, with those of the process. Takes milliseconds: call it in a thread."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SnapshotCollector(snapshot))
    ProcessCollector(registry=registry)
    return generate_latest(registry)
