"""Goal: what only many rows, kills and minutes show. Method: whole processes; asked for by `make soak`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import pyarrow.dataset as dataset

from stream_node.bench.export import PARTITIONS, STREAM, fill
from stream_node.process import NodeProcess
from stream_service.client import blocking
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


def test_five_million_rows_are_all_there(spark: Any, tmp_path: Path) -> None:
    """Goal: a read as large as the bench's has each row once, over TCP and of the file."""
    fill(tmp_path / "data", MANY)
    with NodeProcess(tmp_path / "data") as node:
        for more in ({}, {"path": str(node.data_dir)}):
            source = spark.read.format("stream_node").options(endpoint=node.address, subscribe=STREAM, **more)
            sums = source.load().groupBy("partition").agg({"index": "sum", "*": "count", "data": "count"})
            each = MANY // PARTITIONS
            assert sorted((row[0], row["sum(index)"], row["count(1)"]) for row in sums.collect()) == [
                (part, each * (each - 1) // 2, each) for part in range(PARTITIONS)
            ]


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
    found = sorted(row[0] for row in frame.select("index").collect())
    cutting.join()
    assert found[-1] == 99_999
    assert len(set(found)) == len(found)
    assert set(range(90_000, 100_000)) <= set(found)
