"""Goal: the commands `pipeline run` and `pipeline daemon` keep the tables up to date, and tell what is wrong in a line.

Method: the commands as processes beside a table of an export that grows; the daemon's Java is killed in the middle.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("deltalake", reason="the extra `delta` is not installed")

from spark_export.tables.errors import TableRefused
from tests.cli.promised import promised
from tests.spark_export.pipeline.lake import Lake, Row, read_rows

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PATIENCE_S = 400.0


def command(verb: str, lake: Lake, out: Path, *more: str) -> list[str]:
    program = [sys.executable, "-W", "error", "-m", "stream_node", "pipeline", verb]
    return [*program, str(lake.folder), str(out), "--conf", "spark.sql.shuffle.partitions=1", *more]


def run(lake: Lake, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    line = [*command("run", lake, out, *more), "--json"]
    return subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def orders(*indexes: int) -> dict[str, list[Row]]:
    return {"orders": [(0, index, index, None, [], b"%d" % index) for index in indexes]}


def test_a_run_takes_what_is_new(tmp_path: Path) -> None:
    lake, out = Lake(tmp_path / "lake", "delta"), tmp_path / "out"
    lake.add_run(orders(0, 1, 2))
    first = run(lake, out, "--cardinal", "chains[.].*")
    assert first.returncode == 0, first.stderr
    (note,) = json.loads(first.stdout).pop("notes")
    assert note.startswith("--cardinal chains[.].*: no stream of the export")
    assert first.stderr == f"warning: {note}\n"
    lake.add_run(orders(3))
    told = msgspec.json.decode(run(lake, out, "--cardinal", "chains[.].*").stdout, type=promised.PipelineStep)
    assert told == promised.PipelineStep(out=str(out), rows=1, steps=1, rebuilt=False, notes=[note])
    assert sorted(row["index"] for row in read_rows(out, "silver/messages")) == [0, 1, 2, 3]
    refused = run(lake, out)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "built with cardinal=chains[.].*, and now cardinal=None is given" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_a_folder_without_a_table_is_told_before_spark_starts(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "stream_node", "pipeline", "run", str(tmp_path / "none"), str(tmp_path / "out")]
    refused = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert refused.returncode == 1
    assert "holds no export" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_a_daemon_follows_and_outlives_its_java(tmp_path: Path) -> None:
    """Goal: no message is missing or doubled, and SIGTERM ends the daemon and its Java."""
    lake, out = Lake(tmp_path / "lake"), tmp_path / "out"
    lake.add_run(orders(0, 1))

    def taken() -> list[int]:
        try:
            return sorted(row["index"] for row in read_rows(out, "silver/messages"))
        except (AssertionError, TableRefused):
            # There are no tables yet.
            return []

    line = [*command("daemon", lake, out, "--every", "1s"), "--json"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as daemon:
        try:
            wait_until(lambda: taken() == [0, 1], daemon)
            lake.add_run(orders(2))
            wait_until(lambda: taken() == [0, 1, 2], daemon)
            os.kill(java_below(daemon.pid), signal.SIGKILL)
            lake.add_run(orders(3))
            wait_until(lambda: taken() == [0, 1, 2, 3], daemon)
            java = java_below(daemon.pid)
            daemon.send_signal(signal.SIGTERM)
            steps, said = daemon.communicate(timeout=PATIENCE_S)
        finally:
            daemon.kill()
    assert daemon.returncode == 0, said
    assert "pipeline failed" in said
    reports = [msgspec.json.decode(each, type=promised.PipelineStep) for each in steps.splitlines()]
    assert (reports[0].rows, reports[0].rebuilt, sum(each.rows for each in reports)) == (2, True, 4)
    wait_until(lambda: not Path(f"/proc/{java}").exists(), None)
    assert taken() == [0, 1, 2, 3]


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str] | None) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert process is None or process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.1)


def java_below(pid: int) -> int:
    found = [
        int(each)
        for child in Path(f"/proc/{pid}/task").glob("*/children")
        for each in child.read_text().split()
        if b"org.apache.spark" in Path(f"/proc/{each}/cmdline").read_bytes()
    ]
    assert found
    return found[0]
