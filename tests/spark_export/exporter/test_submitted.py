"""Goal: the daemon is a job for `spark-submit`, which chooses the master and the settings, as it does for every job.

Method: Spark's own script submits the program of the command; Spark's log of events says which master it had.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")

from tests.spark_export.exporter.export_process import wait_until
from tests.spark_export.exporter.export_world import World
from tests.spark_export.exporter.test_application import taken
from tests.spark_export.spark_connect import ROOT, environment, script

MASTER = "local[1,2]"
PATIENCE_S = 400.0


@pytest.mark.spark
@pytest.mark.slow
def test_spark_submit_runs_the_daemon(world: World, tmp_path: Path, spark_opener: object) -> None:
    """`spark_opener` skips this test where there is no Java."""
    world.push(50)
    events = tmp_path / "events"
    events.mkdir()
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.ui.enabled": "false",
    }
    given = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    export = ("export", "daemon", str(world.folder), "--node", world.node.address, "--stream", world.stream)
    with subprocess.Popen(
        [
            script("spark-submit"),
            "--master",
            MASTER,
            *given,
            ROOT / "stream_node/__main__.py",
            *export,
            "--every",
            "1s",
        ],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as job:
        try:
            wait_until(lambda: taken(world) == 50, job, PATIENCE_S)
        finally:
            # Spark's script is Java, which has the command as a child.
            os.killpg(job.pid, signal.SIGTERM)
            job.communicate(timeout=PATIENCE_S)
    world.assert_whole()
    lines = [line for file in events.rglob("*") if file.is_file() for line in file.read_text("utf-8").splitlines()]
    found = [json.loads(line) for line in lines if "SparkListenerEnvironmentUpdate" in line]
    assert {dict(each["Spark Properties"])["spark.master"] for each in found} == {MASTER}
