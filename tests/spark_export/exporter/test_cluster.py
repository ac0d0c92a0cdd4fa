"""Goal: nothing is lost or doubled where Spark is killed for real: a cluster loses an executor, a driver dies.

Method: the command in a child process, its tasks held in their middle by a door before the node, and SIGKILL.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from bench.works.export import STREAM, fill
from spark_export.exporter.failpoint import ENVIRONMENT_VARIABLE
from spark_export.java import JavaMissing, find_java_home
from stream_client import blocking
from stream_node.node.process import NodeProcess
from tests.spark_export.doors import door
from tests.spark_export.exporter.export_process import HELD_BYTES, exporting, tasks_at_work, wait_until
from tests.spark_export.exporter.export_world import World
from tests.spark_export.spark_cluster import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.soak]

PATIENCE_S = 600.0
ROWS = 400_000
"""Four tasks: two at work, and two that wait for them."""


@pytest.fixture(autouse=True)
def java() -> None:
    """Spark runs in processes of its own here, so the session of the other tests is not asked for."""
    try:
        find_java_home()
    except JavaMissing as error:
        pytest.skip(str(error))


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[World]:
    """A node with ROWS messages in four partitions."""
    fill(tmp_path / "data", ROWS)
    with NodeProcess(tmp_path / "data", arguments=("--log-level", "error")) as node:
        yield World(tmp_path / "lake", node, STREAM)
        assert node.stop() == 0


class Pushing:
    """Pushes to a stream of its own pace, until told to stop. count: of what was confirmed."""

    def __init__(self, world: World) -> None:
        self.count = 0
        self._world = world
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._push)

    def __enter__(self) -> Pushing:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        self._thread.join()

    def _push(self) -> None:
        with blocking.connect(self._world.node.address) as client:
            parts = client.get_stream(self._world.stream).partitions
            while not self._stop.wait(0.001):
                parts[self.count % len(parts)].push(b"meanwhile %d" % self.count)
                self.count += 1


def test_a_cluster_loses_an_executor_while_the_node_takes_pushes(filled: World, tmp_path: Path) -> None:
    """Goal: a run on a master and two workers is whole though one executor is killed in the middle of its task."""
    world, opened = filled, threading.Event()
    (tmp_path / "cluster").mkdir()
    with (
        Pushing(world) as pushing,
        SparkCluster(tmp_path / "cluster", workers=2) as cluster,
        door(world.node.address, [HELD_BYTES] * 100, opened) as address,
        exporting(world, "run", address, "--master", cluster.url, *cluster.conf) as run,
    ):
        wait_until(lambda: tasks_at_work(world) >= 2, run, PATIENCE_S)
        before = cluster.executors()
        assert len(before) == 2, "each worker has an executor"
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: set(cluster.executors()) - set(before), run, PATIENCE_S)
        pushed_meanwhile = pushing.count
        opened.set()
        out, err = run.communicate(timeout=PATIENCE_S)
        assert run.returncode == 0, err
        assert out.startswith("run 1: "), out
        assert pushing.count > pushed_meanwhile > 0
    assert world.verify().rows >= ROWS
    assert world.run().recovered == ()
    assert world.verify().rows == ROWS + pushing.count
    world.assert_whole()


def test_the_driver_is_killed_in_the_middle_and_run_again_at_once(filled: World) -> None:
    """Goal: what the dead driver's workers still do harms nothing. Method: the next run begins while they write."""
    world, opened = filled, threading.Event()
    with (
        door(world.node.address, [HELD_BYTES] * 100, opened) as address,
        exporting(world, "run", address, "--master", "local[2,4]") as run,
    ):
        wait_until(lambda: tasks_at_work(world) >= 2, run, PATIENCE_S)
        run.kill()
        run.wait()
        opened.set()
        outcome = world.run()
    assert (outcome.rows, len(outcome.recovered)) == (ROWS, 1)
    world.assert_whole()


@pytest.mark.parametrize("site", ["writing", "tasks_done", "between_publish_and_ledger"])
def test_the_driver_is_killed_at_a_site(world: World, site: str) -> None:
    """Goal: with Spark too, a crash around the work of its tasks is harmless; the other sites are in `test_crashes`."""
    world.push(60_000, size=1_000)
    with exporting(
        world, "run", world.node.address, "--master", "local[2,4]", environment={ENVIRONMENT_VARIABLE: site}
    ) as run:
        _, err = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == -signal.SIGKILL, err
    world.push(5)
    world.run()
    world.assert_whole()
