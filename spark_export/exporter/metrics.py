"""The metrics of the exporter, and their text format for Prometheus.

The exporter serves no port. Its daemon writes the metrics to a file, for the textfile collector of Prometheus' node
exporter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ockam.files.durable_files import write_durably
from spark_export.exporter.planning import AMOUNTS, ExportStep
from spark_export.exporter.run import ExportOutcome


def _metric(kind: str, name: str, text: str, default: float | None = 0) -> Any:
    """Returns a field of ExporterStatistics, with its name and its explanation in Prometheus' format."""
    return field(default=default, metadata={"kind": kind, "name": f"stream_node_export_{name}", "text": text})


_counter, _gauge = partial(_metric, "counter"), partial(_metric, "gauge")


@dataclass(frozen=True)
class ExporterStatistics(Collector):
    """The metrics of an exporter since its process started. A gauge without a value is left out."""

    runs: int = _counter("runs_total", "Runs that ended, successful or not.")
    idle_runs: int = _counter("idle_runs_total", "Runs that found nothing new.")
    failed_runs: int = _counter(
        "failed_runs_total", "Runs that failed or left a stream out. The next run exports what they did not publish."
    )
    steps: int = _counter("steps_total", "Steps published. A run publishes the new messages in one or more steps.")
    compactions: int = _counter("compactions_total", "Compactions that merged files.")
    failed_upkeeps: int = _counter(
        "failed_upkeeps_total", "Upkeeps that failed. An upkeep compacts files and removes old ones."
    )
    expired: int = _counter("expired_total", "Old files and old versions of the table that were removed.")
    skipped_starts: int = _counter(
        "skipped_starts_total", "Scheduled starts that were skipped because the previous run was still going on."
    )
    rows: int = _counter("rows_total", "Rows published.")
    data_bytes: int = _counter("data_bytes_total", "Bytes of message data published.")
    file_bytes: int = _counter("file_bytes_total", "Bytes of files published.")
    files: int = _counter("files_total", "Files published.")
    lost: int = _counter("lost_messages_total", "Messages that retention removed before they could be exported.")
    streams_left_out: int = _gauge(
        "streams_left_out", "Streams that the last run left out because they could not be exported."
    )
    rows_left: int = _gauge(
        "rows_left", "New messages that the last run did not export because it reached its time limit."
    )
    last_run_seconds: float = _gauge("last_run_seconds", "Duration of the last successful run, in seconds.", 0.0)
    last_success_s: float | None = _gauge(
        "last_success_timestamp_seconds", "Time at which the last successful run ended, in seconds since 1970.", None
    )

    def added(self, **amounts: int) -> ExporterStatistics:
        """Returns the metrics with these amounts added to the counters of these names."""
        return replace(self, **{name: getattr(self, name) + amount for name, amount in amounts.items()})

    def after_step(self, step: ExportStep) -> ExporterStatistics:
        """Returns the metrics after a step was published, even if its run goes on."""
        return self.added(steps=1, **{name: getattr(step, name) for name in AMOUNTS})

    def after_run(self, outcome: ExportOutcome, now_s: float) -> ExporterStatistics:
        """Returns the metrics after a run whose steps `after_step` has counted. A run that left out streams counts as
        failed."""
        told = replace(self, streams_left_out=len(outcome.left_out), rows_left=outcome.rows_left)
        if outcome.left_out:
            return told.added(runs=1, failed_runs=1)
        told = told.added(runs=1, idle_runs=outcome.run_id is None)
        return replace(told, last_run_seconds=outcome.seconds, last_success_s=now_s)

    def collect(self) -> Iterator[Metric]:
        for each in fields(self):
            value, known = getattr(self, each.name), each.metadata
            if value is not None:
                # prometheus-client adds the ending of a counter itself.
                family = Metric(known["name"].removesuffix("_total"), known["text"], known["kind"])
                family.add_sample(known["name"], {}, float(value))
                yield family


def to_prometheus(statistics: ExporterStatistics) -> str:
    """Returns the metrics in Prometheus' text format, made by prometheus-client."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(statistics)
    return generate_latest(registry).decode()


def write_metrics(path: Path, statistics: ExporterStatistics) -> None:
    """Replaces the file atomically, so that no reader sees half of it. Raises OSError."""
    write_durably(path, to_prometheus(statistics).encode())
