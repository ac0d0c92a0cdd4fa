"""Formats the metrics of backfill in the text format of Prometheus.

The names and the types of the first six metrics come from specs/backfill.md. No port is opened: `stream-node block
backfill status --metrics` prints the metrics for a collector.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from block_node.backfill.protocol import BackfillReport

METRICS = (
    ("gaps_detected", "backfill_gaps_detected", "counter", "Gaps detected during the backfill process."),
    ("blocks_fetched", "backfill_blocks_fetched", "counter", "Blocks fetched during the backfill process."),
    ("blocks_stored", "backfill_blocks_stored", "counter", "Blocks successfully stored in the local storage."),
    ("fetch_errors", "backfill_fetch_errors", "counter", "Errors encountered while fetching blocks."),
    ("state", "backfill_status", "gauge", "0 idle, 1 running, 2 blocks are missing or it is unknown which, 3 off."),
    ("queue", "backfill_queue_size", "gauge", "Blocks pending to be backfilled."),
    (
        "missing",
        "backfill_missing_blocks",
        "gauge",
        "Blocks that the last scan found missing and that are still missing; no value while nobody knows.",
    ),
    (
        "problem",
        "backfill_failing",
        "gauge",
        "1 while blocks are missing that could not be fetched, or nobody knows which are missing.",
    ),
    ("under_way", "backfill_fetches_under_way", "gauge", "Requests to sources that are under way."),
    ("held_bytes", "backfill_held_bytes", "gauge", "Bytes of blocks that were fetched and are not stored."),
    ("fetched_bytes", "backfill_fetched_bytes", "counter", "Bytes fetched."),
    ("persistence_failures", "backfill_persistence_failures", "counter", "Blocks that could not be stored."),
    ("given_up", "backfill_given_up", "counter", "Holes that were given up until the next scan."),
    ("scans", "backfill_scans", "counter", "Scans for gaps."),
    ("runs", "backfill_runs", "counter", "Runs of filling that were begun."),
)
OF_SOURCES = (
    ("blocks", "backfill_source_blocks", "counter", "Blocks fetched from the source."),
    ("size_bytes", "backfill_source_bytes", "counter", "Bytes fetched from the source."),
    ("errors", "backfill_source_errors", "counter", "Failures of the source."),
    ("failures", "backfill_source_failures", "gauge", "Failures of the source in a row."),
)


COUNTERS = [name for _, name, kind, _ in (*METRICS, *OF_SOURCES) if kind == "counter"]


def to_prometheus(answer: BackfillReport) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_AnswerCollector(answer))
    text = generate_latest(registry).decode()
    # prometheus-client gives a counter another name than the specification has, so the type is written here.
    for name in COUNTERS:
        text = text.replace(f"# TYPE {name} untyped\n", f"# TYPE {name} counter\n")
    return text


class _AnswerCollector(Collector):
    def __init__(self, answer: BackfillReport) -> None:
        self._answer = answer

    def collect(self) -> Iterator[Metric]:
        answer = self._answer
        for field, name, kind, text in METRICS:
            # The problem is a text; its metric says only whether there is a problem.
            value = answer.known_missing if field == "missing" else getattr(answer, field)
            yield _family(name, kind, text, {} if value is None else {"": bool(value) if field == "problem" else value})
        if answer.eta_ms is not None:
            text = "Estimated seconds until all pending blocks are stored."
            yield _family("backfill_eta_seconds", "gauge", text, {"": answer.eta_ms / 1_000})
        for field, name, kind, text in OF_SOURCES:
            yield _family(name, kind, text, {source.name: getattr(source, field) for source in answer.sources})
        text = "Mean time of the source's answer to block_status."
        latencies = {each.name: each.latency_us / 1e6 for each in answer.sources if each.latency_us is not None}
        yield _family("backfill_source_latency_seconds", "gauge", text, latencies)
        text = "1 if the source has not failed since its last success."
        health = {source.name: not source.failures for source in answer.sources}
        yield _family("backfill_source_healthy", "gauge", text, health)


def _family(name: str, kind: str, text: str, values: Mapping[str, float]) -> Metric:
    """Returns a metric with a value for each source, or with one value under the name ""."""
    # `to_prometheus` writes the type of counters.
    family = Metric(name, text, "unknown" if kind == "counter" else kind)
    for source, value in values.items():
        family.add_sample(name, {"source": source} if source else {}, float(value))
    return family
