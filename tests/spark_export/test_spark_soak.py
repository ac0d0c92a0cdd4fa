"""Goal: what only many rows, kills and minutes show. Method: whole processes; asked for by `make soak`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("adbc_driver_sqlite", reason="the extra `spark` is not installed")
pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow.dataset as dataset

from bench.works.export import PARTITIONS, SIZE_BYTES, STREAM, fill
from stream_client import blocking
from stream_node.node.process import NodeProcess
from tests.spark_export.exporter.export_world import World
from tests.spark_export.exporter.test_application import on_spark
from tests.spark_export.test_bulk import push

pytestmark = [pytest.mark.spark, pytest.mark.soak]

KILLS = 3
ROWS = 200_000
MANY = 5_000_000
RUN_S_MAX = 300.0
REPOSITORY = Path(__file__).parents[2]


def batches(folder: Path) -> int:
    """How many micro-batches have been written whole."""
    return len(list(folder.glob("out/batch=*/_SUCCESS")))


def test_a_query_killed_in_the_middle_has_every_row_once(tmp_path: Path) -> None:
    """Method: SIGKILL to driver, JVM and workers once some batches are written, three times; then a run to the end."""
    fill(tmp_path / "data", ROWS)
    with NodeProcess(tmp_path / "data") as node:
        command = [sys.executable, "-m", "tests.spark_export.streaming_child", node.address, STREAM, str(tmp_path)]
        for kill in range(KILLS + 1):
            before = batches(tmp_path)
            with (tmp_path / "child.log").open("ab") as log:
                child = subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log, start_new_session=True)
            deadline_s = time.monotonic() + RUN_S_MAX
            while child.poll() is None and (kill == KILLS or batches(tmp_path) < before + 2):
                assert time.monotonic() < deadline_s, (tmp_path / "child.log").read_text()
                threading.Event().wait(0.05)
            if kill < KILLS:
                os.killpg(child.pid, signal.SIGKILL)
            code = child.wait()
            assert kill < KILLS or code == 0, (tmp_path / "child.log").read_text()
    table = dataset.dataset(tmp_path / "out", format="parquet", partitioning="hive").to_table(["partition", "index"])
    rows = sorted(zip(table.column("partition").to_pylist(), table.column("index").to_pylist(), strict=True))
    assert rows == [(part, index) for part in range(PARTITIONS) for index in range(ROWS // PARTITIONS)]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node with MANY messages of SIZE_BYTES bytes."""
    data_dir = tmp_path_factory.mktemp("many") / "data"
    fill(data_dir, MANY)
    with NodeProcess(data_dir, arguments=("--log-level", "error")) as node:
        yield node
        assert node.stop() == 0


def assert_all_there(table: Path) -> None:
    """Every index of each partition once, as any reader of folders sees it."""
    each = MANY // PARTITIONS
    found = dataset.dataset(table, format="parquet", partitioning="hive").to_table(["partition", "index"])
    steps = [("index", how) for how in ("count", "min", "max", "sum", "count_distinct")]
    sums = found.group_by("partition").aggregate(steps).sort_by("partition")
    wanted = (each, 0, each - 1, each * (each - 1) // 2, each)
    assert [tuple(row.values()) for row in sums.to_pylist()] == [(part, *wanted) for part in range(PARTITIONS)]


@pytest.mark.parametrize("of_the_file", [False, True])
def test_five_million_rows_are_written_by_spark(
    spark: Any, many: NodeProcess, tmp_path: Path, of_the_file: bool
) -> None:
    """Goal: a read as large as the bench's has each row once, over TCP and of the file."""
    place = {"path": str(many.data_dir)} if of_the_file else {"endpoint": many.address}
    frame = spark.read.format("stream_node").options(subscribe=STREAM, columns="stream", **place).load()
    frame.write.parquet(str(tmp_path / "table"))
    assert_all_there(tmp_path / "table")
    assert spark.read.parquet(str(tmp_path / "table")).selectExpr("sum(length(data))").first()[0] == MANY * SIZE_BYTES
    shutil.rmtree(tmp_path / "table")


@pytest.mark.parametrize("way", ["Spark's tasks over TCP", "Spark's tasks of the file", "without Spark"])
def test_five_million_rows_are_exported(spark: Any, many: NodeProcess, tmp_path: Path, way: str) -> None:
    """Goal: by each path of the exporter each row is in the table once: the proof, and a reader's own count."""
    world = World(tmp_path / "lake", many, STREAM)
    if way == "without Spark":
        outcome = world.run()
    else:
        outcome = on_spark(world, spark, data_dir=many.data_dir if way == "Spark's tasks of the file" else None)
    assert (outcome.rows, outcome.data_bytes) == (MANY, MANY * SIZE_BYTES)
    verdict = world.verify()
    assert (verdict.problems, verdict.rows) == ((), MANY)
    assert_all_there((world.folder / "messages").resolve())
    assert world.run().run_id is None
    shutil.rmtree(world.folder)


def test_retention_races_with_a_read(spark: Any, node: NodeProcess) -> None:
    """Goal: a read during which the stream is cut fails and says so, or has every row that it did not report.

    Method: truncations behind a read with losses allowed; the rows that came must end at the plan's end, without gaps.
    """
    push(node, "raced", [b"x" * 500] * 100_000)
    options = {"endpoint": node.address, "subscribe": "raced", "failOnDataLoss": "false", "fetchBytes": "100000"}
    frame = spark.read.format("stream_node").options(**options).load()

    def cut() -> None:
        with blocking.connect(node.address) as client:
            for index in range(10_000, 100_000, 10_000):
                client.create("raced").truncate(index)

    cutting = threading.Thread(target=cut)
    cutting.start()
    found = sorted(row[0] for row in frame.select("offset").collect())
    cutting.join()
    assert found[-1] == 99_999
    assert len(set(found)) == len(found)
    assert set(range(90_000, 100_000)) <= set(found)
