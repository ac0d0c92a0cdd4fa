"""Goal: a streaming query stores each row once, whatever Spark repeats and whatever is killed.

Method: Spark's own engine, its checkpoint put back as a crash leaves it, or its processes killed. What is stored is
pulled by the project's own client, which knows nothing of queries.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("adbc_driver_sqlite", reason="the extra `spark` is not installed")
pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from spark_export.errors import OptionError
from spark_export.sink.writer import StreamSink, read_attempt
from spark_export.source.options import write_options
from stream_client import blocking
from stream_node.node.process import NodeProcess
from tests.spark_export.sink.test_spark_write import stored
from tests.spark_export.spark_queries import run_query

pytestmark = pytest.mark.spark

KILLS = 10
ROWS = 40_000
RUN_S_MAX = 580.0
KILL_S_MAX = 200.0
"""A machine on which Spark starts slowly kills nothing after this time, so that the query comes to its end."""
REPOSITORY = Path(__file__).parents[3]


def fill(node: NodeProcess, stream: str, partitions: int, rows: int) -> list[bytes]:
    """A stream whose messages all differ. Returns the messages."""
    with blocking.connect(node.address) as client:
        for number, partition in enumerate(client.create_partitioned(stream, partitions).partitions):
            with partition.publisher() as publisher:
                for row in range(rows // partitions):
                    publisher.push(b"%d-%d" % (number, row), key=b"%d" % (row % 97))
                publisher.flush()
    return sorted(b"%d-%d" % (number, row) for number in range(partitions) for row in range(rows // partitions))


def copy(spark: Any, node: NodeProcess, source: str, folder: Path, **more: str) -> Any:
    """Copies all that is new in a stream into the stream `SOURCE-copy`. Returns the ended query."""
    options = {"endpoint": node.address, "subscribe": source, "startingOffsets": "earliest", "columns": "stream"}
    frame = spark.readStream.format("stream_node").options(**options, maxOffsetsPerTrigger="100").load()
    writer = frame.select("key", "data").writeStream.format("stream_node").options(endpoint=node.address, **more)
    writer = writer.options(stream=f"{source}-copy", checkpointLocation=str(folder / "checkpoint"))
    return run_query(writer)


def everything(node: NodeProcess, stream: str) -> list[bytes]:
    return sorted(data for messages in stored(node, stream) for data in messages)


def test_a_query_goes_on_from_its_checkpoint(spark: Any, node: NodeProcess, tmp_path: Path) -> None:
    """Goal: each row once over several micro-batches and two starts, and over a batch that Spark repeats because its
    own commit is missing."""
    wanted = fill(node, "sunk", 2, 400)
    copy(spark, node, "sunk", tmp_path, partitions="3")
    assert everything(node, "sunk-copy") == wanted
    assert len(stored(node, "sunk-copy")) == 3
    commits = sorted((tmp_path / "checkpoint/commits").glob("[0-9]*"), key=lambda path: int(path.name))
    assert len(commits) > 1
    for each in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        each.unlink(missing_ok=True)
    with blocking.connect(node.address) as client:
        client.create_partitioned("sunk", 2).push(b"the last one")
    copy(spark, node, "sunk", tmp_path)
    assert everything(node, "sunk-copy") == sorted([*wanted, b"the last one"])


def test_a_batch_whose_first_attempt_failed(spark: Any, node: NodeProcess, tmp_path: Path) -> None:
    """Goal: a query that fails in the middle of a batch, and is started again when the reason is gone.

    Method: one row is for a partition that the target does not have yet.
    """
    with blocking.connect(node.address) as client:
        client.create("halves")
    options = {"endpoint": node.address, "subscribe": "halves-in", "startingOffsets": "earliest", "columns": "stream"}
    wanted = fill(node, "halves-in", 1, 300)

    def start() -> None:
        frame = spark.readStream.format("stream_node").options(**options).load()
        chosen = frame.selectExpr("data", "if(data = x'302d323530', 1, 0) as partition")
        writer = chosen.writeStream.format("stream_node").options(endpoint=node.address, stream="halves", window="10")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        run_query(writer)

    with pytest.raises(Exception, match="a row is for partition 1 of 'halves', which has 1"):
        start()
    assert 200 < len(everything(node, "halves")) < 300
    with blocking.connect(node.address) as client:
        client.create_partitioned("halves", 2)
    start()
    assert everything(node, "halves") == wanted
    assert stored(node, "halves")[1] == [b"0-250"]


def test_what_a_query_cannot_do_is_refused(spark: Any, node: NodeProcess, tmp_path: Path) -> None:
    frame = spark.createDataFrame([("x",)], "data string")
    options = write_options({"endpoint": node.address, "stream": "sunk-no"}, streaming=True)
    with pytest.raises(OptionError, match="never overwritten: write with mode"):
        StreamSink(frame.schema, options, overwrite=True)
    with pytest.raises(Exception, match="Spark does not tell this task its query"):
        read_attempt(None)
    fill(node, "sunk-b", 1, 1)
    with pytest.raises(Exception, match="the option writeId is for"):
        copy(spark, node, "sunk-b", tmp_path, writeId="a")
    copy(spark, node, "sunk-b", tmp_path, delivery="atLeastOnce")
    assert everything(node, "sunk-b-copy") == [b"0-0"]


def workers_below(session: int) -> list[int]:
    """The processes in which Spark runs Python code, of one session of processes: they are forks of Spark's daemon."""

    def read(pid: str) -> tuple[str, int, int]:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            return Path(f"/proc/{pid}/cmdline").read_text(), int(fields[1]), int(fields[3])
        except OSError:
            return "", 0, 0

    found = {int(pid): read(pid) for pid in os.listdir("/proc") if pid.isdecimal()}
    daemons = {pid for pid, (line, _, owner) in found.items() if owner == session and "pyspark.daemon" in line}
    return [pid for pid in daemons if found[pid][1] in daemons]


@pytest.mark.soak
@pytest.mark.parametrize("plan", ["rows", "shuffle"])
def test_a_query_killed_in_the_middle_of_batches_stores_every_row_once(tmp_path: Path, plan: str) -> None:
    """Method: SIGKILL once further rows arrive: three times to a worker, then to driver and JVM, and so on."""
    chance = random.Random(plan)
    with NodeProcess(tmp_path / "data") as node:
        wanted = fill(node, "source", 4, ROWS)
        with blocking.connect(node.address) as client:
            client.create_partitioned("target", 2)

        def arrived() -> int:
            with blocking.connect(node.address) as client:
                return sum(each.next_index for each in client.get_stream("target").info())

        command = [sys.executable, "-m", "tests.spark_export.sink.sink_child", node.address, "source", "target"]
        kills = {"all": 0, "worker": 0}
        began_s = time.monotonic()

        def is_over() -> bool:
            return sum(kills.values()) >= KILLS or (time.monotonic() - began_s > KILL_S_MAX and min(kills.values()) > 0)

        code = -1
        while code != 0:
            with (tmp_path / "child.log").open("ab") as log:
                child = subprocess.Popen(
                    [*command, str(tmp_path), plan], cwd=REPOSITORY, stdout=log, stderr=log, start_new_session=True
                )
            try:
                while child.poll() is None:
                    before, more = arrived(), chance.randrange(200, 3_000)
                    while child.poll() is None and (arrived() < before + more or is_over()):
                        assert time.monotonic() - began_s < RUN_S_MAX, (tmp_path / "child.log").read_text()[-5_000:]
                        threading.Event().wait(0.02)
                    if child.poll() is None and kills["worker"] > 2 * kills["all"]:
                        os.killpg(child.pid, signal.SIGKILL)
                        kills["all"] += 1
                        break
                    for worker in workers_below(child.pid)[:1] if child.poll() is None else []:
                        os.kill(worker, signal.SIGKILL)
                        kills["worker"] += 1
                code = child.wait()
            finally:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        assert is_over(), kills
        found = everything(node, "target")
        assert len(found) == len(wanted)
        assert found == wanted
