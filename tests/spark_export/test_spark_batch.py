"""Goal: a batch read gives the rows that it should, and the traps of PySpark 4.3 stay shut. One session for all.

Trap numbers are those of the facts about PySpark 4.3, section 2.
"""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.support.blocks import join_block

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import bare
from block_node.blocks.generator import BlockShape, ChainGenerator, SigningKeys
from block_node.persist.mark import MARK_HEADER, BlockMark
from spark_export.source.options import read_options
from spark_export.source.readers import BatchReader
from spark_export.source.source import StreamNodeSource
from stream_client import Header, blocking
from stream_node.node.process import NodeProcess

pytestmark = pytest.mark.spark


def fill(node: NodeProcess, stream: str, counts: list[int]) -> None:
    """So many messages in each partition; the data of each says which it is."""
    with blocking.connect(node.address) as client:
        made = client.create_partitioned(stream, len(counts))
        for partition, count in zip(made.partitions, counts, strict=True):
            with partition.publisher() as publisher:
                for number in range(count):
                    publisher.push(b"%d/%d" % (partition.partition, number))


def load(spark: Any, node: NodeProcess, **options: str) -> Any:
    """A read with the columns of this project; tests/spark_export/source/test_kafka_names.py has Kafka's."""
    options = {"columns": "stream", **options}
    return spark.read.format("stream_node").options(endpoint=node.address, **options).load()


def indexes(frame: Any) -> list[tuple[int, int]]:
    return sorted((row[0], row[1]) for row in frame.select("partition", "index").collect())


@pytest.mark.older_spark
def test_a_read_gives_every_message_with_its_place(spark: Any, node: NodeProcess) -> None:
    """Goal: columns, types and values. Method: keys and headers on some messages of two partitions."""
    with blocking.connect(node.address) as client:
        stream = client.create_partitioned("b_columns", 2)
        stream.partitions[1].push(b"first", key=b"k", headers=[Header("h", b"v")])
        stream.partitions[1].push(b"")
    rows = load(spark, node, subscribe="b_columns", includeHeaders="true").orderBy("index").collect()
    assert [(bytes(row.data), row.key and bytes(row.key), row.stream, row.partition, row["index"]) for row in rows] == [
        (b"first", b"k", "b_columns", 1, 0),
        (b"", None, "b_columns", 1, 1),
    ]
    assert [[(each.key, bytes(each.value)) for each in row.headers or ()] for row in rows] == [[("h", b"v")], []]
    assert rows[0].timestamp <= rows[1].timestamp


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"subscribe": "b_r"}, [(0, 5), (1, 3)]),
        ({"subscribePattern": "b_[qr]"}, [(0, 5), (1, 3)]),
        ({"assign": '{"b_r":[1]}'}, [(1, 3)]),
        ({"subscribe": "b_r", "minPartitions": "7", "maxRecordsPerPartition": "2"}, [(0, 5), (1, 3)]),
        ({"subscribe": "b_r", "includeData": "false"}, [(0, 5), (1, 3)]),
    ],
)
def test_streams_are_chosen(spark: Any, node: NodeProcess, options: dict[str, str], expected: Any) -> None:
    """Goal: each way to say what to read; splitting into tasks changes nothing."""
    fill(node, "b_r", [5, 3])
    wanted = sorted((partition, index) for partition, count in expected for index in range(count))
    found = indexes(load(spark, node, **options))
    assert found[: len(wanted)] == wanted or set(wanted) <= set(found)
    assert len(set(found)) == len(found)
    with blocking.connect(node.address) as client:
        client.get_stream("b_r").delete()


@pytest.mark.older_spark
def test_offsets_and_times_bound_a_read(spark: Any, node: NodeProcess) -> None:
    """Goal: the end is exclusive; -1 and -2 are latest and earliest; times mean the first message then or later."""
    fill(node, "b_bounds", [6, 4])
    start, end = json.dumps({"b_bounds": {"0": 2, "1": -2}}), json.dumps({"b_bounds": {"0": 5, "1": -1}})
    found = load(spark, node, subscribe="b_bounds", startingOffsets=start, endingOffsets=end)
    assert indexes(found) == [(0, index) for index in range(2, 5)] + [(1, index) for index in range(4)]
    assert load(spark, node, subscribe="b_bounds", endingTimestamp="1000").count() == 0
    assert load(spark, node, subscribe="b_bounds", startingTimestamp="1000").count() == 10


@pytest.mark.older_spark
def test_errors_say_what_to_do(spark: Any, node: NodeProcess) -> None:
    """Goal: a wrong option, a missing stream, a missing node: one clear sentence each."""
    with pytest.raises(Exception, match="did you mean startingOffsets"):
        load(spark, node, subscribe="s", startingOfsets="earliest").count()
    with pytest.raises(Exception, match="the node has no stream 'nowhere'; create it, or subscribe to another"):
        load(spark, node, subscribe="nowhere").count()
    with pytest.raises(Exception, match=r"cannot reach a node at 127\.0\.0\.1:1: .*see the option endpoint"):
        spark.read.format("stream_node").options(
            subscribe="s", endpoint="127.0.0.1:1", requestTimeoutMs="1000"
        ).load().count()
    with pytest.raises(Exception, match=r"startingOffsets cannot be latest \(-1\) in a batch read"):
        load(spark, node, subscribe="s", startingOffsets="latest").count()


def test_trap_1_filters_do_not_leak_between_queries(spark: Any, node: NodeProcess) -> None:
    """With `pushFilters` 4.3 answers every later query of a DataFrame with the filtered rows: we have none."""
    fill(node, "b_filters", [100])
    frame = load(spark, node, subscribe="b_filters")
    assert frame.where("index < 5").count() == 5
    assert frame.count() == 100
    assert frame.where("index < 5").union(frame).count() == 105
    frame.createOrReplaceTempView("b_filters")
    counts = spark.sql("select (select count(*) from b_filters where index < 5), (select count(*) from b_filters)")
    assert list(counts.collect()[0]) == [5, 100]
    assert BatchReader.pushFilters is DataSourceReader.pushFilters


def test_trap_2_a_loaded_frame_keeps_its_ranges(spark: Any, node: NodeProcess) -> None:
    """Ranges are planned once a load: two actions agree, and only a new load sees what came since."""
    fill(node, "b_snapshot", [10])
    frame = load(spark, node, subscribe="b_snapshot")
    assert frame.count() == 10
    fill(node, "b_snapshot", [7])
    assert frame.count() == 10
    assert load(spark, node, subscribe="b_snapshot").count() == 17


@pytest.mark.older_spark
def test_trap_3_nothing_to_read_is_an_empty_frame(spark: Any, node: NodeProcess) -> None:
    """Spark turns an empty list of partitions into one InputPartition of None, and calls `read` with it."""
    fill(node, "b_empty", [0, 0])
    assert load(spark, node, subscribe="b_empty").count() == 0
    options = read_options({"subscribe": "b_empty", "endpoint": node.address})
    assert isinstance(BatchReader(options).partitions(), list)
    assert list(BatchReader(options).read(InputPartition(None))) == []


def test_trap_4_every_batch_has_the_declared_schema(spark: Any, node: NodeProcess) -> None:
    """Spark checks the first batch alone. Method: keys and headers that begin long after it, in small pages."""
    with blocking.connect(node.address) as client, client.create("b_shapes").publisher() as publisher:
        for number in range(3_000):
            late = number > 2_500
            headers = [Header("h", b"v")] if late else []
            publisher.push(b"x" * 100, key=b"k" if late else None, headers=headers)
    frame = load(spark, node, subscribe="b_shapes", includeHeaders="true", fetchBytes="20000")
    assert frame.count() == 3_000
    assert frame.where("key is not null and size(headers) = 1").count() == 499
    assert (
        frame.schema
        == StreamNodeSource({"subscribe": "b_shapes", "includeHeaders": "true", "columns": "stream"}).schema()
    )


@pytest.mark.older_spark
def test_a_schema_chooses_and_decodes(spark: Any, node: NodeProcess) -> None:
    """Goal: columns in the asked order, members of JSON objects among them, and only what was asked for is read."""
    with blocking.connect(node.address) as client, client.create("b_json").publisher() as publisher:
        publisher.push_many([b'{"a": %d, "b": {"c": "x"}}' % number for number in range(20)] + [b"no object"])
    source = spark.read.format("stream_node").options(
        endpoint=node.address, subscribe="b_json", decode="json", columns="stream"
    )
    frame = source.schema("b STRUCT<c: STRING>, index LONG, a INT").load()
    assert frame.columns == ["b", "index", "a"]
    rows = frame.orderBy("index").collect()
    assert [(row["b"] and row["b"]["c"], row["a"]) for row in rows] == [("x", number) for number in range(20)] + [
        (None, None)
    ]
    plain = spark.read.format("stream_node").options(endpoint=node.address, subscribe="b_json", columns="stream")
    assert plain.schema("timestamp TIMESTAMP, index LONG").load().where("index >= 19").count() == 2
    with pytest.raises(Exception, match="there is no column 'a'; there are key, data, stream"):
        plain.schema("a INT").load().count()
    with pytest.raises(Exception, match="say which columns you want by a schema, such as"):
        load(spark, node, subscribe="b_json", decode="json").count()


def test_a_bad_message_changes_no_other_row(spark: Any, node: NodeProcess) -> None:
    """Goal: end to end, every row but the bad one has its own values. Method: 2,000 messages, some joined as text."""
    messages = [b'{"n": %d, "m": %d.05, "t": "2026-01-05T10:00:00Z"}' % (number, number) for number in range(2000)]
    messages[777] = b'[{"n": 1} {"n": 2}'
    messages[778] = b"]"
    with blocking.connect(node.address) as client, client.create("b_bad").publisher() as publisher:
        publisher.push_many(messages)
    source = spark.read.format("stream_node").options(
        endpoint=node.address, subscribe="b_bad", decode="json", columns="stream"
    )
    columns = "index LONG, n INT, m DECIMAL(9,2), t TIMESTAMP, _corrupt_record STRING"
    rows = source.schema(columns).load().orderBy("index").collect()
    assert [row._corrupt_record for row in rows if row._corrupt_record is not None] == ['[{"n": 1} {"n": 2}', "]"]
    assert [row.n for row in rows if row.t is not None] == [at for at in range(2000) if at not in (777, 778)]
    assert all(row.n is None or (row.n == row["index"] and row.m == Decimal(row.n) + Decimal("0.05")) for row in rows)
    with pytest.raises(Exception, match="the column 'n' can be null in some message; leave out NOT NULL"):
        source.schema("n INT NOT NULL").load().count()


@pytest.mark.older_spark
def test_blocks_are_read_with_their_items(spark: Any, node: NodeProcess) -> None:
    """Goal: `decode=block` in a query: a row an item, in the types that Spark was told."""
    (block,) = ChainGenerator(SigningKeys.generate(), shape=BlockShape(item_count=6)).blocks(1)
    data = join_block(block.items)
    mark = BlockMark(block.number, 0, 1, len(block.items), len(data), block.root)
    with blocking.connect(node.address) as client:
        client.create("b_blocks").push(data, headers=[Header(MARK_HEADER, bare.encode(mark))])
    frame = load(spark, node, subscribe="b_blocks", decode="block")
    rows = frame.selectExpr("block_number", "produced", "inline(items)").orderBy("position").collect()
    assert [(row["block_number"], bytes(row["data"])) for row in rows] == [(0, item) for item in block.items]
    assert rows[0]["kind"] == "header"
    assert frame.where("problem IS NOT NULL").count() == 0


def test_trap_9_spark_names_the_argument_and_lowers_the_names(spark: Any, node: NodeProcess) -> None:
    """`__init__` is called with `options=`, and option names come in lower case."""
    assert isinstance(StreamNodeSource(options={"SUBSCRIBE": "s"}).schema(), StructType)
    fill(node, "b_case", [2])
    assert load(spark, node, SUBSCRIBE="b_case", INCLUDEDATA="False").columns[1] == "stream"


def test_a_failed_task_is_repeated_with_the_same_rows(spark: Any, node: NodeProcess, tmp_path: Path) -> None:
    """Goal: a task that fails and is tried again doubles nothing, though messages came meanwhile.

    Method: a function that fails once, when its task has read 400 rows.
    """
    from pyspark.sql.functions import udf

    fill(node, "b_retry", [500, 500])
    frame = load(spark, node, subscribe="b_retry")
    # The ranges are planned by the first action.
    assert frame.count() == 1_000
    mark = str(tmp_path / "failed")

    @udf("long", useArrow=False)  # type: ignore[untyped-decorator]
    def failing(index: int) -> int:
        import pathlib

        if index == 400 and not pathlib.Path(mark).exists():
            pathlib.Path(mark).touch()
            raise RuntimeError("the first attempt of this task fails")
        return index

    counted = frame.select("partition", failing("index").alias("index"))
    fill(node, "b_retry", [50, 50])
    assert indexes(counted) == [(partition, index) for partition in range(2) for index in range(500)]
    assert Path(mark).exists()
