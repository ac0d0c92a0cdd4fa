"""Goal: source, sink and exporter work over Spark Connect as they do in classic mode.

Method: a Connect server and its client, a process each, since a process has one mode of Spark only.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("grpc", reason="the extra `spark-connect` is not installed")
pytest.importorskip("pandas", reason="the extra `spark-connect` is not installed")

from spark_export.java import JavaMissing, find_java_home
from stream_node.node.process import NodeProcess
from tests.spark_export.doors import door
from tests.spark_export.exporter.export_process import HELD_BYTES, exporting, tasks_at_work, wait_until
from tests.spark_export.exporter.export_world import World
from tests.spark_export.exporter.test_stopping import PATIENCE_S, ROWS, SIZE, assert_interrupted
from tests.spark_export.spark_connect import connect_server, environment
from tests.spark_export.test_spark_batch import fill

pytestmark = [pytest.mark.spark, pytest.mark.soak]

CLIENT = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession

server, node, folder, way = sys.argv[1:]
if way == "register":
    from spark_export import open_session
    spark = open_session(remote=server)
else:
    spark = SparkSession.builder.remote(server).getOrCreate()
options = {"endpoint": node, "subscribe": "c_rows", "columns": "stream"}
read = spark.read.format("stream_node").options(**options).load()
more = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "30"}
streamed = spark.readStream.format("stream_node").options(**options, **more).load()
writer = streamed.writeStream.format("parquet").option("checkpointLocation", folder + "/checkpoint")
query = writer.option("path", folder + "/streamed").trigger(availableNow=True).start()
ended = query.awaitTermination(300)
frame = spark.createDataFrame([(bytes([n]),) for n in range(7)], "data binary")
frame.write.format("stream_node").mode("append").options(endpoint=node, stream="c_" + way).save()
written = spark.read.format("stream_node").options(endpoint=node, subscribe="c_" + way).load()
def rows(frame):
    return sorted((row[0], row[1]) for row in frame.select("partition", "index").collect())

streamed = rows(spark.read.parquet(folder + "/streamed"))
found = {"read": rows(read), "ended": ended, "streamed": streamed, "written": written.count()}
print(json.dumps(found))
spark.stop()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        find_java_home()
    except JavaMissing as error:
        pytest.skip(str(error))
    with connect_server(tmp_path_factory.mktemp("connect")) as address:
        yield address


@pytest.fixture(scope="module")
def filled(node: NodeProcess) -> NodeProcess:
    fill(node, "c_rows", [50, 40])
    return node


@pytest.mark.parametrize("way", ["register", "found"])
def test_batch_streaming_and_writing(server: str, filled: NodeProcess, tmp_path: Path, way: str) -> None:
    """Goal: each row once, whether the client registers the source or the server finds it by itself."""
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, server, filled.address, str(tmp_path), way],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [[partition, index] for partition, count in ((0, 50), (1, 40)) for index in range(count)]
    assert json.loads(done.stdout.splitlines()[-1]) == {"read": rows, "ended": True, "streamed": rows, "written": 7}


def test_an_export_through_a_connect_server(server: str, node: NodeProcess, tmp_path: Path) -> None:
    """Goal: `export run --remote` does what it does with a master; its tasks run where the server's are."""
    world = World(tmp_path / "lake", node, "c_export")
    world.push(1_000)
    command = [sys.executable, "-W", "error", "-m", "stream_node", "export", "run", str(world.folder)]
    done = subprocess.run(
        [*command, "--node", node.address, "--stream", world.stream, "--remote", server, "--json"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["rows"] == 1_000
    world.assert_whole()


def test_an_export_through_a_connect_server_that_is_told_to_end(server: str, node: NodeProcess, tmp_path: Path) -> None:
    """Goal: the server's tasks are cancelled, and not waited for. Method: they are held by a door before the node."""
    world = World(tmp_path / "lake", node, "c_ended")
    world.push(ROWS, size=SIZE)
    with (
        door(node.address, [HELD_BYTES] * 100, threading.Event()) as address,
        exporting(world, "run", address, "--json", "--remote", server) as process,
    ):
        wait_until(lambda: tasks_at_work(world), process, PATIENCE_S)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (128 + signal.SIGTERM, ""), err
    assert_interrupted(world, err)
    assert world.run().rows == ROWS
    world.assert_whole()


def test_a_server_that_is_not_there_is_told_at_once() -> None:
    """Goal: not after the ten minutes for which Spark's client tries."""
    from spark_export.session import SparkUnavailable, open_session

    with pytest.raises(SparkUnavailable, match=r"cannot reach a Spark Connect server at sc://127\.0\.0\.1:1"):
        open_session(remote="sc://127.0.0.1:1")
