"""Goal: the daemon is a job for `spark-submit`, which chooses the master and the settings, as it does for every job.

Method: Spark's own script submits the program of the command; Spark's log of events says which master it had.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")

from spark_export.exporter.application import SparkExporter
from spark_export.exporter.daemon import run_daemon
from spark_export.tables.errors import SparkLost
from tests.spark_export.exporter.export_process import wait_until
from tests.spark_export.exporter.export_world import World
from tests.spark_export.exporter.test_application import taken
from tests.spark_export.spark_connect import ROOT, environment, script

MASTER = "local[1,2]"
PATIENCE_S = 400.0


@contextmanager
def submitted(world: World, folder: Path, *conf: str) -> Iterator[subprocess.Popen[str]]:
    """The daemon of `world` as a job. conf: settings of Spark, NAME=VALUE."""
    given = [part for each in ("spark.ui.enabled=false", *conf) for part in ("--conf", each)]
    export = ("export", "daemon", str(world.folder), "--node", world.node.address, "--stream", world.stream)
    program = (str(ROOT / "stream_node/__main__.py"), *export, "--every", "1s")
    with subprocess.Popen(
        [script("spark-submit"), "--master", MASTER, *given, *program],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as job:
        try:
            yield job
        finally:
            # Spark's script is Java, which has the command as a child.
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGTERM)
            job.communicate(timeout=PATIENCE_S)


@pytest.mark.spark
@pytest.mark.slow
def test_spark_submit_runs_the_daemon(world: World, tmp_path: Path, spark_opener: object) -> None:
    """`spark_opener` skips this test where there is no Java."""
    world.push(50)
    events = tmp_path / "events"
    events.mkdir()
    logged = ("spark.eventLog.enabled=true", "spark.eventLog.compress=false", f"spark.eventLog.dir={events.as_uri()}")
    with submitted(world, tmp_path, *logged) as job:
        wait_until(lambda: taken(world) == 50, job, PATIENCE_S)
    world.assert_whole()
    lines = [line for file in events.rglob("*") if file.is_file() for line in file.read_text("utf-8").splitlines()]
    found = [json.loads(line) for line in lines if "SparkListenerEnvironmentUpdate" in line]
    assert {dict(each["Spark Properties"])["spark.master"] for each in found} == {MASTER}


def is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.spark
@pytest.mark.slow
def test_the_daemon_ends_with_its_spark(world: World, tmp_path: Path, spark_opener: object) -> None:
    """Goal: who kills the process of `spark-submit` leaves no daemon behind, which could export nothing any more.

    Method: SIGKILL for that process alone, while the daemon waits for messages. A group without a process is gone.
    """
    world.push(5)
    with submitted(world, tmp_path) as job:
        wait_until(lambda: taken(world) == 5, job, PATIENCE_S)
        job.kill()
        job.wait(PATIENCE_S)
        deadline_s = time.monotonic() + PATIENCE_S
        while is_there(job.pid):
            assert time.monotonic() < deadline_s, "the daemon goes on"
            time.sleep(0.1)
    world.assert_whole()


def test_a_daemon_without_its_spark_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the error tells what to do. Method: an exporter that was started by a process other than its parent."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    exporter = SparkExporter(world.settings)
    exporter.check_alive()
    monkeypatch.setattr(os, "getppid", lambda: 1)
    with pytest.raises(SparkLost, match="submit the daemon again"):
        run_daemon(exporter, every_s=60)
    # A signal that ends both is no failure.
    with world.client() as client:
        client.create(world.stream)
    assert run_daemon(exporter, every_s=60, on_outcome=lambda outcome: exporter.stop.set()).runs == 1
