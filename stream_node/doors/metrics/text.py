"""Makes the text of a snapshot for Prometheus. The library prometheus-client makes every line of the text."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from stream_node.doors.metrics.catalogue import METRICS
from stream_node.doors.metrics.snapshot import Metric, Snapshot, Values
from stream_storage.histogram import Histogram

GZIP_LEVEL = 1
"""The text repeats itself, so even the fastest level makes it ten times smaller."""
_UNWANTED = re.compile(
    r"""; \s* (q \s*=\s* 0 (\.0*)? \s* (;|$) | version \s*=\s* (?! "?(0\.0\.4|1\.0\.0)"? \s* (;|$)))""",
    re.VERBOSE | re.IGNORECASE,
)


class SnapshotCollector(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Family]:
        for metric in METRICS:
            values = metric.values(self._snapshot)
            if values is not None:
                yield family_of(metric, values)


def family_of(metric: Metric, values: Values) -> Family:
    if isinstance(values, Histogram):
        # The counts may grow while they are read, and the lines of one histogram must agree.
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


def render(snapshot: Snapshot, accept: str = "", accept_encoding: str = "") -> tuple[bytes, dict[str, str]]:
    """Returns the text of all metrics, with those of the process, and its headers. It takes milliseconds."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SnapshotCollector(snapshot))
    ProcessCollector(registry=registry)
    # prometheus-client does not know q=0, and claims any version that the request asks for.
    encode, content_type = choose_encoder(_wanted(accept))
    text, headers = encode(registry), {"content-type": content_type, "vary": "accept, accept-encoding"}
    if gzip_accepted(_wanted(accept_encoding)):
        text, headers["content-encoding"] = gzip.compress(text, GZIP_LEVEL), "gzip"
    return text, headers


def _wanted(header: str) -> str:
    """Returns a header Accept without the entries that it excludes (q=0) and the versions that are not made here."""
    return ",".join(each for each in header.split(",") if not _UNWANTED.search(each))
