"""The exporter's daemon: exports all new messages at an interval, until a signal stops the daemon.

Each such export is a run. A run that fails is logged and counted, and the daemon goes on. The daemon serves no port: it
writes its metrics to a file, for the textfile collector of Prometheus' node exporter.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ockam.files.durable_files import write_durably
from spark_export.errors import SourceError
from spark_export.exporter.planning import AMOUNTS, ExportStep
from spark_export.exporter.run import Exporter, ExportOutcome, OnStep, log_step
from spark_export.exporter.scheduled import stop_signals
from spark_export.exporter.upkeep import TableUpkeep
from spark_export.tables.errors import ExportError, ExportStopped, StreamsLeftOut
from stream_client.errors import ClientError

logger = structlog.get_logger(__name__)

ALIVE_S = 5.0
"""The interval, in seconds, at which a waiting daemon checks whether it can still do its work."""
JITTER = 0.1
"""The largest random delay of a start, as a fraction of the interval. It spreads the load of exporters on one node."""


def _metric(kind: str, name: str, text: str, default: float | None = 0) -> Any:
    """Returns a field of ExporterStatistics, with its name and its explanation in Prometheus' format."""
    return field(default=default, metadata={"kind": kind, "name": f"stream_node_export_{name}", "text": text})


_counter, _gauge = partial(_metric, "counter"), partial(_metric, "gauge")


@dataclass(eq=False)
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

    def count_step(self, step: ExportStep) -> None:
        """Counts a published step, even if its run goes on."""
        self.steps += 1
        for name in AMOUNTS:
            setattr(self, name, getattr(self, name) + getattr(step, name))

    def count_run(self, outcome: ExportOutcome | None, now_s: float) -> None:
        """Counts a run, without its steps. outcome: None if the run failed. A run that left out streams counts as
        failed, too."""
        self.runs += 1
        self.failed_runs += outcome is None or bool(outcome.left_out)
        if outcome is not None:
            self.streams_left_out, self.rows_left = len(outcome.left_out), outcome.rows_left
            if not outcome.left_out:
                self.idle_runs += outcome.run_id is None
                self.last_run_seconds, self.last_success_s = outcome.seconds, now_s

    def collect(self) -> Iterator[Metric]:
        for each in fields(self):
            value, known = getattr(self, each.name), each.metadata
            if value is not None:
                # prometheus-client adds the ending of a counter itself.
                family = Metric(known["name"].removesuffix("_total"), known["text"], known["kind"])
                family.add_sample(known["name"], {}, float(value))
                yield family


def write_metrics(path: Path, statistics: ExporterStatistics) -> None:
    """Replaces the file by the metrics in Prometheus' text format. No reader sees half of it. Raises OSError."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(statistics)
    write_durably(path, generate_latest(registry))


def run_daemon(
    exporter: Exporter,
    *,
    every_s: float,
    metrics_file: Path | None = None,
    on_outcome: Callable[[ExportOutcome], None] | None = None,
    upkeep: TableUpkeep | None = None,
) -> ExporterStatistics:
    """Exports all new messages every `every_s` seconds, until SIGTERM or SIGINT. Returns the metrics.

    After a signal, a step that is being published is completed; any other step is abandoned. Expected errors of a run
    are only logged. Raises ExportError if the metrics cannot be written at the beginning, and SparkLost.

    on_outcome: called after each run that did not fail, even if the run left out some streams.
    """
    statistics, stop = ExporterStatistics(), exporter.stop
    if metrics_file is not None:
        try:
            write_metrics(metrics_file, statistics)
        except OSError as error:
            raise ExportError(f"the metrics {metrics_file} cannot be written: {error.strerror or error}") from error

    def keep_metrics() -> None:
        try:
            if metrics_file is not None:
                write_metrics(metrics_file, statistics)
        except OSError as error:
            logger.error("metrics not written", file=str(metrics_file), error=str(error))

    def count(step: ExportStep) -> None:
        # A first run can take hours, so the metrics are updated after each published step.
        log_step(step)
        statistics.count_step(step)
        keep_metrics()

    with stop_signals(stop, []):
        while not stop.is_set():
            started_s = time.monotonic()
            outcome = _run_once(exporter, count)
            if outcome is None and stop.is_set():
                break
            statistics.count_run(outcome, time.time())
            if outcome is not None and on_outcome is not None:
                on_outcome(outcome)
            if upkeep is not None and not stop.is_set():
                _keep_table(upkeep, statistics)
            delay_s, skipped = next_start(started_s, time.monotonic(), every_s, random.random())
            if skipped:
                logger.warning("run took longer than the interval", every_s=every_s, skipped=skipped)
            statistics.skipped_starts += skipped
            keep_metrics()
            # Wait until the next start, or until a signal.
            end_s = time.monotonic() + delay_s
            while not stop.is_set():
                exporter.check_alive()
                if (left_s := end_s - time.monotonic()) <= 0:
                    break
                stop.wait(min(left_s, ALIVE_S))
    failed = {"failed": statistics.failed_runs, "failed_upkeeps": statistics.failed_upkeeps}
    logger.info("daemon stopped", runs=statistics.runs, rows=statistics.rows, **failed)
    return statistics


def _run_once(exporter: Exporter, on_step: OnStep) -> ExportOutcome | None:
    """Exports all new messages once. Returns None after an expected error, or if a signal ended the run."""
    try:
        outcome = exporter.run(on_step=on_step)
    except ExportStopped:
        return None
    except StreamsLeftOut as error:
        outcome = error.outcome
    except (ExportError, SourceError, ClientError, OSError) as error:
        logger.error("run failed", error=" ".join(str(error).split()))
        return None
    amounts = {name: getattr(outcome, name) for name in ("rows", "data_bytes", "files", "lost", "steps")}
    logger.info("run ended", run=outcome.run_id, **amounts, seconds=round(outcome.seconds, 3))
    return outcome


def _keep_table(upkeep: TableUpkeep, statistics: ExporterStatistics) -> None:
    """Compacts the table or removes old files, if either is due. A failure is only logged and counted."""
    try:
        done = upkeep.run()
    except (ExportError, OSError) as error:
        logger.error("upkeep failed", error=" ".join(str(error).split()))
        statistics.failed_upkeeps += 1
        return
    if done.merged or done.expired:
        logger.info("table kept", files_before=done.files_before, files=done.files_after, expired=done.expired)
    statistics.compactions += done.merged > 0
    statistics.expired += done.expired


def next_start(started_s: float, now_s: float, every_s: float, chance: float) -> tuple[float, int]:
    """Returns the delay of the next start, and how many starts have passed, after a run from `started_s` to `now_s`.

    Starts are planned at whole numbers of intervals after `started_s`, plus `chance`, 0 to 1, of the longest delay.
    """
    passed = max(0, math.ceil((now_s - started_s) / every_s) - 1) if now_s > started_s else 0
    start_s = started_s + (passed + 1) * every_s
    return max(0.0, start_s - now_s) + chance * JITTER * every_s, passed
