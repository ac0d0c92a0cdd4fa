"""Goal: nothing is lost or doubled where Spark is killed for real: a cluster loses an executor, a driver dies.

Method: `spark-submit` and the daemon in child processes, their tasks held in the middle by a door before the node, and
SIGKILL.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `export` is not installed")

from bench.works.export import STREAM, fill
from spark_export.session import JavaMissing, find_java_home
from stream_client import ClientError, blocking
from stream_node.node.process import NodeProcess
from tests.spark_export.doors import Gate, door
from tests.spark_export.exporter.export_process import HELD_BYTES, command, exporting, files_at_work, wait_until
from tests.spark_export.exporter.export_world import World
from tests.spark_export.exporter.test_application import MASTER, taken
from tests.spark_export.spark_cluster import SparkCluster
from tests.spark_export.spark_connect import ROOT, environment, script
from tests.spark_export.store.store_world import StoreWorld
from tests.support.s3_server import CREDENTIALS, running_s3

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PATIENCE_S = 1_200.0
ROWS = 200_000


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
    """Pushes to a stream at its own pace, until it is stopped. count: how many pushes were confirmed."""

    def __init__(self, world: World) -> None:
        self.count = 0
        self._world = world
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._push)

    def __enter__(self) -> Pushing:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _push(self) -> None:
        with blocking.connect(self._world.node.address) as client:
            parts = client.get_stream(self._world.stream).partitions
            while not self._stop.wait(0.001):
                with suppress(ClientError):
                    parts[self.count % len(parts)].push(b"meanwhile %d" % self.count)
                    self.count += 1


def lose_an_executor(world: World, folder: Path, *more: str) -> None:
    """The application by `spark-submit` on a master and two workers. One executor is killed in the middle of its task,
    while the node takes pushes; the application exports everything."""
    gate = Gate()
    folder.mkdir()
    with (
        Pushing(world) as pushing,
        SparkCluster(folder, workers=2) as cluster,
        door(world.node.address, [HELD_BYTES] * 100, gate) as address,
    ):
        given = command(
            world, "daemon", "--master", "auto", "--every", "1s", "--compact-files", "0", *more, node=address
        )
        given[given.index(str(world.folder))] = str(world.settings.place())
        submit = [script("spark-submit"), "--master", cluster.url, *cluster.conf, str(ROOT / "stream_node/__main__.py")]
        with (
            (folder / "driver.log").open("wb") as log,
            subprocess.Popen(
                [*submit, *given[given.index("export") :]],
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            ) as run,
        ):
            try:
                wait_until(lambda: gate.held >= 2, run, PATIENCE_S)
                before = cluster.executors()
                assert len(before) == 2, "each worker has an executor"
                os.kill(before[0], signal.SIGKILL)
                wait_until(lambda: set(cluster.executors()) - set(before), run, PATIENCE_S)
                gate.set()
                wait_until(lambda: taken(world) >= ROWS, run, PATIENCE_S)
                pushing.stop()
                assert pushing.count > 0
                # A push whose confirmation did not come in time may be stored, too.
                stored = sum(each.next_index for each in world.settings.node_side().list_ends(world.settings.selection))
                assert stored >= ROWS + pushing.count
                wait_until(lambda: taken(world) == stored, run, PATIENCE_S)
                # Python and its JVM, as a terminal and a service manager end them.
                os.killpg(run.pid, signal.SIGTERM)
                run.wait(PATIENCE_S)
            except AssertionError as error:
                error.add_note((folder / "driver.log").read_text(errors="replace")[-4_000:])
                raise
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(run.pid, signal.SIGKILL)


@pytest.mark.soak
def test_a_cluster_loses_an_executor_while_the_node_takes_pushes(filled: World, tmp_path: Path) -> None:
    """Goal: the table is whole, and the small engine goes on. Method: a folder that the workers share."""
    lose_an_executor(filled, tmp_path / "cluster")
    assert filled.run().run_id is None
    filled.assert_whole()


@pytest.mark.timeout(3 * PATIENCE_S)
def test_a_cluster_loses_an_executor_while_it_writes_to_a_store(
    filled: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with a Delta table on an S3 server."""
    pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
    pytest.importorskip("moto.server", reason="moto, of the extra `store-tests`, is not installed")
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with running_s3() as server:
        world = StoreWorld(server, server.make_bucket("cluster"), filled.node, STREAM, "delta", tmp_path)
        lose_an_executor(world, tmp_path / "cluster", f"--store-option=endpoint={server.endpoint}")
        assert world.run().run_id is None
        world.assert_whole()


@pytest.mark.soak
def test_the_driver_is_killed_in_the_middle_and_run_again_at_once(filled: World) -> None:
    """Goal: what the dead driver's workers still do harms nothing. Method: the next run begins while they write."""
    world, opened = filled, threading.Event()
    with (
        door(world.node.address, [HELD_BYTES] * 100, opened) as address,
        exporting(world, "daemon", address, *MASTER) as run,
    ):
        wait_until(lambda: files_at_work(world) >= 2, run, PATIENCE_S)
        run.kill()
        run.wait()
        opened.set()
        outcome = world.run()
    assert outcome.rows == ROWS
    world.assert_whole()
