"""Goal: streams are tables of Spark's SQL, and a table reads what its options say.

Method: statements as a user writes them, against a node; the rows are compared with what was pushed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from pyspark.errors import PySparkException
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark_export.errors import OptionError
from spark_export.source.options import READ_OPTIONS, WRITE_OPTIONS
from spark_export.source.source import StreamNodeSource, own_options, recall, recall_for_write, remember
from stream_client import blocking
from stream_node.node.process import NodeProcess
from tests.spark_export.spark_queries import run_query

OF_A_TABLE = {
    "provider": "stream_node",
    "owner": "root",
    "comment": "orders of all shops",
    "delta.feature": "x",
    "subscribe": "orders",
    "option.subscribe": "orders",
    "location": "file:/data%20dir",
    "path": "file:/data%20dir",
}
"""What Spark 4.3 gives for CREATE TABLE … USING stream_node OPTIONS (subscribe 'orders', path '/data dir') COMMENT …"""


def test_sparks_own_properties_of_tables_are_no_options() -> None:
    assert own_options(OF_A_TABLE) == {"subscribe": "orders", "path": "/data dir"}


def test_without_a_table_nothing_is_left_out() -> None:
    """Goal: a slip in the options of a read is still refused."""
    assert own_options({"owner": "root", "option.subscribe": "a"}) == {"owner": "root", "option.subscribe": "a"}


def test_the_options_of_a_query_win_over_those_of_its_table() -> None:
    plain = StructType([StructField("stream", StringType(), False), StructField("index", LongType(), False)])
    kept = remember(plain, {"subscribe": "orders", "endpoint": "a:1"})
    assert kept != plain
    assert recall(kept, {"endpoint": "b:2"}) == (plain, {"subscribe": "orders", "endpoint": "b:2"})
    assert recall(kept, {}, WRITE_OPTIONS) == (plain, {"endpoint": "a:1"})
    assert recall(plain, {"subscribe": "x"}, READ_OPTIONS) == (plain, {"subscribe": "x"})


@pytest.fixture
def stream(request: pytest.FixtureRequest, node: NodeProcess) -> str:
    """A stream of the test's own, with ten messages in two partitions."""
    name = str(request.node.name)
    with blocking.connect(node.address) as client, client.create_partitioned(name, 2).publisher() as publisher:
        for number in range(10):
            publisher.push(b"%d" % number)
    return name


@pytest.fixture
def orders(spark: Any, node: NodeProcess, stream: str) -> Iterator[str]:
    """The options with which SQL reads the stream."""
    yield f"OPTIONS (endpoint '{node.address}', subscribe '{stream}', columns 'stream')"
    for kind, name in (("VIEW", "order_counts"), ("TABLE", "orders"), ("TABLE", "local_orders"), ("VIEW", "passing")):
        spark.sql(f"DROP {kind} IF EXISTS {name}")


def count(spark: Any, query: str) -> int:
    return int(spark.sql(query).collect()[0][0])


@pytest.mark.spark
def test_a_stream_is_a_table_and_views_stand_on_it(
    spark: Any, node: NodeProcess, stream: str, orders: str, tmp_path: Path
) -> None:
    """Goal: CREATE TABLE, a view on it, `spark.table`, joins, options of one query, and a streaming read."""
    spark.sql(f"CREATE TABLE orders USING stream_node {orders} TBLPROPERTIES ('team' = 'shops') COMMENT 'all'")
    spark.sql("CREATE VIEW order_counts AS SELECT partition, count(*) AS messages FROM orders GROUP BY partition")
    assert spark.table("orders").count() == 10
    assert count(spark, "SELECT sum(messages) FROM order_counts") == 10
    assert [row[0] for row in spark.sql("SELECT index FROM orders WHERE partition = 1 ORDER BY 1").collect()] == [
        *range(5)
    ]
    ends = json.dumps({stream: {"0": 1, "1": 2}})
    assert count(spark, f"SELECT count(*) FROM orders WITH (`endingOffsets` = '{ends}')") == 3
    assert count(spark, "SELECT count(*) FROM orders a JOIN orders b USING (partition, index)") == 10
    # A table is read anew by each query, and so are its views.
    with blocking.connect(node.address) as client:
        client.get_stream(stream).partitions[0].push(b"new")
    assert count(spark, "SELECT sum(messages) FROM order_counts") == 11
    frame = spark.readStream.option("startingOffsets", "earliest").table("orders")
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    run_query(writer, str(tmp_path / "out"))
    assert spark.read.parquet(str(tmp_path / "out")).count() == 11


@pytest.mark.spark
def test_a_slip_is_told_when_the_table_is_made(spark: Any, orders: str) -> None:
    wrong = orders.replace(")", ", startingOfsets 'earliest')")
    with pytest.raises(PySparkException, match="did you mean startingOffsets"):
        spark.sql(f"CREATE TABLE orders USING stream_node {wrong}")


@pytest.mark.spark
def test_a_location_is_the_nodes_data_directory(spark: Any, node: NodeProcess, stream: str, orders: str) -> None:
    spark.sql(f"CREATE TABLE local_orders USING stream_node OPTIONS (path '{node.data_dir}', subscribe '{stream}')")
    assert spark.table("local_orders").count() == 10


@pytest.mark.spark
def test_a_temporary_view_has_columns_of_its_own(spark: Any, orders: str) -> None:
    """Goal: what a table of Spark 4.3 cannot, a temporary view can. Method: the decoder `json`, which needs columns."""
    decoding = orders.replace(")", ", decode 'json')")
    spark.sql(f"CREATE TEMPORARY VIEW passing (index LONG, a INT) USING stream_node {decoding}")
    assert spark.table("passing").count() == 10


@pytest.mark.spark
def test_rows_are_inserted_into_a_stream(spark: Any, node: NodeProcess, stream: str, orders: str) -> None:
    """Goal: INSERT INTO appends to the stream of the table; an index and OVERWRITE are refused."""
    kafkas = orders.replace("columns 'stream'", "columns 'kafka'")
    spark.sql(f"CREATE TABLE orders USING stream_node {kafkas}")
    spark.sql("INSERT INTO orders (key, value) VALUES (CAST('k' AS BINARY), CAST('inserted' AS BINARY))")
    spark.sql("SELECT 'k2' AS key, 'appended' AS value").selectExpr("binary(key)", "binary(value)").writeTo(
        "orders"
    ).append()
    values = {bytes(row.value) for row in spark.table("orders").where("key IS NOT NULL").collect()}
    assert values == {b"inserted", b"appended"}
    with pytest.raises(Exception, match="the node gives each message its index and its time"):
        spark.sql("INSERT INTO orders (value, offset) VALUES (CAST('x' AS BINARY), 7L)")
    with pytest.raises(Exception, match="never overwritten"):
        spark.sql("INSERT OVERWRITE orders SELECT * FROM orders")
    assert spark.table("orders").count() == 12


def test_an_insert_goes_to_the_stream_of_its_table(tmp_path: Path) -> None:
    """Method: the schemas and options that Spark 4.3 gives to a writer."""

    def schema(first: str, **options: str) -> StructType:
        return remember(StructType().add(first, StringType()).add("offset", LongType()), options)

    assert recall_for_write(schema("key", endpoint="a:1", subscribe="orders"), {})[1] == {
        "endpoint": "a:1",
        "stream": "orders",
    }
    chosen = schema("key", endpoint="a:1", subscribe="orders", stream="other")
    assert recall_for_write(chosen, {})[1]["stream"] == "other"
    assert recall_for_write(chosen, {"stream": "third"})[1]["stream"] == "third"
    assert "stream" not in recall_for_write(schema("key", endpoint="a:1", subscribe="a,b"), {})[1]
    with pytest.raises(OptionError, match="create the table with endpoint too"):
        recall_for_write(schema("key", path="/data", subscribe="orders"), {})
    # A frame that was read from a table is no INSERT: its rows go where the write says.
    selected = StructType([schema("key", endpoint="a:1", subscribe="orders").fields[0]])
    assert "stream" not in recall_for_write(selected, {})[1]
    made = StreamNodeSource(options={**OF_A_TABLE, "option.stream": "kept"})
    assert json.loads(made.schema().fields[0].metadata["stream_node.options"])["stream"] == "kept"
