"""Goal: a node that restarts, or that is reached by another address, costs no query, no task and no planning.

Method: the installed command as the node, killed and started again at its address while each kind of call is at work.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from spark_export.errors import SourceUnreachable
from spark_export.sink.pushes import Attempt, Pushes
from spark_export.sink.write_rows import RowToPush
from spark_export.sink.writer import SinkWritten, commit_written
from spark_export.source.node import asked, list_partitions
from spark_export.source.options import WriteOptions, read_options
from spark_export.source.plan import ReadRange, StreamEnds
from spark_export.source.range_reader import RangeReader
from spark_export.source.readers import BatchReader, StreamReader
from spark_export.source.spark_versions import ReadAllAvailable
from stream_client import blocking
from stream_node.node.process import NodeProcess
from tests.spark_export.sink.test_spark_write import stored
from tests.spark_export.test_spark_batch import fill

pytestmark = pytest.mark.spark

COUNT = 3_000
AWAY_S = 5.0


@pytest.fixture
def restarted(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node of the test's own, with a stream `r`."""
    with NodeProcess(tmp_path / "data") as node:
        fill(node, "r", [COUNT])
        yield node
        assert node.stop() == 0


class Away:
    """Kills a node at the beginning of a block, and starts it again when somebody has tried to reach it in vain."""

    def __init__(self, node: NodeProcess) -> None:
        self._node = node
        self._tried = threading.Event()
        self._thread = threading.Thread(target=self._start_when_tried)

    def __enter__(self) -> None:
        self._node.kill()
        logging.getLogger("stream_node.spark").addFilter(self._note)
        self._thread.start()

    def __exit__(self, *raised: object) -> None:
        self._tried.set()
        self._thread.join()
        logging.getLogger("stream_node.spark").removeFilter(self._note)

    def _note(self, record: logging.LogRecord) -> bool:
        self._tried.set()
        return True

    def _start_when_tried(self) -> None:
        self._tried.wait(60)
        self._node.start()


def test_the_drivers_questions_wait_for_the_node(restarted: NodeProcess) -> None:
    """Goal: where a stream begins and ends, the plan of a batch and of a micro-batch, a time, and the offsets."""
    given = {"endpoint": restarted.address, "subscribe": "r"}
    with Away(restarted):
        assert len(BatchReader(read_options(given)).partitions()) == 1
    with Away(restarted):
        assert BatchReader(read_options({**given, "startingTimestamp": "1"})).partitions()[0].value.count == COUNT
    streaming = StreamReader(read_options({**given, "startingOffsets": "earliest"}))
    with Away(restarted):
        start = streaming.initialOffset()
    with Away(restarted):
        end = streaming.latestOffset(start, ReadAllAvailable())
    with Away(restarted):
        (part,) = streaming.partitions(start, end)
    assert part.value.count == COUNT


def test_a_task_reads_on_where_it_was(restarted: NodeProcess) -> None:
    """Goal: each row once, though the node is killed after the first page."""
    options = read_options({"endpoint": restarted.address, "subscribe": "r", "fetchBytes": "20000"})
    reader = RangeReader(ReadRange("r", 0, 0, COUNT), options)
    batches = reader.batches()
    found = next(batches).column("index").to_pylist()
    restarted.kill()
    restarted.start()
    found += [index for batch in batches for index in batch.column("index").to_pylist()]
    assert found == list(range(COUNT))


def test_the_sink_stores_each_row_once_and_commits(restarted: NodeProcess) -> None:
    """Goal: pushes that were not confirmed are sent again and stored once; the commit of the batch waits."""
    options = WriteOptions(endpoint=restarted.address, stream="w", window=100)
    with blocking.connect(restarted.address) as client:
        client.create("w")
    attempt = Attempt("spark-sink-r", 0, 0)
    with Pushes(options, attempt, {("w", 0): StreamEnds("w", 0, 0, 0, 0, 0)}) as pushes:
        for number in range(600):
            pushes.push(RowToPush("w", 0, None, b"%d" % number, []))
            if number % 200 == 100:
                restarted.kill()
                restarted.start()
        pushes.flush()
        written = SinkWritten(pushes.counts, attempt, pushes.seen)
    assert stored(restarted, "w") == [[b"%d" % number for number in range(600)]]
    with Away(restarted):
        commit_written([written], options, 0)
    assert Pushes(options, Attempt("spark-sink-r", 0, 0), {}).is_committed()


def test_a_node_that_stays_away_is_told_after_the_one_bound(restarted: NodeProcess, tmp_path: Path) -> None:
    """Goal: `requestTimeoutMs` ends every wait; the log says at once what is the matter."""
    with NodeProcess(tmp_path / "gone") as gone:
        address = gone.address
    options = read_options({"endpoint": address, "subscribe": "r", "requestTimeoutMs": "300"})
    with pytest.raises(SourceUnreachable, match="see the option endpoint, and whether the node runs"):
        asked(options, lambda client: list_partitions(client, "r"))
    both = read_options({"endpoint": f"{address}, {restarted.address}", "subscribe": "r"})
    assert len(asked(both, lambda client: list_partitions(client, "r"))) == 1
    assert sum(batch.num_rows for batch in RangeReader(ReadRange("r", 0, 0, COUNT), both).batches()) == COUNT


@pytest.mark.timeout(900)
def test_a_streaming_query_outlives_the_node_idle_and_busy(spark: Any, tmp_path: Path) -> None:
    """Goal: the query that Spark runs goes on after each absence, and has each message once.

    Method: the node is killed for five seconds while the query waits for messages, and while it has more than it has
    read.
    """
    seen: list[int] = []
    with NodeProcess(tmp_path / "data") as node:
        fill(node, "r", [100])
        options = {"endpoint": node.address, "subscribe": "r", "startingOffsets": "earliest"}
        frame = spark.readStream.format("stream_node").options(maxOffsetsPerTrigger="50", **options).load()
        writer = frame.writeStream.foreachBatch(lambda batch, _: seen.extend(row["offset"] for row in batch.collect()))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(processingTime="0 seconds")
        running = query.start()
        try:
            # Idle: everything that there is was read. Busy: the node goes before the query has read the new ones.
            wait_for(running, seen, 100)
            restart_after_a_while(node)
            fill(node, "r", [800])
            restart_after_a_while(node)
            wait_for(running, seen, 900)
        finally:
            running.stop()
        assert sorted(seen) == list(range(900))
        assert node.stop() == 0


def restart_after_a_while(node: NodeProcess) -> None:
    node.kill()
    threading.Event().wait(AWAY_S)
    node.start()


def wait_for(query: Any, seen: list[int], count: int) -> None:
    while len(seen) < count:
        assert query.isActive, query.exception()
        threading.Event().wait(0.1)
