"""Builds the silver tables of all messages, and of the blocks of the block node, with Spark.

A block is stored as one message or several messages. Each message has a header with the root hash that seemed right at
the time of storing (`block_node.persist.mark`). If another root hash was right, the first message of the next block
has the corrected one. The block node verifies each block before storing it, so this module verifies none.

The functions work on all messages, or on new messages with the results of earlier ones: the known rows, and the
messages of incomplete blocks. The result does not depend on how the messages were divided.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from pyspark.sql import functions as f

from spark_export.decode.own_columns import find_mark, find_root_before, read_block

EVENT_TIME_HEADER = "event_time_us"
"""The message header in which a publisher can report the time of an event: microseconds since 1970, in digits."""
STREAM_PREFIX = "block_node."
MARK = "number bigint, part int, parts int, items int, size_bytes bigint, root binary, root_before binary"
ITEMS = "kinds map<string, int>, sizes array<struct<position: int, kind: string, size_bytes: int>>"
DECODED = f"event_time_us bigint, hapi_version string, previous_root binary, {ITEMS}"
PARTS = f"chain string, timestamp timestamp, data binary, {MARK}"
ROOTS = "chain string, number bigint, correction struct<timestamp: timestamp, root: binary>"
BLOCKS = (
    "chain string, number bigint, root binary, timestamp timestamp, items int, size_bytes bigint, "
    f"event_time timestamp, hapi_version string, previous_root binary, {ITEMS}"
)
CONTENT = ("items", "size_bytes", "event_time", "hapi_version", "previous_root", "kinds", "sizes")


def silver_messages(bronze: Any) -> Any:
    """Returns one row for each message.

    Columns: stream, era, partition, index, timestamp (when stored), key, data_bytes, text (the data if it is UTF-8,
    else null), event_time (from the header `event_time_us`).
    """
    header = f.get(f.filter("headers", lambda each: each["key"] == EVENT_TIME_HEADER), f.lit(0))["value"]
    text = f.col("data").cast("string")
    return bronze.select(
        *("stream", "era", "partition", "index", "timestamp", "key"),
        f.octet_length("data").alias("data_bytes"),
        f.when(f.is_valid_utf8(text), text).alias("text"),
        # If the header is not a number, the time is null, and the query does not fail.
        f.timestamp_micros(header.cast("string").try_cast("bigint")).alias("event_time"),
    )


def block_parts(bronze: Any) -> Any:
    """Returns one row for each message that is a block or a part of one, with the columns PARTS."""
    chain = f.substring("stream", len(STREAM_PREFIX) + 1, 2**30).alias("chain")
    mark = f.udf(decode_mark, MARK, useArrow=False)("headers").alias("mark")
    parts = bronze.where(f.col("stream").startswith(STREAM_PREFIX)).select(chain, "timestamp", "data", mark)
    return parts.where("mark IS NOT NULL").select("chain", "timestamp", "data", "mark.*")


def corrected_roots(parts: Any, known: Any) -> Any:
    """Returns the corrected root hash, the first if there are several, of each block that has one: the columns ROOTS.

    known: the result for earlier messages.
    """
    correction = f.struct("timestamp", f.col("root_before").alias("root")).alias("correction")
    number = (f.col("number") - 1).alias("number")
    new = parts.where("root_before IS NOT NULL").select("chain", number, correction)
    return known.unionByName(new).groupBy("chain", "number").agg(f.min("correction").alias("correction"))


def silver_blocks(parts: Any, known: Any, roots: Any) -> Any:
    """Returns one row for each completely stored block.

    Columns: chain, number, root (hash), timestamp (when the last message of the block was first stored), items (their
    number), size_bytes, event_time (when produced), hapi_version, previous_root, kinds (the number of items of each
    kind), sizes (position, kind and size in bytes of each item, in order).

    known: the rows of earlier messages, at least of all messages with a block number that occurs in `parts`.
    """
    decode = f.udf(decode_cut, DECODED, useArrow=False)
    copies = parts.groupBy("chain", "number", "root", "parts", "items", "size_bytes").agg(
        f.expr("min(timestamp) FILTER (WHERE part = parts - 1)").alias("timestamp"),
        # A part that was stored twice has the same bytes, and the set contains it once.
        f.array_sort(f.collect_set(f.struct("part", "data"))).alias("cut"),
    )
    is_whole = f.size("cut") == f.col("parts")
    event_time = f.timestamp_micros("block.event_time_us").alias("event_time")
    content = f.struct("items", "size_bytes", event_time, *(f"block.{name}" for name in CONTENT[3:]))
    decoded = copies.withColumn("block", f.when(is_whole, decode("cut"))).select(
        *("chain", "number", "root", "timestamp"), f.when(is_whole, content).alias("content")
    )
    earlier = known.select("chain", "number", "root", "timestamp", f.struct(*CONTENT).alias("content"))
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
    labelled = parts.join(f.broadcast(roots), ["chain", "number"], "left").withColumn(
        "label", f.coalesce("correction.root", "root")
    )
    done = blocks.select("chain", "number", f.col("root").alias("label"))
    return labelled.join(done, ["chain", "number", "label"], "left_anti").select(*parts.columns)


def silver_items(blocks: Any) -> Any:
    """Returns one row for each block item: chain, number (of the block), position (from 0), kind, size_bytes."""
    return blocks.select("chain", "number", f.explode("sizes").alias("item")).select("chain", "number", "item.*")


def decode_mark(headers: Any) -> tuple[Any, ...] | None:
    """Decodes the headers of a message into the fields of MARK; None if it is not part of a block."""
    if (mark := find_mark(headers)) is None:
        return None
    return mark.number, mark.part, mark.parts, mark.items, mark.size_bytes, mark.root, find_root_before(headers)


def decode_cut(cut: Any) -> tuple[Any, ...] | None:
    """Decodes a block from its messages, in order. Returns the fields of DECODED; None if the bytes are no block."""
    from block_node.blocks.errors import BlockFormatError

    try:
        version, time_us, previous, items = read_block(b"".join(bytes(part["data"]) for part in cut))
    except BlockFormatError:
        return None
    sizes = [(position, kind, len(item)) for position, (kind, item) in enumerate(items)]
    return time_us, version, previous, dict(Counter(kind for kind, _ in items)), sizes
