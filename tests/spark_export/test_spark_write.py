"""Goal: rows of a DataFrame are stored as messages, none lost. Method: a real node, read back by its own client."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from spark_export.errors import NodeUnreachable, OptionError
from spark_export.options import WriteOptions
from spark_export.writer import Pushes, check_columns
from stream_client import blocking
from stream_node.process import NodeProcess
from stream_service.names import partition_of
from tests.spark_export.doors import ALL, door

pytestmark = pytest.mark.spark


def stored(node: NodeProcess, stream: str) -> list[list[bytes]]:
    with blocking.connect(node.address) as client:
        found = []
        for partition in client.get_stream(stream).partitions:
            page, messages = partition.pull(0, 1_000), []
            while page:
                messages += [message.data for message in page]
                page = partition.pull(page[-1].index + 1, 1_000)
            found.append(messages)
        return found


def test_rows_become_messages(spark: Any, node: NodeProcess) -> None:
    """Goal: keys choose partitions as everywhere, and come back; headers too."""
    frame = spark.range(200).selectExpr(
        "cast(id as string) as key",
        "concat('row ', id) as data",
        "array(struct('h' as key, x'01' as value)) as headers",
    )
    frame.write.format("stream_node").mode("append").options(
        endpoint=node.address, stream="w_rows", partitions="3"
    ).save()
    by_partition = stored(node, "w_rows")
    for partition, messages in enumerate(by_partition):
        assert sorted(messages) == sorted(
            b"row %d" % number for number in range(200) if partition_of(b"%d" % number, 3) == partition
        )
    back = spark.read.format("stream_node").options(endpoint=node.address, subscribe="w_rows", includeHeaders="true")
    assert back.load().where("headers[0].key = 'h' and headers[0].value = x'01'").count() == 200


def test_rows_name_stream_and_partition(spark: Any, node: NodeProcess) -> None:
    """Goal: columns win over the option."""
    with blocking.connect(node.address) as client:
        client.create_partitioned("w_a", 2)
    frame = spark.sql(
        "select * from values (x'61', 'w_a', 1), (x'62', 'w_a', 0), (x'63', 'w_b', null) t(data, stream, partition)"
    )
    frame.write.format("stream_node").mode("append").option("endpoint", node.address).save()
    assert stored(node, "w_a") == [[b"b"], [b"a"]]
    assert stored(node, "w_b") == [[b"c"]]


def test_what_cannot_be_written_is_refused(spark: Any, node: NodeProcess) -> None:
    """Goal: no stream is overwritten, no column is ignored, no row is left out in silence."""
    writer = spark.range(1).selectExpr("'x' as data").write.format("stream_node").option("endpoint", node.address)
    with pytest.raises(Exception, match="never overwritten"):
        writer.mode("overwrite").option("stream", "w_no").save()
    schema = StructType([StructField("value", StringType())])
    with pytest.raises(OptionError, match="the column 'value' cannot be written; there are data, key"):
        check_columns(schema, WriteOptions(stream="s"))
    with pytest.raises(OptionError, match="there is no column 'data'"):
        check_columns(StructType([StructField("key", StringType())]), WriteOptions(stream="s"))
    with pytest.raises(OptionError, match="'data' is int"):
        check_columns(StructType([StructField("data", IntegerType())]), WriteOptions(stream="s"))
    with pytest.raises(OptionError, match="say where to push"):
        check_columns(StructType([StructField("data", StringType())]), WriteOptions())
    with pytest.raises(Exception, match="a row has null in the column 'data'"):
        spark.sql("select cast(null as string) as data").write.format("stream_node").mode("append").options(
            endpoint=node.address, stream="w_null"
        ).save()


def test_a_broken_connection_doubles_nothing(node: NodeProcess) -> None:
    """Goal: what is sent again is stored once, in order. Method: a door that ends two connections in their middle."""
    with (
        door(node.address, [3_000, 5_000]) as address,
        Pushes(WriteOptions(endpoint=address, stream="w_door", window=200)) as pushes,
    ):
        # The first connection of the door is the writer's; those that ask for partitions have one of their own.
        for number in range(2_000):
            pushes.push({"data": b"%d" % number, "stream": "w_door"})
        pushes.flush()
    assert stored(node, "w_door") == [[b"%d" % number for number in range(2_000)]]
    assert pushes.counts == {("w_door", 0): 2_000}


def test_a_node_that_takes_connections_and_ends_each_is_given_up(node: NodeProcess) -> None:
    """Goal: a task that gets nowhere fails. Method: a door behind which no connection comes to an answer."""
    with (
        door(node.address, [1, ALL] + [1] * 100) as address,
        Pushes(WriteOptions(endpoint=address, stream="w_shut", fetch_retries=2)) as pushes,
    ):
        pushes.push({"data": b"x", "stream": "w_shut"})
        with pytest.raises(NodeUnreachable, match="tried 2 times more"):
            pushes.flush()
