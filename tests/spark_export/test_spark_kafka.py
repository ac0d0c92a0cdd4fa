"""Goal: Spark itself does what the readers promise: Kafka's columns, lag, exactly once over kills, the right Python.

Method: one session for all but the last two tests, which run programs of their own."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from pyspark.sql.streaming.listener import StreamingQueryProgress

from spark_export.source.lag import LagListener
from stream_client import blocking
from stream_node.node.process import NodeProcess
from tests.spark_export.source.test_kafka_names import KAFKAS
from tests.spark_export.spark_queries import run_query
from tests.spark_export.test_spark_batch import fill, load

pytestmark = pytest.mark.spark

REPOSITORY = Path(__file__).resolve().parents[2]
RUN_S_MAX = 300.0
KILLS = 2


def test_a_query_of_kafkas_runs_unchanged(spark: Any, node: NodeProcess) -> None:
    """Goal: the usual lines of a query of Kafka's, and a union with a frame that has its schema."""
    fill(node, "sk_query", [3, 2])
    frame = load(spark, node, subscribe="sk_query", columns="kafka", includeHeaders="true")
    assert frame.schema == KAFKAS
    rows = frame.selectExpr("CAST(value AS STRING)", "topic", "partition", "offset", "timestampType").collect()
    assert sorted(tuple(row) for row in rows) == sorted(
        (f"{part}/{number}", "sk_query", part, number, 1) for part, count in ((0, 3), (1, 2)) for number in range(count)
    )
    assert frame.union(spark.createDataFrame([], KAFKAS)).count() == 5


def test_the_lag_of_a_query_is_in_its_progress(spark: Any, node: NodeProcess, tmp_path: Path) -> None:
    """Goal: the values that Kafka's source reports. Method: a query of two messages a micro-batch over 5 and 3, whose
    progress is looked at while messages are left."""
    fill(node, "sk_lag", [5, 3])
    reports: list[dict[str, float]] = []
    ended = threading.Event()

    def keep(progress: StreamingQueryProgress, lag: dict[str, float]) -> None:
        assert progress.name == "lagging"
        reports.append(lag)
        if lag["maxOffsetsBehindLatest"] == 0:
            ended.set()

    listener = LagListener(keep)
    spark.streams.addListener(listener)
    try:
        options = {"subscribe": "sk_lag", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "2"}
        frame = spark.readStream.format("stream_node").options(endpoint=node.address, **options).load()
        query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).queryName("lagging")
        run_query(query)
        assert ended.wait(60), reports
    finally:
        spark.streams.removeListener(listener)
    assert reports[0] == {"avgOffsetsBehindLatest": 3.0, "maxOffsetsBehindLatest": 4, "minOffsetsBehindLatest": 2}
    assert reports[-1] == {"avgOffsetsBehindLatest": 0.0, "maxOffsetsBehindLatest": 0, "minOffsetsBehindLatest": 0}
    maxima = [each["maxOffsetsBehindLatest"] for each in reports]
    assert maxima == sorted(maxima, reverse=True)


@pytest.mark.parametrize("allowed", ["true", "false"])
def test_spark_itself_learns_of_a_deleted_stream(spark: Any, node: NodeProcess, tmp_path: Path, allowed: str) -> None:
    """Goal: the query that goes on from its checkpoint fails and names the stream. Nothing is there to read. With
    failOnDataLoss=false it goes on, with all of the stream that is made again."""
    stream = f"sk_deleted_{allowed}"

    def run() -> list[int]:
        options = {"subscribe": stream, "startingOffsets": "earliest", "failOnDataLoss": allowed}
        frame = spark.readStream.format("stream_node").options(endpoint=node.address, **options).load()
        taken: list[int] = []
        writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer = writer.foreachBatch(lambda batch, _: taken.extend(row["offset"] for row in batch.collect()))
        run_query(writer)
        return taken

    fill(node, stream, [4])
    assert run() == [0, 1, 2, 3]
    fill(node, stream, [3])
    with blocking.connect(node.address) as client:
        client.create(stream).delete()
    if allowed == "true":
        with pytest.raises(Exception, match=f"data is lost: {stream}/0 from index 4 on: .* no longer exists"):
            run()
    else:
        assert run() == []
        fill(node, stream, [6])
        assert run() == [*range(6)]


PROGRAM = """
import sys
from pyspark.sql import SparkSession
from spark_export import register
from tests.spark_export.spark_queries import run_query
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
options = dict(endpoint=sys.argv[1], subscribe="sk_python")
print("batch", spark.read.format("stream_node").options(**options).load().count())
frame = spark.readStream.format("stream_node").options(startingOffsets="earliest", **options).load()
run_query(frame.writeStream.format("memory").queryName("seen"))
print("stream", spark.table("seen").count())
"""


def test_no_variable_is_needed_for_the_python_of_the_workers(node: NodeProcess, tmp_path: Path) -> None:
    """Goal: `register` makes a local session use the Python of the program. Method: no PYSPARK_PYTHON, and the first
    `python3` of PATH is a program that fails."""
    fill(node, "sk_python", [4])
    wrong = tmp_path / "bin" / "python3"
    wrong.parent.mkdir()
    wrong.write_text("#!/bin/sh\necho the wrong python3 >&2\nexit 7\n")
    wrong.chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK_", "SPARK_"))}
    environment |= {"PATH": f"{wrong.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, node.address],
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    assert done.stdout.split("\n")[:2] == ["batch 4", "stream 4"], done.stderr[-4000:]
    assert shutil.which("python3", path=environment["PATH"]) == str(wrong)


def stored(folder: Path) -> list[tuple[int, bytes]]:
    """The rows that the example has in its database."""
    with closing(sqlite3.connect(folder / "orders.sqlite")) as database:
        return sorted(database.execute("SELECT place, data FROM orders").fetchall())


def batches(folder: Path) -> int:
    """How many micro-batches the database has."""
    try:
        with closing(sqlite3.connect(f"file:{folder / 'orders.sqlite'}?mode=ro", uri=True)) as database:
            return int(database.execute("SELECT count(*) FROM batches").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


@pytest.mark.soak
def test_the_recipe_for_exactly_once_survives_kills(tmp_path: Path) -> None:
    """Goal: examples/spark_exactly_once.py has each message once. Method: SIGKILL to driver, JVM and workers when a
    micro-batch has just reached the database, twice; a run to the end; a last run with the mark of the last micro-batch
    removed from the checkpoint, so that Spark must repeat it. The rows are compared with a pull."""
    with NodeProcess(tmp_path / "data") as node:
        command = [sys.executable, str(REPOSITORY / "examples/spark_exactly_once.py"), str(tmp_path)]
        environment = {**os.environ, "STREAM_NODE_ADDRESS": node.address, "PYTHONPATH": str(REPOSITORY)}
        log = tmp_path / "child.log"
        commits = tmp_path / "checkpoint" / "commits"
        for run in range(KILLS + 2):
            before = batches(tmp_path)
            if run == KILLS + 1:
                last = max(
                    (path for path in commits.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name)
                )
                last.unlink()
                last.with_name(f".{last.name}.crc").unlink()
            with log.open("ab") as written:
                child = subprocess.Popen(
                    command, env=environment, stdout=written, stderr=written, start_new_session=True
                )
            try:
                deadline_s = time.monotonic() + RUN_S_MAX
                while child.poll() is None and (run >= KILLS or batches(tmp_path) < before + 2):
                    assert time.monotonic() < deadline_s, log.read_text()
                    threading.Event().wait(0.01)
                assert child.poll() == (None if run < KILLS else 0), log.read_text()
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        assert last.exists(), "the last micro-batch was not repeated"
        with blocking.connect(node.address) as client:
            pulled = [(each.index, bytes(each.data)) for each in client.create("orders").pull(0, limit=1_000)]
        assert stored(tmp_path) == pulled
        assert len(pulled) == 200
        assert log.read_text().count("200 rows of 200 messages") == 2
