"""The exporter's daemon: exports all new messages at an interval, until a signal stops the daemon.

Each such export is a run. A run that fails is logged and counted, and the daemon goes on.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from spark_export.errors import SourceError
from spark_export.exporter.metrics import ExporterStatistics, write_metrics
from spark_export.exporter.planning import ExportStep
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


def run_daemon(
    exporter: Exporter,
    *,
    every_s: float,
    metrics_file: Path | None = None,
    on_outcome: Callable[[ExportOutcome], None] | None = None,
    upkeep: TableUpkeep | None = None,
    chance: Callable[[], float] = random.random,
) -> ExporterStatistics:
    """Exports all new messages every `every_s` seconds, until SIGTERM or SIGINT. Returns the metrics.

    After a signal, a step that is being published is completed; any other step is abandoned. Expected errors of a run
    are only logged. Raises ExportError if the metrics cannot be written at the beginning, and SparkLost.

    on_outcome: called after each run that did not fail, even if the run left out some streams.
    chance: returns a random number from 0 to 1, for the random delay of the next start.
    """
    statistics = ExporterStatistics()
    if metrics_file is not None:
        try:
            write_metrics(metrics_file, statistics)
        except OSError as error:
            raise ExportError(f"the metrics {metrics_file} cannot be written: {error.strerror or error}") from error

    def count(step: ExportStep) -> None:
        # A first run can take hours, so the metrics are updated after each published step.
        nonlocal statistics
        log_step(step)
        statistics = statistics.after_step(step)
        _keep_metrics(metrics_file, statistics)

    stop = exporter.stop
    with stop_signals(stop, []):
        while not stop.is_set():
            started_s = time.monotonic()
            outcome = _run_once(exporter, count)
            if outcome is not None:
                statistics = statistics.after_run(outcome, time.time())
                if on_outcome is not None:
                    on_outcome(outcome)
            elif stop.is_set():
                break
            else:
                statistics = statistics.added(runs=1, failed_runs=1)
            if upkeep is not None and not stop.is_set():
                statistics = _keep_table(upkeep, statistics)
            delay_s, skipped = next_start(started_s, time.monotonic(), every_s, chance())
            if skipped:
                logger.warning("run took longer than the interval", every_s=every_s, skipped=skipped)
            statistics = statistics.added(skipped_starts=skipped)
            _keep_metrics(metrics_file, statistics)
            _rest(exporter, delay_s)
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


def _rest(exporter: Exporter, delay_s: float) -> None:
    """Waits until the next start, or until a signal. Raises SparkLost."""
    end_s = time.monotonic() + delay_s
    while not exporter.stop.is_set():
        exporter.check_alive()
        if (left_s := end_s - time.monotonic()) <= 0:
            break
        exporter.stop.wait(min(left_s, ALIVE_S))


def _keep_table(upkeep: TableUpkeep, statistics: ExporterStatistics) -> ExporterStatistics:
    """Compacts the table or removes old files, if either is due. A failure is only logged and counted."""
    try:
        done = upkeep.run()
    except (ExportError, OSError) as error:
        logger.error("upkeep failed", error=" ".join(str(error).split()))
        return statistics.added(failed_upkeeps=1)
    if done.merged or done.expired:
        logger.info("table kept", files_before=done.files_before, files=done.files_after, expired=done.expired)
    return statistics.added(compactions=done.merged > 0, expired=done.expired)


def _keep_metrics(path: Path | None, statistics: ExporterStatistics) -> None:
    """Replaces the metrics file. A failure, as on a full disk, is only logged."""
    try:
        if path is not None:
            write_metrics(path, statistics)
    except OSError as error:
        logger.error("metrics not written", file=str(path), error=str(error))


def next_start(started_s: float, now_s: float, every_s: float, chance: float) -> tuple[float, int]:
    """Returns the delay of the next start, and how many starts have passed, after a run from `started_s` to `now_s`.

    Starts are planned at whole numbers of intervals after `started_s`, plus `chance` of the largest random delay.
    """
    passed = max(0, math.ceil((now_s - started_s) / every_s) - 1) if now_s > started_s else 0
    start_s = started_s + (passed + 1) * every_s
    return max(0.0, start_s - now_s) + chance * JITTER * every_s, passed
