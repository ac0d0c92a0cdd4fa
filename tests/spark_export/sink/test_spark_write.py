"""Goal: rows of a DataFrame are stored as messages, none lost. Method: a real node, read back by its own client."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from pyspark.sql.types import IntegerType, StringType, StructField, StructType, TimestampType

from spark_export.errors import OptionError, SourceUnreachable
from spark_export.sink.pushes import Pushes
from spark_export.sink.write_rows import RowToPush, check_columns, content_of, read_row
from spark_export.source.options import WriteOptions, write_options
from stream_client import Header, blocking
from stream_node.node.process import NodeProcess
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


def row_of(row: dict[str, Any]) -> RowToPush:
    taken = read_row(row, WriteOptions())
    assert taken is not None
    return taken


@pytest.mark.older_spark
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
    schema = StructType([StructField("text", StringType())])
    with pytest.raises(OptionError, match="the column 'text' cannot be written; there are data, key"):
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


def test_the_argument_of_save_is_refused(spark: Any, node: NodeProcess) -> None:
    """Goal: no row goes to another node than the one that was named. Method: `save("host:port")`, with an endpoint to
    which the write went before."""
    writer = spark.sql("select 'x' as data").write.format("stream_node").mode("append").option("stream", "w_path")
    with pytest.raises(Exception, match=r"path='localhost:9': path names a data directory to read"):
        writer.option("endpoint", node.address).save("localhost:9")
    with blocking.connect(node.address) as client:
        assert "w_path" not in {each.stream_name for each in client.list_streams()}


def test_the_columns_of_kafkas_sink_are_written(spark: Any, node: NodeProcess) -> None:
    """Goal: a frame made for Kafka's sink is written as it is; what the node gives to a message is refused."""
    frame = spark.sql("select 'k' as key, 'one' as value, 'w_topic' as topic")
    frame.write.format("stream_node").mode("append").option("endpoint", node.address).save()
    assert stored(node, "w_topic") == [[b"one"]]
    back = spark.read.format("stream_node").options(endpoint=node.address, subscribe="w_topic").load()
    with pytest.raises(Exception, match="the node gives each message its index and its time"):
        back.write.format("stream_node").mode("append").option("endpoint", node.address).save()
    for name in ("timestamp", "timestampType", "offset", "index"):
        schema = StructType([StructField("value", StringType()), StructField(name, TimestampType())])
        with pytest.raises(OptionError, match=f"the column '{name}' cannot be written: the node gives"):
            check_columns(schema, WriteOptions(stream="s"))
    both = StructType([StructField("value", StringType()), StructField("data", StringType())])
    with pytest.raises(OptionError, match="'value' and 'data' mean the same"):
        check_columns(both, WriteOptions(stream="s"))


@pytest.mark.older_spark
def test_null_data_is_written_as_the_option_says(spark: Any, node: NodeProcess) -> None:
    """Goal: null and the empty message are told apart on reading where `nulls=mark` wrote them, and only there."""
    frame = spark.sql("select * from values (0, 'a'), (1, null), (2, '') t(partition, data)")
    for nulls in ("empty", "skip", "mark"):
        frame.write.format("stream_node").mode("append").options(
            endpoint=node.address, stream=f"w_{nulls}", partitions="3", nulls=nulls
        ).save()
    assert stored(node, "w_empty") == [[b"a"], [b""], [b""]]
    assert stored(node, "w_skip") == [[b"a"], [], [b""]]
    assert stored(node, "w_mark") == [[b"a"], [b""], [b""]]
    read = spark.read.format("stream_node").options(endpoint=node.address, subscribe="w_mark", includeHeaders="true")
    marked = read.load().where("exists(headers, each -> each.key = 'node/null/1')")
    assert [row.partition for row in marked.collect()] == [1]


def test_a_write_looks_whether_the_stream_has_messages(spark: Any, node: NodeProcess) -> None:
    frame = spark.sql("select 'x' as data")

    def write(if_exists: str) -> None:
        options = {"endpoint": node.address, "stream": "w_exists", "ifExists": if_exists}
        frame.write.format("stream_node").mode("append").options(**options).save()

    write("error")
    with pytest.raises(Exception, match="'w_exists' has 1 messages, and ifExists is error"):
        write("error")
    write("ignore")
    assert stored(node, "w_exists") == [[b"x"]]
    write("append")
    assert stored(node, "w_exists") == [[b"x", b"x"]]


@pytest.mark.older_spark
def test_a_write_with_a_name_is_stored_once(spark: Any, node: NodeProcess) -> None:
    """Goal: a job that is run again with the same `writeId` stores nothing twice; the next version is stored."""

    def write(version: int, rows: int) -> None:
        frame = spark.range(rows).selectExpr(f"concat({version}, '-', id) as data")
        options = {"endpoint": node.address, "stream": "w_named", "writeId": "job", "writeVersion": str(version)}
        frame.write.format("stream_node").mode("append").options(**options).save()

    for version in (0, 0, 1, 0, 1):
        write(version, 100)
    wanted = [b"%d-%d" % (version, number) for version in (0, 1) for number in range(100)]
    assert sorted(stored(node, "w_named")[0]) == sorted(wanted)


def test_options_of_a_write_that_contradict_are_refused() -> None:
    refused: list[tuple[dict[str, str], bool, str]] = [
        ({"writeVersion": "1"}, False, "give writeId too"),
        ({"ifExists": "error"}, False, "give this option"),
        ({"ifExists": "error", "stream": "s", "writeId": "a"}, False, "ifExists cannot be given with it"),
        ({"delivery": "atLeastOnce"}, False, "for a streaming query"),
        ({"writeId": "a"}, True, "for df.write"),
        ({"ifExists": "ignore", "stream": "s"}, True, "for df.write"),
        ({"nulls": "tombstone"}, False, "error or empty or skip or mark"),
        ({"path": "localhost:4000", "stream": "s"}, False, "give the node's address by the option endpoint"),
        ({"path": "localhost:4000", "stream": "s"}, True, "give the node's address by the option endpoint"),
    ]
    for given, streaming, said in refused:
        with pytest.raises(OptionError, match=said):
            write_options(given, streaming)
    assert not write_options({"delivery": "atLeastOnce"}, streaming=True).exactly_once


def test_a_broken_connection_doubles_nothing(node: NodeProcess) -> None:
    """Goal: what is sent again is stored once, in order. Method: a door that ends two connections in their middle."""
    with (
        door(node.address, [3_000, 5_000]) as address,
        Pushes(WriteOptions(endpoint=address, stream="w_door", window=200)) as pushes,
    ):
        # The first connection of the door is the writer's; those that ask for partitions have one of their own.
        for number in range(2_000):
            pushes.push(row_of({"data": b"%d" % number, "stream": "w_door"}))
        pushes.flush()
    assert stored(node, "w_door") == [[b"%d" % number for number in range(2_000)]]
    assert pushes.counts == {("w_door", 0): 2_000}


def test_a_node_that_takes_connections_and_ends_each_is_given_up(node: NodeProcess) -> None:
    """Goal: a task that gets nowhere fails. Method: a door behind which no connection comes to an answer."""
    with (
        door(node.address, [1, ALL] + [1] * 1_000) as address,
        Pushes(WriteOptions(endpoint=address, stream="w_shut", request_timeout_s=3)) as pushes,
    ):
        pushes.push(row_of({"data": b"x", "stream": "w_shut"}))
        with pytest.raises(SourceUnreachable, match="a message of w_shut/0"):
            pushes.flush()


def test_a_null_value_of_a_header_is_what_the_option_says() -> None:
    """Goal: null does not become an empty value in silence, which no reader could tell from one."""
    row = {"value": b"x", "topic": "t", "headers": [{"key": "a", "value": None}, {"key": "b", "value": "1"}]}
    for nulls in ("error", "mark"):
        with pytest.raises(OptionError, match="the header 'a' of a row has null as its value"):
            read_row(row, WriteOptions(nulls=nulls))
    for nulls, headers in (("empty", [Header("a", b""), Header("b", b"1")]), ("skip", [Header("b", b"1")])):
        taken = read_row(row, WriteOptions(nulls=nulls))
        assert taken is not None
        assert taken.headers == headers
    with pytest.raises(OptionError, match="has null as its name"):
        read_row({**row, "headers": [{"key": None, "value": b""}]}, WriteOptions(nulls="skip"))


def test_the_option_topic_names_the_stream_of_every_row() -> None:
    """Goal: as in Kafka's sink, the option has precedence over the column; our option `stream` has not."""
    row = {"value": "x", "topic": "of the row"}
    for option, stream in (("topic", "given"), ("stream", "of the row")):
        taken = read_row(row, write_options({option: "given"}))
        assert taken is not None
        assert taken.stream == stream


def test_the_bytes_of_a_content_never_change() -> None:
    """Goal: a batch that an earlier version began is repeated to its end: rows go to the same partitions, and those
    that are stored are found. Method: the bytes of that version."""
    assert content_of(b"data", b"k", [Header("h", b"v")]) == b"\x00\x04data\x01\x01k\x01\x01h\x01v"
    assert content_of(b"", None, []) == b"\x00\x00\x00\x00"
