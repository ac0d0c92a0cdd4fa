"""Goal: streaming queries read every message once, and the traps of PySpark 4.3 stay shut. One session for all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from spark_export.errors import DataLoss, OptionError
from spark_export.source.options import read_options
from spark_export.source.plan import CREATED
from spark_export.source.readers import StreamReader
from spark_export.source.spark_versions import ReadAllAvailable, ReadMaxRows
from stream_client import blocking
from stream_node.node.process import NodeProcess
from tests.spark_export.spark_queries import run_query
from tests.spark_export.test_spark_batch import fill

pytestmark = pytest.mark.spark


class Query:
    """A query that takes what is there and ends; each run goes on where the last one ended."""

    def __init__(self, spark: Any, node: NodeProcess, folder: Path, **options: str) -> None:
        self._spark = spark
        self._node = node
        self._checkpoint = str(folder / "checkpoint")
        self._options = options
        self.rows: list[tuple[int, int]] = []
        self.batches: list[int] = []
        self.progress: Any = None

    def run(self) -> None:
        frame = self._spark.readStream.format("stream_node").options(endpoint=self._node.address, **self._options)

        def keep(batch: Any, number: int) -> None:
            rows = [(row[0], row[1]) for row in batch.select("partition", "offset").collect()]
            self.rows += rows
            self.batches.append(len(rows))

        writer = frame.load().writeStream.option("checkpointLocation", self._checkpoint)
        self.progress = run_query(writer.foreachBatch(keep)).lastProgress


def reader(node: NodeProcess, **options: str) -> StreamReader:
    return StreamReader(read_options({"endpoint": node.address, **options}))


def indexes(offsets: dict[str, dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Offsets without the times at which the streams were made."""
    return {stream: {key: each[key] for key in each if key != CREATED} for stream, each in offsets.items()}


def test_runs_follow_each_other(spark: Any, node: NodeProcess, tmp_path: Path) -> None:
    """Goal: each message in one run, partitions that come later from their beginning; trap 6: what the last batch
    reached is in the progress, since Spark never calls `commit` for it.
    """
    fill(node, "s_runs", [5, 3])
    query = Query(spark, node, tmp_path, subscribe="s_runs", startingOffsets="earliest")
    query.run()
    assert sorted(query.rows) == [(0, index) for index in range(5)] + [(1, index) for index in range(3)]
    fill(node, "s_runs", [2, 0, 4])
    query.run()
    assert sorted(query.rows[8:]) == [(0, 5), (0, 6)] + [(2, index) for index in range(4)]
    reached = query.progress.sources[0].endOffset
    assert indexes(json.loads(reached)) == {"s_runs": {"0": 7, "1": 3, "2": 4}}
    query.run()
    assert len(query.rows) == 14


def test_traps_5_and_8_available_now_ends_and_keeps_to_its_limit(spark: Any, node: NodeProcess, tmp_path: Path) -> None:
    """Offsets in another order of keys make such a query run for ever; without SupportsTriggerAvailableNow it would
    ignore the limit. Method: eleven partitions, where text and numbers sort differently, and a limit of 30 of 110.
    """
    fill(node, "s_many", [10] * 11)
    query = Query(spark, node, tmp_path, subscribe="s_many", startingOffsets="earliest", maxOffsetsPerTrigger="30")
    query.run()
    assert sorted(query.rows) == sorted((partition, index) for partition in range(11) for index in range(10))
    assert query.batches
    assert max(query.batches) <= 30
    assert 4 <= len(query.batches) <= 6


def test_trap_11_a_limit_gives_way_to_read_all(node: NodeProcess) -> None:
    """Spark may ask for all although an option limits; a prepared target caps both, and says what vanished."""
    fill(node, "s_limit", [10, 20])
    each = reader(node, subscribe="s_limit", startingOffsets="earliest", maxOffsetsPerTrigger="6")
    start = each.initialOffset()
    assert indexes(start) == {"s_limit": {"0": 0, "1": 0}}
    assert each.getDefaultReadLimit() == ReadMaxRows(6)
    assert indexes(each.latestOffset(start, ReadMaxRows(6))) == {"s_limit": {"0": 2, "1": 4}}
    assert indexes(each.latestOffset(start, ReadAllAvailable())) == {"s_limit": {"0": 10, "1": 20}}
    each.prepareForTriggerAvailableNow()
    fill(node, "s_limit", [5, 5])
    assert indexes(each.latestOffset(start, ReadAllAvailable())) == {"s_limit": {"0": 10, "1": 20}}
    gone = {"s_limit": {"0": 1, "7": 9}, "was": {"0": 3}}
    assert indexes(each.latestOffset(gone, ReadAllAvailable())) == {
        "s_limit": {"0": 10, "1": 20, "7": 9, "deleted": [7]},
        "was": {"0": 3},
    }


def test_trap_7_offsets_are_asked_by_the_listing_alone(node: NodeProcess) -> None:
    """Each micro-batch asks where streams end, twice: it must cost the same however much they store.

    Method: a stream of large messages; the offsets come without one of them.
    """
    with blocking.connect(node.address) as client:
        for _ in range(3):
            client.create("s_large").push(bytes(1_000_000))
    each = reader(node, subscribe="s_large")
    assert indexes(each.reportLatestOffset()) == {"s_large": {"0": 3}}
    assert indexes(each.initialOffset()) == {"s_large": {"0": 3}}


def test_what_retention_took_fails_a_query(node: NodeProcess) -> None:
    """Goal: a query that comes back too late does not go on in silence, unless it is told to."""
    fill(node, "s_late", [20])
    with blocking.connect(node.address) as client:
        client.create("s_late").truncate(12)
    start, end = {"s_late": {"0": 5}}, {"s_late": {"0": 20}}
    with pytest.raises(DataLoss, match=r"s_late/0 indexes 5 to 11: deleted by retention or truncation"):
        reader(node, subscribe="s_late").partitions(start, end)
    (part,) = reader(node, subscribe="s_late", failOnDataLoss="false").partitions(start, end)
    assert (part.value.start, part.value.end) == (12, 20)


def remake(node: NodeProcess, stream: str, count: int) -> None:
    with blocking.connect(node.address) as client:
        client.create(stream).delete()
    fill(node, stream, [count])


@pytest.mark.parametrize("count", [0, 2, 9, 20])
def test_a_stream_made_again_fails_a_query(node: NodeProcess, count: int) -> None:
    """Goal: it makes a batch, and the batch finds the loss, however long the new stream is beside the old one."""
    stream = f"s_again_{count}"
    fill(node, stream, [9])
    each = reader(node, subscribe=stream)
    start = each.reportLatestOffset()
    remake(node, stream, count)
    end = each.latestOffset(start, ReadAllAvailable())
    assert indexes(end) == {stream: {"0": count}}
    with pytest.raises(DataLoss, match=f"{stream}/0 from index 9 on: the stream was deleted and made again"):
        each.partitions(start, end)


def test_a_stream_made_again_behind_the_plan_of_a_batch_is_no_part_of_it(node: NodeProcess) -> None:
    """Goal: a batch that is repeated after a restart never takes the rows of another stream for its own."""
    fill(node, "s_swap", [9])
    each = reader(node, subscribe="s_swap", startingOffsets="earliest")
    start, end = each.initialOffset(), each.reportLatestOffset()
    remake(node, "s_swap", 20)
    with pytest.raises(DataLoss, match="s_swap/0 indexes 0 to 8: the stream was deleted and made again"):
        each.partitions(start, end)
    assert reader(node, subscribe="s_swap", failOnDataLoss="false").partitions(start, end) == []


def test_a_query_goes_on_with_a_stream_made_again_where_losses_are_allowed(
    spark: Any, node: NodeProcess, tmp_path: Path
) -> None:
    """Goal: each row of the new stream once, from its beginning, though it has grown past where the query was; also
    where micro-batches are limited."""
    fill(node, "s_anew", [9])
    options = {"subscribe": "s_anew", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "10"}
    query = Query(spark, node, tmp_path, failOnDataLoss="false", **options)
    query.run()
    remake(node, "s_anew", 25)
    query.run()
    assert query.rows[9:] == [(0, index) for index in range(25)]
    assert query.batches == [9, 10, 10, 5]


def test_a_checkpoint_without_times_of_creation_is_gone_on_with(spark: Any, node: NodeProcess, tmp_path: Path) -> None:
    """Goal: those of versions that kept indexes only. Method: the offsets of a checkpoint, reduced to that."""
    fill(node, "s_plain", [5, 3])
    query = Query(spark, node, tmp_path, subscribe="s_plain", startingOffsets="earliest")
    query.run()
    (log,) = (path for path in (tmp_path / "checkpoint" / "offsets").iterdir() if path.name.isdecimal())
    *head, offsets = log.read_text().split("\n")
    log.write_text("\n".join([*head, json.dumps(indexes(json.loads(offsets)))]))
    log.with_name(f".{log.name}.crc").unlink()
    fill(node, "s_plain", [2, 2])
    query.run()
    assert sorted(query.rows[8:]) == [(0, 5), (0, 6), (1, 3), (1, 4)]


def test_a_streaming_read_has_no_end(node: NodeProcess) -> None:
    """Goal: options for batch reads are refused."""
    with pytest.raises(OptionError, match="for batch reads; a streaming read has no end"):
        reader(node, subscribe="s", endingTimestamp="5")
