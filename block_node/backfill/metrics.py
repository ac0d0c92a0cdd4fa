"""Formats the metrics of backfill in the text format of Prometheus.

The names of the first six metrics come from specs/backfill.md. No port is opened: `stream-node block backfill status
--metrics` prints the metrics for a collector.
"""

from __future__ import annotations

from collections.abc import Iterator

from block_node.backfill.protocol import BackfillAnswer, BackfillSource

SPECIFIED = (
    ("gaps_detected", "backfill_gaps_detected", "counter", "Gaps detected during the backfill process."),
    ("blocks_fetched", "backfill_blocks_fetched", "counter", "Blocks fetched during the backfill process."),
    ("blocks_stored", "backfill_blocks_stored", "counter", "Blocks successfully stored in the local storage."),
    ("fetch_errors", "backfill_fetch_errors", "counter", "Errors encountered while fetching blocks."),
    ("state", "backfill_status", "gauge", "0 idle, 1 running, 2 the last run could not fill all, 3 off."),
    ("queue", "backfill_queue_size", "gauge", "Blocks pending to be backfilled."),
)
MORE = (
    (
        "missing",
        "backfill_missing_blocks",
        "gauge",
        "Blocks that the last scan found missing and that are still missing.",
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


def to_prometheus(answer: BackfillAnswer) -> str:
    """Formats an answer of the backfill service as Prometheus samples."""
    return "".join(f"{line}\n" for line in _lines(answer))


def _lines(answer: BackfillAnswer) -> Iterator[str]:
    for field, name, kind, text in (*SPECIFIED, *MORE):
        yield from _head(name, kind, text)
        yield f"{name} {getattr(answer, field)}"
    if answer.eta_ms is not None:
        yield from _head("backfill_eta_seconds", "gauge", "Estimated seconds until all pending blocks are stored.")
        yield f"backfill_eta_seconds {answer.eta_ms / 1_000}"
    for field, name, kind, text in OF_SOURCES:
        yield from _head(name, kind, text)
        yield from (f"{name}{{{_label(source)}}} {getattr(source, field)}" for source in answer.sources)
    yield from _head("backfill_source_latency_seconds", "gauge", "Mean time of the source's answer to block_status.")
    for source in answer.sources:
        if source.latency_us is not None:
            yield f"backfill_source_latency_seconds{{{_label(source)}}} {source.latency_us / 1e6}"
    yield from _head("backfill_source_healthy", "gauge", "1 if the source may be asked now, 0 while it is left alone.")
    yield from (
        f"backfill_source_healthy{{{_label(source)}}} {int(not source.backoff_ms)}" for source in answer.sources
    )


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def _label(source: BackfillSource) -> str:
    escaped = source.name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'source="{escaped}"'
