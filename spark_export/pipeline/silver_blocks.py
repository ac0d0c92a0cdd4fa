"""Builds the silver tables of the blocks of the block node with Spark.

A block is stored as one message or several messages. Each message has a header with the root hash that seemed right at
the time of storing (`block_node.persist.mark`). If another root hash was right, the first message of the next block
contains the corrected root hash.

The functions work on all messages, or on the new messages with what earlier ones left: the rows that are known, and the
messages of blocks that were not complete. The rows do not depend on how the messages were divided.

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
PARTS = (
    "chain string, timestamp timestamp, data binary, number bigint, part int, parts int, items int, size_bytes bigint, "
    "root binary, root_before binary"
)
ROOTS = "chain string, number bigint, correction struct<timestamp: timestamp, root: binary>"
BLOCKS = (
    "chain string, number bigint, root binary, timestamp timestamp, items int, size_bytes bigint, "
    "event_time timestamp, hapi_version string, previous_root binary, kinds map<string, int>, "
    "sizes array<struct<position: int, kind: string, size_bytes: int>>"
)


def block_parts(bronze: Any) -> Any:
    """Returns one row for each message that is a block or a part of one, with the columns PARTS."""
    from pyspark.sql import functions as f

    part = f.udf(decode_part, PART_SCHEMA, useArrow=False)
    return (
        bronze.where(f.col("stream").startswith(STREAM_PREFIX))
        .select(
            f.substring("stream", len(STREAM_PREFIX) + 1, 2**30).alias("chain"),
            "timestamp",
            "data",
            part("headers").alias("mark"),
        )
        .where("mark IS NOT NULL")
        .select("chain", "timestamp", "data", "mark.*")
    )


def corrected_roots(parts: Any, known: Any) -> Any:
    """Returns the corrected root hash of each block that has one, with the columns ROOTS. Of several corrections, the
    one that was stored first counts. known: the result for earlier messages."""
    from pyspark.sql import functions as f

    new = parts.where("root_before IS NOT NULL").select(
        "chain",
        (f.col("number") - 1).alias("number"),
        f.struct("timestamp", f.col("root_before").alias("root")).alias("correction"),
    )
    return known.unionByName(new).groupBy("chain", "number").agg(f.min("correction").alias("correction"))


def silver_blocks(parts: Any, known: Any, roots: Any) -> Any:
    """Returns one row for each completely stored block.

    Columns: chain, number, root (hash), timestamp (when the last message of the block was first stored), items (their
    number), size_bytes, event_time (when produced), hapi_version, previous_root, kinds (the number of items of each
    kind), sizes (position, kind and size in bytes of each item, in order).

    known: the rows of earlier messages, for the same numbers of blocks at least.
    """
    from pyspark.sql import functions as f

    decode = f.udf(decode_cut, BLOCK_SCHEMA, useArrow=False)
    copies = parts.groupBy("chain", "number", "root", "parts", "items", "size_bytes").agg(
        f.expr("min(timestamp) FILTER (WHERE part = parts - 1)").alias("timestamp"),
        # A part that was stored twice has the same bytes, and the set contains it once.
        f.array_sort(f.collect_set(f.struct("part", "data"))).alias("cut"),
    )
    is_whole = f.size("cut") == f.col("parts")
    columns = ("items", "size_bytes", "event_time", "hapi_version", "previous_root", "kinds", "sizes")
    decoded = copies.withColumn("block", f.when(is_whole, decode("cut"))).select(
        "chain",
        "number",
        "root",
        "timestamp",
        f.when(
            is_whole,
            f.struct(
                "items",
                "size_bytes",
                f.timestamp_micros("block.event_time_us").alias("event_time"),
                "block.hapi_version",
                "block.previous_root",
                "block.kinds",
                "block.sizes",
            ),
        ).alias("content"),
    )
    earlier = known.select("chain", "number", "root", "timestamp", f.struct(*columns).alias("content"))
    # Copies of a block, perhaps cut in other places, are one row. An incomplete copy counts for the time only.
    order = f.when(f.col("content").isNotNull(), f.struct("content.size_bytes", "content.event_time", "content.sizes"))
    return (
        earlier.unionByName(decoded)
        .join(f.broadcast(roots), ["chain", "number"], "left")
        .withColumn("root", f.coalesce("correction.root", "root"))
        .groupBy("chain", "number", "root")
        .agg(f.min("timestamp").alias("timestamp"), f.min_by("content", order).alias("content"))
        .where("content IS NOT NULL")
        .select("chain", "number", "root", "timestamp", "content.*")
    )


def open_parts(parts: Any, blocks: Any, roots: Any) -> Any:
    """Returns the messages whose block has no row in `blocks`. Later messages can complete such a block."""
    from pyspark.sql import functions as f

    labelled = parts.join(f.broadcast(roots), ["chain", "number"], "left").withColumn(
        "label", f.coalesce("correction.root", "root")
    )
    done = blocks.select("chain", "number", f.col("root").alias("label"))
    return labelled.join(done, ["chain", "number", "label"], "left_anti").select(*parts.columns)


def silver_items(blocks: Any) -> Any:
    """Returns one row for each block item: chain, number (of the block), position (from 0), kind, size_bytes."""
    from pyspark.sql import functions as f

    return blocks.select("chain", "number", f.explode("sizes").alias("item")).select("chain", "number", "item.*")


def decode_cut(cut: Any) -> tuple[Any, ...] | None:
    """Decodes a block from its messages, in order. Returns the fields of `BLOCK_SCHEMA`, or None."""
    return decode_block(b"".join(bytes(part["data"]) for part in cut))
