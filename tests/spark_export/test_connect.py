"""Goal: source, sink and exporter work over Spark Connect as they do in classic mode.

Method: a Connect server and its client, a process each, since a process has one mode of Spark only.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("grpc", reason="the extra `spark-connect` is not installed")
pytest.importorskip("pandas", reason="the extra `spark-connect` is not installed")

from spark_export.session import JavaMissing, find_java_home
from stream_node.node.process import NodeProcess
from tests.spark_export.exporter.export_process import exporting, wait_until
from tests.spark_export.exporter.export_world import World
from tests.spark_export.exporter.test_application import PATIENCE_S, taken
from tests.spark_export.spark_connect import connect_server, environment
from tests.spark_export.test_spark_batch import fill

pytestmark = [pytest.mark.spark, pytest.mark.soak]

CLIENT = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
from tests.spark_export.spark_queries import run_query

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
run_query(writer.option("path", folder + "/streamed"))
frame = spark.createDataFrame([(bytes([n]),) for n in range(7)], "data binary")
frame.write.format("stream_node").mode("append").options(endpoint=node, stream="c_" + way).save()
written = spark.read.format("stream_node").options(endpoint=node, subscribe="c_" + way).load()
def rows(frame):
    return sorted((row[0], row[1]) for row in frame.select("partition", "index").collect())

streamed = rows(spark.read.parquet(folder + "/streamed"))
found = {"read": rows(read), "streamed": streamed, "written": written.count()}
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
    assert json.loads(done.stdout.splitlines()[-1]) == {"read": rows, "streamed": rows, "written": 7}


def test_an_export_through_a_connect_server(server: str, node: NodeProcess, tmp_path: Path) -> None:
    """Goal: `export daemon --remote` does what it does with a master; its tasks run where the server's are. A signal
    ends it in good order, and the small engine goes on."""
    world = World(tmp_path / "lake", node, "c_export")
    world.push(1_000)
    more = ("--remote", server, "--every", "1s")
    with exporting(world, "daemon", node.address, *more, environment=environment()) as process:
        wait_until(lambda: taken(world) == 1_000, process, PATIENCE_S)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    world.push(10)
    assert world.run().rows == 10
    world.assert_whole()


def test_a_server_that_is_not_there_is_told_at_once() -> None:
    """Goal: not after the ten minutes for which Spark's client tries."""
    from spark_export.session import SparkUnavailable, open_session

    with pytest.raises(SparkUnavailable, match=r"cannot reach a Spark Connect server at sc://127\.0\.0\.1:1"):
        open_session(remote="sc://127.0.0.1:1")
