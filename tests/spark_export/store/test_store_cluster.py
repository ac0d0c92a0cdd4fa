"""Goal: a cluster writes to a store, loses a worker in the middle, and the table has each message once.

Method: a master and two workers in processes of their own on the loopback interface, an S3 server, tasks held in their
middle by a door before the node, and SIGKILL; the table is read by the library of its format (plain Parquet by DuckDB
and pyarrow), and compared with a full pull from the node.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("aiosqlite", reason="the extra `spark` is not installed")
pytest.importorskip("obstore", reason="the extra `store` is not installed")
pytest.importorskip("duckdb", reason="DuckDB, of the extra `store-tests`, is not installed")

from bench.works.export import STREAM, fill
from spark_export.exporter.runs.task import PROGRESS_SUFFIX
from spark_export.java import JavaMissing, find_java_home
from stream_node.node.process import NodeProcess
from tests.spark_export.doors import door
from tests.spark_export.exporter.export_process import HELD_BYTES, wait_until
from tests.spark_export.exporter.tables.table_readers import LIBRARIES
from tests.spark_export.spark_cluster import SparkCluster
from tests.spark_export.store.log_world import LogWorld
from tests.spark_export.store.store_world import StoreWorld
from tests.support.s3_server import S3Server

pytestmark = pytest.mark.spark

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
def filled(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node with ROWS messages in four partitions."""
    fill(tmp_path / "data", ROWS)
    with NodeProcess(tmp_path / "data", arguments=("--log-level", "error")) as node:
        yield node
        assert node.stop() == 0


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize(
    "table_format",
    ["delta", pytest.param("parquet", marks=pytest.mark.soak), pytest.param("iceberg", marks=pytest.mark.soak)],
)
def test_a_worker_is_killed_while_the_cluster_writes_to_a_store(
    filled: NodeProcess, s3_server: S3Server, s3_environment: None, tmp_path: Path, table_format: str
) -> None:
    pytest.importorskip(LIBRARIES[table_format], reason=f"the extra `{table_format}` is not installed")
    bucket = s3_server.make_bucket(re.sub(r"[^a-z0-9]+", "-", f"cluster-{table_format}"))
    world: StoreWorld = StoreWorld(s3_server, bucket, filled, STREAM)
    if table_format != "parquet":
        world = LogWorld(s3_server, bucket, filled, STREAM, table_format, tmp_path)
    opened, work = threading.Event(), tmp_path / "driver"
    work.mkdir()
    (tmp_path / "cluster").mkdir()

    def tasks_at_work() -> int:
        progress = work.glob(f"stream-node-export-*/staging/run-*/attempts/*{PROGRESS_SUFFIX}")
        return sum(path.stat().st_size > 0 for path in progress)

    with (
        SparkCluster(tmp_path / "cluster", workers=2) as cluster,
        door(filled.address, [HELD_BYTES] * 100, opened) as address,
    ):
        given = [*world.arguments("run"), *cluster.conf]
        given[given.index("--node") + 1], given[given.index("--master") + 1] = address, cluster.url
        with subprocess.Popen(
            given,
            env=world.environment({"TMPDIR": str(work)}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as run:
            try:
                wait_until(lambda: tasks_at_work() >= 2, run, PATIENCE_S)
                before = cluster.executors()
                assert len(before) == 2, "each worker has an executor"
                os.kill(before[0], signal.SIGKILL)
                wait_until(lambda: set(cluster.executors()) - set(before), run, PATIENCE_S)
                opened.set()
                out, err = run.communicate(timeout=PATIENCE_S)
                assert run.returncode == 0, err
                assert out.startswith("run 1: "), out
            finally:
                run.kill()
    assert len(world.rows()) == ROWS
    world.assert_whole()
    assert world.run().run_id is None
    assert len([name for name in world.objects("") if name.endswith(".parquet")]) == world.verify().files
