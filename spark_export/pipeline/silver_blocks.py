"""Builds the silver tables of the blocks of the block node with Spark.

A block is stored as one message or several messages. Each message has a header with the root hash that seemed right at
the time of storing (`block_node.persist.mark`). If another root hash was right, the first message of the next block
contains the corrected root hash.

The block node verifies each block before storing it, so this module verifies none.
"""

from __future__ import annotations

from typing import Any

from spark_export.pipeline.block_rows import STREAM_PREFIX, decode_block, decode_part
from spark_export.pipeline.types import BINARY, INT, LONG, STRING, array, strings_to, struct

PART_SCHEMA = struct(number=LONG, part=INT, parts=INT, items=INT, size_bytes=LONG, root=BINARY, root_before=BINARY)
BLOCK_SCHEMA = struct(
    hapi_version=STRING,
    event_time_us=LONG,
    previous_root=BINARY,
    kinds=strings_to(INT),
    sizes=array(struct(position=INT, kind=STRING, size_bytes=INT)),
)


def silver_blocks(bronze: Any) -> Any:
    """Returns one row for each completely stored block in the result of `read_bronze`.

    Columns: chain, number, root (hash), items (their number), size_bytes, timestamp (when the last message of the block
    was first stored), event_time (when produced), hapi_version, previous_root, kinds (the number of items of each
    kind), sizes (position, kind and size in bytes of each item, in order).
    """
    from pyspark.sql import functions as f

    part = f.udf(decode_part, PART_SCHEMA, useArrow=False)
    decode = f.udf(decode_cut, BLOCK_SCHEMA, useArrow=False)
    parts = (
        bronze.where(f.col("stream").startswith(STREAM_PREFIX))
        .select("stream", "index", "timestamp", "data", part("headers").alias("mark"))
        .where("mark IS NOT NULL")
    )
    # There is one row for each corrected root. There are few rows, so Spark sends all rows to every worker.
    corrected = (
        parts.where("mark.root_before IS NOT NULL")
        .groupBy("stream", (f.col("mark.number") - 1).alias("number"))
        .agg(f.expr("min(struct(timestamp, mark.root_before AS root)).root").alias("corrected"))
    )
    copies = (
        parts.withColumn("number", f.col("mark.number"))
        .join(f.broadcast(corrected), ["stream", "number"], "left")
        .withColumn("label", f.coalesce("corrected", "mark.root"))
        .groupBy("stream", "number", "label", "mark.root", "mark.parts", "mark.items", "mark.size_bytes")
        .agg(
            f.expr("min(timestamp) FILTER (WHERE mark.part = mark.parts - 1)").alias("last"),
            # A part that was stored twice has the same bytes, and the set contains it once.
            f.array_sort(f.collect_set(f.struct(f.col("mark.part").alias("part"), "data"))).alias("cut"),
        )
    )
    # Copies of a block, perhaps cut in other places, are one row. An incomplete copy counts for the time only.
    whole = (
        copies.groupBy("stream", "number", f.col("label").alias("root"))
        .agg(
            f.min("last").alias("timestamp"),
            f.expr("min_by(struct(items, size_bytes, cut), parts) FILTER (WHERE size(cut) = parts)").alias("copy"),
        )
        .where("copy IS NOT NULL")
        .select("stream", "number", "root", "timestamp", "copy.*")
    )
    return whole.select(
        f.substring("stream", len(STREAM_PREFIX) + 1, 2**30).alias("chain"),
        "number",
        "root",
        "items",
        "size_bytes",
        "timestamp",
        decode("cut").alias("block"),
    ).select(
        "chain",
        "number",
        "root",
        "items",
        "size_bytes",
        "timestamp",
        f.timestamp_micros("block.event_time_us").alias("event_time"),
        "block.hapi_version",
        "block.previous_root",
        "block.kinds",
        "block.sizes",
    )


def silver_items(blocks: Any) -> Any:
    """Returns one row for each block item: chain, number (of the block), position (from 0), kind, size_bytes."""
    from pyspark.sql import functions as f

    return blocks.select("chain", "number", f.explode("sizes").alias("item")).select("chain", "number", "item.*")


def decode_cut(cut: Any) -> tuple[Any, ...] | None:
    """Decodes a block from its messages, in order. Returns the fields of `BLOCK_SCHEMA`, or None."""
    return decode_block(b"".join(bytes(part["data"]) for part in cut))
