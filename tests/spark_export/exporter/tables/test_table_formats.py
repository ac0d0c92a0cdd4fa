"""Goal: Delta and Iceberg tables have each message once too, and their own readers agree.

Method: runs, and crashes around the publication, in a child process; each table is read by its own library.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from spark_export.exporter.failpoint import ENVIRONMENT_VARIABLE
from tests.spark_export.exporter.export_world import World
from tests.spark_export.exporter.tables.table_readers import LIBRARIES, rows_in


@pytest.fixture(params=["delta", "iceberg"])
def table_format(request: pytest.FixtureRequest, world: World) -> str:
    pytest.importorskip(LIBRARIES[request.param], reason=f"the extra `{request.param}` is not installed")
    world.settings = replace(world.settings, format=request.param)
    return str(request.param)


def assert_whole(world: World) -> None:
    assert rows_in(world) == world.stored()
    assert world.verify().problems == ()


def test_runs_add_up(world: World, table_format: str) -> None:
    world.push(300)
    assert world.run().rows == 300
    world.push(30, partitions=3)
    assert (world.run().rows, world.run().run_id) == (30, None)
    assert_whole(world)


@pytest.mark.parametrize(
    "site",
    [
        "between_publish_and_ledger",
        *(pytest.param(site, marks=pytest.mark.soak) for site in ("tasks_done", "written", "published")),
    ],
)
def test_a_crash_around_the_publication_is_harmless(world: World, table_format: str, site: str) -> None:
    world.push(50)
    world.run()
    world.push(50)
    before = rows_in(world)
    command = [sys.executable, "-m", "stream_node", "export", "run", str(world.folder), "--node", world.node.address]
    command += ["--stream", world.stream, "--master", "inline", "--format", table_format]
    environment = {**os.environ, ENVIRONMENT_VARIABLE: site}
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert rows_in(world) == (before if site in ("tasks_done", "written") else world.stored())
    world.push(5)
    world.run()
    assert_whole(world)


def test_a_crash_between_moving_the_files_and_the_log(world: World, table_format: str) -> None:
    """Some files have their last place and the log names none: the run is published with them."""
    world.push(50)
    world.run()
    world.push(50)
    command = [sys.executable, "-m", "stream_node", "export", "run", str(world.folder), "--node", world.node.address]
    command += ["--stream", world.stream, "--master", "inline", "--format", table_format]
    environment = {**os.environ, ENVIRONMENT_VARIABLE: "written"}
    subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    (staged,) = (world.folder / "staging").rglob("*.parquet")
    data = world.folder / "messages" / ("data" if table_format == "iceberg" else "")
    staged.rename(data / staged.name)
    assert len(rows_in(world)) == 50
    assert world.run().run_id is None
    assert_whole(world)
