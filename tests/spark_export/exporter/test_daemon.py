"""Goal: a daemon exports again and again, survives what fails, counts, and stops when told.

Method: the command in a child process, without Spark; a node that is stopped and started under it.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")

from spark_export.exporter.daemon import ExporterStatistics, write_metrics
from spark_export.exporter.job import ExportSettings
from spark_export.exporter.planning import ExportStep
from spark_export.exporter.run import ExportOutcome
from spark_export.tables.model import Incarnation, IndexRange, LeftOutStream
from stream_node.node.process import NodeProcess
from tests.spark_export.exporter.export_process import exporting, wait_until
from tests.spark_export.exporter.export_world import World

PATIENCE_S = 200.0


@contextmanager
def daemon(world: World, metrics: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    given = ("--every", "1s", "--metrics-file", str(metrics), *more)
    with exporting(world, "daemon", world.node.address, *given) as process:
        yield process


def counted(metrics: Path, name: str) -> float:
    if not metrics.exists():
        return 0
    found = [line for line in metrics.read_text().splitlines() if line.startswith(f"stream_node_export_{name} ")]
    return float(found[0].split()[1]) if found else 0


def test_a_daemon_exports_what_comes_and_outlives_its_node(tmp_path: Path) -> None:
    metrics = tmp_path / "export.prom"
    with NodeProcess(tmp_path / "node", arguments=("--log-level", "error")) as node:
        world = World(tmp_path / "lake", node, "orders")
        world.push(10)
        with daemon(world, metrics) as process:
            wait_until(lambda: counted(metrics, "rows_total") == 10, process, PATIENCE_S)
            node.kill()
            wait_until(lambda: counted(metrics, "failed_runs_total") > 0, process, PATIENCE_S)
            node.start()
            world.push(5)
            wait_until(lambda: counted(metrics, "rows_total") == 15, process, PATIENCE_S)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, err
        rows = [json.loads(line)["rows"] for line in out.splitlines()]
        assert sum(rows) == 15
        events = [json.loads(line)["event"] for line in err.splitlines()]
        assert {"run ended", "run failed", "daemon stopped"} <= set(events)
        world.assert_whole()


def test_a_daemon_tells_a_stream_that_it_leaves_out_at_each_run(tmp_path: Path) -> None:
    metrics = tmp_path / "export.prom"
    with NodeProcess(tmp_path / "node", arguments=("--log-level", "error")) as node:
        world = World(tmp_path / "lake", node, "orders")
        world.push(10, partitions=1)
        world.run()
        world.push(10, partitions=1)
        with world.client() as client:
            client.create(world.stream).truncate(15)
        with daemon(world, metrics) as process:
            wait_until(lambda: counted(metrics, "failed_runs_total") >= 2, process, PATIENCE_S)
            assert (counted(metrics, "streams_left_out"), counted(metrics, "rows_total")) == (1, 0)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, err
        told = [[each["stream"] for each in json.loads(line)["left_out"]] for line in out.splitlines()]
        assert told[:2] == [["orders"], ["orders"]]
        logged = [json.loads(line) for line in err.splitlines()]
        assert "retention deleted 5 messages" in next(
            each["reason"] for each in logged if each["event"] == "stream left out"
        )


def test_a_daemon_whose_upkeep_fails_says_so_at_its_end(each_format: World, tmp_path: Path) -> None:
    """Goal: the last line counts what failed. Method: small files to merge, of which one is no longer there."""
    world, metrics = each_format, tmp_path / "export.prom"
    for _ in range(3):
        world.push(10)
        world.run()
    next((world.folder / "messages").resolve().rglob("*.parquet")).unlink()
    with daemon(world, metrics, "--compact-files", "2") as process:
        wait_until(lambda: counted(metrics, "failed_upkeeps_total") >= 2, process, PATIENCE_S)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    last = json.loads(err.splitlines()[-1])
    assert last["event"] == "daemon stopped"
    assert last["failed_upkeeps"] >= 2


def test_metrics_are_in_the_text_format_and_replaced_whole(tmp_path: Path) -> None:
    outcome = ExportOutcome(3, rows=7, data_bytes=70, file_bytes=50, files=2, partitions=1, lost=4, seconds=1.5)
    idle = ExportOutcome(None, 0, 0, 0, 0, 0, 0, 0.25)
    lost = IndexRange(Incarnation("orders", 0, 0, 1), 4, 11, lost=4)
    step = ExportStep(3, (lost,), rows=7, data_bytes=70, file_bytes=50, files=2, seconds=1.5)
    partly = replace(outcome, left_out=(LeftOutStream("a", "lost"), LeftOutStream("b", "lost")))
    statistics = ExporterStatistics(skipped_starts=2, failed_upkeeps=1, compactions=1, expired=3)
    statistics.count_step(step)
    for each, now_s in ((outcome, 10.0), (idle, 12.5), (partly, 14.0), (None, 15.0)):
        statistics.count_run(each, now_s)
    write_metrics(tmp_path / "m.prom", statistics)
    text = (tmp_path / "m.prom").read_text()
    samples = dict(line.split() for line in text.splitlines() if not line.startswith("#"))
    assert {name.removeprefix("stream_node_export_"): float(value) for name, value in samples.items()} == {
        "runs_total": 4,
        "idle_runs_total": 1,
        "failed_runs_total": 2,
        "steps_total": 1,
        "streams_left_out": 2,
        "rows_left": 0,
        "compactions_total": 1,
        "failed_upkeeps_total": 1,
        "expired_total": 3,
        "skipped_starts_total": 2,
        "rows_total": 7,
        "data_bytes_total": 70,
        "file_bytes_total": 50,
        "files_total": 2,
        "lost_messages_total": 4,
        "last_run_seconds": 0.25,
        "last_success_timestamp_seconds": 12.5,
    }
    assert [path.name for path in tmp_path.iterdir()] == ["m.prom"]


@pytest.mark.parametrize(("client_id", "expected"), [(None, "export-lake-0123ab"), ("mine", "mine")])
def test_the_position_is_saved_under_the_tables_own_name_or_the_one_given(client_id: str | None, expected: str) -> None:
    settings = ExportSettings(Path("/x/lake"), "127.0.0.1:1", client_id=client_id)
    assert settings.consumer("0123-abcdef") == expected
