"""The bronze, silver and gold tables of a declarative pipeline of Spark. docs/export.md describes them.

STREAM_NODE_ADDRESS: the address of the node. STREAM_NODE_CARDINAL: a regular expression that matches the streams with
Cardinal topics. Its first group names the chain.
"""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark_export.pipeline import gold, silver, silver_cardinal
from spark_export.pipeline.silver_cardinal import Topics

spark = SparkSession.active()
CARDINAL = os.environ.get("STREAM_NODE_CARDINAL", "cardinal[.].*")


@dp.table(format="parquet")
def bronze() -> DataFrame:
    """The bronze table: the messages as they are stored. Each executor reads the address of the node from its
    own environment."""
    options = {"subscribePattern": ".*", "startingOffsets": "earliest", "includeHeaders": "true"}
    return (
        spark.readStream.format("stream_node")
        .options(endpoint="env:STREAM_NODE_ADDRESS", columns="stream", **options)
        .load()
        .withColumn("era", f.lit(0))
    )


@dp.materialized_view(format="parquet")
def messages() -> DataFrame:
    return silver.silver_messages(spark.read.table("bronze"))


@dp.materialized_view(format="parquet")
def blocks() -> DataFrame:
    parts = silver.block_parts(spark.read.table("bronze"))
    nothing = spark.createDataFrame([], silver.BLOCKS)
    roots = silver.corrected_roots(parts, spark.createDataFrame([], silver.ROOTS))
    return silver.silver_blocks(parts, nothing, roots)


@dp.materialized_view(format="parquet")
def items() -> DataFrame:
    return silver.silver_items(spark.read.table("blocks"))


def cardinal() -> DataFrame:
    messages = silver_cardinal.cardinal_messages(spark.read.table("bronze"), Topics(CARDINAL))
    return silver_cardinal.assembled_blocks(messages)


@dp.materialized_view(format="parquet")
def batches() -> DataFrame:
    blocks = cardinal()
    return silver_cardinal.silver_batches(blocks, silver_cardinal.chain_marks(blocks))


@dp.materialized_view(format="parquet")
def updates() -> DataFrame:
    return silver_cardinal.silver_updates(cardinal(), spark.read.table("batches"))


@dp.materialized_view(format="parquet")
def rates() -> DataFrame:
    return gold.rates(spark.read.table("messages"))


@dp.materialized_view(format="parquet")
def latency() -> DataFrame:
    return gold.latency(gold.events(spark.read.table("messages"), spark.read.table("blocks")))


def gaps(rows: DataFrame, place: list[str], number: str) -> DataFrame:
    return gold.gaps(gold.spans(gold.points(rows, place, number), place), place)


@dp.materialized_view(format="parquet")
def index_gaps() -> DataFrame:
    return gaps(spark.read.table("messages"), ["stream", "era", "partition"], "index")


@dp.materialized_view(format="parquet")
def block_gaps() -> DataFrame:
    return gaps(spark.read.table("blocks"), ["chain"], "number")


@dp.materialized_view(format="parquet")
def reorgs() -> DataFrame:
    return gold.reorgs(spark.read.table("batches"))
