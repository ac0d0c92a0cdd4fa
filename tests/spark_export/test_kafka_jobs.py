"""Goal: a job that somebody wrote for Kafka runs here with the name of the format changed, and with nothing else.

Method: four jobs as text, as the guides of Spark and Delta show them. The test replaces `"kafka"` in the calls of
`format`, and gives each job the addresses and folders that its operator would give.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from stream_client import blocking
from stream_node.node.process import NodeProcess
from tests.spark_export.sink.test_spark_write import stored
from tests.spark_export.spark_queries import repeat_late

pytestmark = pytest.mark.spark

OF_A_DAY = """
    from pyspark.sql.functions import col, from_json, sum as total

    orders = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingTimestamp", day_begins_ms)
        .option("endingTimestamp", day_ends_ms)
        .option("startingOffsetsByTimestampStrategy", "latest")
        .option("kafka.group.id", "daily-report")
        .option("failOnDataLoss", "true")
        .load()
    )
    parsed = orders.select(
        col("key").cast("string").alias("customer"),
        from_json(col("value").cast("string"), "amount INT").alias("order"),
        "topic", "partition", "offset", "timestamp",
    )
    report = parsed.groupBy("customer").agg(total("order.amount").alias("amount"))
    report.write.mode("overwrite").parquet(folder + "/daily")
"""
AVAILABLE_NOW = """
    stream = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 5)
        .option("minPartitions", 4)
        .option("groupIdPrefix", "ingest")
        .option("fetchOffset.numRetries", 5)
        .option("kafkaConsumer.pollTimeoutMs", 60000)
        .option("includeHeaders", "true")
        .load()
    )
    query = (
        stream.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)", "topic", "partition", "offset", "headers")
        .writeStream.format("parquet")
        .option("path", folder + "/bronze")
        .option("checkpointLocation", folder + "/checkpoints/bronze")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
"""
MERGE = """
    from deltalake import DeltaTable
    from pyspark.sql import Window
    from pyspark.sql.functions import col, row_number

    table = DeltaTable.create(folder + "/customers", schema=customers, mode="ignore")

    def upsert(batch, batch_id):
        latest = Window.partitionBy("key").orderBy(col("partition"), col("offset").desc())
        newest = (
            batch.withColumn("rank", row_number().over(latest)).where("rank = 1")
            .selectExpr("CAST(key AS STRING) AS customer", "CAST(value AS STRING) AS json", "offset")
        )
        (
            DeltaTable(folder + "/customers").merge(
                newest.toArrow(), "t.customer = s.customer", source_alias="s", target_alias="t"
            )
            .when_matched_update_all("s.offset > t.offset")
            .when_not_matched_insert_all()
            .execute()
        )

    query = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("assign", assigned)
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.foreachBatch(upsert)
        .option("checkpointLocation", folder + "/checkpoints/customers")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
"""
SINK = """
    enriched = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribePattern", topic)
        .option("startingOffsets", json.dumps({topic: {"0": -2, "1": -2}}))
        .load()
        .selectExpr("key", "concat(CAST(value AS STRING), ' seen') AS value")
    )
    query = (
        enriched.writeStream.format("kafka")
        .queryName("copy")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", target)
        .option("kafka.acks", "all")
        .option("checkpointLocation", folder + "/checkpoints/sink")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
"""


class Job:
    """A stream of two partitions with six orders of three customers, and a way to run jobs on it."""

    def __init__(self, spark: Any, node: NodeProcess, topic: str, folder: Path) -> None:
        self.spark, self.node, self.topic, self.folder = spark, node, topic, folder
        self.push(range(6))

    def push(self, numbers: range) -> None:
        with blocking.connect(self.node.address) as client:
            made = client.create_partitioned(self.topic, 2)
            for number in numbers:
                made.partitions[number % 2].push(b'{"amount": %d}' % number, key=b"c%d" % (number % 3))

    def run(self, text: str, **given: Any) -> None:
        assert 'format("kafka")' in text
        names = {"spark": self.spark, "servers": self.node.address, "topic": self.topic, "folder": str(self.folder)}
        program = textwrap.dedent(text).replace('format("kafka")', 'format("stream_node")')
        code = compile(program, "job.py", "exec")
        repeat_late(lambda: exec(code, {**names, "json": json, **given}))


@pytest.fixture
def job(spark: Any, node: NodeProcess, tmp_path: Path, request: pytest.FixtureRequest) -> Job:
    return Job(spark, node, f"jobs-{request.node.name}", tmp_path)


def test_a_report_of_a_day(job: Job) -> None:
    """Goal: the messages of the time, and none of a day without any. Method: a day around now, and the first of all."""
    job.run(OF_A_DAY, day_begins_ms=1_000, day_ends_ms=32_503_680_000_000)
    rows = {row.customer: row.amount for row in job.spark.read.parquet(f"{job.folder}/daily").collect()}
    assert rows == {"c0": 0 + 3, "c1": 1 + 4, "c2": 2 + 5}
    job.run(OF_A_DAY, day_begins_ms=1_000, day_ends_ms=2_000)
    assert job.spark.read.schema("customer STRING").parquet(f"{job.folder}/daily").count() == 0


def test_an_ingest_that_takes_what_is_there(job: Job) -> None:
    """Goal: each message once over two runs, in micro-batches of the size that is asked for."""
    job.run(AVAILABLE_NOW)
    job.push(range(6, 20))
    job.run(AVAILABLE_NOW)
    rows = job.spark.read.parquet(f"{job.folder}/bronze").select("topic", "partition", "offset", "value").collect()
    assert sorted((row.topic, row.partition, row.offset, row.value) for row in rows) == sorted(
        (job.topic, number % 2, number // 2, f'{{"amount": {number}}}') for number in range(20)
    )
    assert len(list(Path(f"{job.folder}/checkpoints/bronze/offsets").glob("[0-9]*"))) == 6


@pytest.mark.older_spark
def test_a_merge_of_each_micro_batch(job: Job) -> None:
    """Goal: the table has the newest value of each key, after a run that changes some of them."""
    pytest.importorskip("deltalake", reason="the extra `export` is not installed")
    import pyarrow as pa
    from deltalake import DeltaTable

    customers = pa.schema([("customer", pa.string()), ("json", pa.string()), ("offset", pa.int64())])
    assigned = json.dumps({job.topic: [0, 1]})
    for numbers, expected in ((range(0), {"c0": 0, "c1": 4, "c2": 2}), (range(6, 8), {"c0": 6, "c1": 7, "c2": 5})):
        job.push(numbers)
        job.run(
            MERGE, assigned=json.dumps({job.topic: [0]} if not numbers else json.loads(assigned)), customers=customers
        )
        found = DeltaTable(f"{job.folder}/customers").to_pyarrow_table().to_pylist()
        assert {row["customer"]: json.loads(row["json"])["amount"] for row in found} == expected


@pytest.mark.older_spark
def test_a_copy_into_another_topic(job: Job) -> None:
    """Goal: each row once in the target over two runs, in the partition of its key."""
    target = f"{job.topic}-seen"
    with blocking.connect(job.node.address) as client:
        client.create_partitioned(target, 3)
    job.run(SINK, target=target)
    job.push(range(6, 9))
    job.run(SINK, target=target)
    found = sorted(data for messages in stored(job.node, target) for data in messages)
    assert found == sorted(b'{"amount": %d} seen' % number for number in range(9))
