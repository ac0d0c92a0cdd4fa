"""The metrics of the exporter, and their text format for Prometheus.

The exporter serves no port. Its daemon writes the metrics to a file, for the textfile collector of Prometheus' node
exporter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ockam.files.durable_files import write_durably
from spark_export.exporter.run import ExportOutcome
from spark_export.exporter.step import ExportStep
from spark_export.exporter.upkeep import Kept


@dataclass(frozen=True)
class ExporterStatistics:
    """The metrics of an exporter since its process started; COUNTERS and GAUGES describe each field."""

    runs: int = 0
    idle_runs: int = 0
    failed_runs: int = 0
    skipped_starts: int = 0
    rows: int = 0
    data_bytes: int = 0
    file_bytes: int = 0
    files: int = 0
    lost: int = 0
    steps: int = 0
    streams_left_out: int = 0
    rows_left: int = 0
    compactions: int = 0
    failed_upkeeps: int = 0
    expired: int = 0
    last_run_seconds: float = 0.0
    last_success_s: float | None = None

    def after_step(self, step: ExportStep) -> ExporterStatistics:
        """Returns the metrics after a step was published, even if its run goes on."""
        return replace(
            self,
            steps=self.steps + 1,
            rows=self.rows + step.rows,
            data_bytes=self.data_bytes + step.data_bytes,
            file_bytes=self.file_bytes + step.file_bytes,
            files=self.files + step.files,
            lost=self.lost + step.lost,
        )

    def after_run(self, outcome: ExportOutcome, now_s: float) -> ExporterStatistics:
        """Returns the metrics after a run whose steps `after_step` has counted. A run that left out streams counts as
        failed."""
        told = replace(self, streams_left_out=len(outcome.left_out), rows_left=outcome.rows_left)
        if outcome.left_out:
            return told.after_failure()
        return replace(
            told,
            runs=self.runs + 1,
            idle_runs=self.idle_runs + (outcome.run_id is None),
            last_run_seconds=outcome.seconds,
            last_success_s=now_s,
        )

    def after_failure(self) -> ExporterStatistics:
        return replace(self, runs=self.runs + 1, failed_runs=self.failed_runs + 1)

    def after_upkeep(self, done: Kept | None) -> ExporterStatistics:
        """Returns the metrics after an upkeep; `done` is None if the upkeep failed."""
        if done is None:
            return replace(self, failed_upkeeps=self.failed_upkeeps + 1)
        compactions = self.compactions + (done.merged > 0)
        return replace(self, compactions=compactions, expired=self.expired + done.expired)

    def after_skips(self, skipped: int) -> ExporterStatistics:
        return replace(self, skipped_starts=self.skipped_starts + skipped)


COUNTERS: Mapping[str, tuple[str, str]] = {
    "runs": ("runs_total", "Runs that ended, however they did."),
    "idle_runs": ("idle_runs_total", "Runs that found nothing new."),
    "failed_runs": ("failed_runs_total", "Runs that failed, or left a stream out; what they took is taken again."),
    "steps": ("steps_total", "Steps published. A run publishes what is new in one or more steps."),
    "compactions": ("compactions_total", "Compactions published."),
    "failed_upkeeps": ("failed_upkeeps_total", "Compactions, or removals of old files, that failed."),
    "expired": ("expired_total", "Replaced files, old generations and old snapshots removed."),
    "skipped_starts": ("skipped_starts_total", "Starts whose time came while the last run went on."),
    "rows": ("rows_total", "Rows published."),
    "data_bytes": ("data_bytes_total", "Bytes of messages' data published."),
    "file_bytes": ("file_bytes_total", "Bytes of files published."),
    "files": ("files_total", "Files published."),
    "lost": ("lost_messages_total", "Messages that retention took before they could be exported."),
}
GAUGES: Mapping[str, tuple[str, str]] = {
    "streams_left_out": ("streams_left_out", "Streams that the last run could not export, while it exported others."),
    "rows_left": ("rows_left", "New rows that the last run did not export because its time was over."),
    "last_run_seconds": ("last_run_seconds", "How long the last successful run took."),
    "last_success_s": ("last_success_timestamp_seconds", "When the last successful run ended."),
}


def to_prometheus(statistics: ExporterStatistics) -> str:
    """Returns the metrics in Prometheus' text format, made by prometheus-client."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_StatisticsCollector(statistics))
    return generate_latest(registry).decode()


class _StatisticsCollector(Collector):
    def __init__(self, statistics: ExporterStatistics) -> None:
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        for kind, metrics in (("counter", COUNTERS), ("gauge", GAUGES)):
            for field, (name, text) in metrics.items():
                value = getattr(self._statistics, field)
                if value is not None:
                    full = f"stream_node_export_{name}"
                    # prometheus-client adds the ending of a counter itself.
                    family = Metric(full.removesuffix("_total") if kind == "counter" else full, text, kind)
                    family.add_sample(full, {}, float(value))
                    yield family


def write_metrics(path: Path, statistics: ExporterStatistics) -> None:
    """Replaces the file atomically, so that no reader sees half of it. Raises OSError."""
    write_durably(path, to_prometheus(statistics).encode())
