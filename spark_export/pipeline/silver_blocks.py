"""Silver: blocks of the block node. It verifies nothing, because the block node verified each block before storing it.

A block is one message or several, by its parts (`block_node.persist.mark`). The root in their marks is the most
likely one at the time of storing; the next block's first message names the root where that was another one.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from spark_export.block_decoding import find_mark, find_root_before, read_block
from spark_export.pipeline.types import BINARY, INT, LONG, STRING, array, strings_to, struct

STREAM_PREFIX = "block_node."
PART_SCHEMA = struct(number=LONG, part=INT, parts=INT, items=INT, size_bytes=LONG, root=BINARY, root_before=BINARY)
BLOCK_SCHEMA = struct(
    hapi_version=STRING,
    event_time_us=LONG,
    previous_root=BINARY,
    kinds=strings_to(INT),
    sizes=array(struct(position=INT, kind=STRING, size_bytes=INT)),
)


def silver_blocks(bronze: Any) -> Any:
    """One row a whole block: chain, number, root, items, size_bytes, timestamp (stored), event_time (produced),
    hapi_version, previous_root, kinds (items of each kind), sizes (of each item, in order)."""
    from pyspark.sql import functions as f

    part = f.udf(decode_part, PART_SCHEMA, useArrow=False)
    decode = f.udf(decode_block, BLOCK_SCHEMA, useArrow=False)
    parts = (
        bronze.where(f.col("stream").startswith(STREAM_PREFIX))
        .select("stream", "index", "timestamp", "data", part("headers").alias("mark"))
        .where("mark IS NOT NULL")
    )
    # One row for each change of how a chain is hashed: a handful, so that every worker can have them all.
    corrected = (
        parts.where("mark.root_before IS NOT NULL")
        .select("stream", (f.col("mark.number") - 1).alias("number"), f.col("mark.root_before").alias("corrected"))
        .distinct()
    )
    whole = (
        parts.withColumn("number", f.col("mark.number"))
        .join(f.broadcast(corrected), ["stream", "number"], "left")
        .withColumn("root", f.coalesce("corrected", "mark.root"))
        .groupBy("stream", "number", "root", "mark.parts", "mark.items", "mark.size_bytes")
        .agg(
            f.max("timestamp").alias("timestamp"),
            # The same part twice is the same bytes; the set has it once.
            f.array_sort(f.collect_set(f.struct(f.col("mark.part").alias("part"), "data"))).alias("cut"),
        )
        .where(f.size("cut") == f.col("parts"))
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
    """One row an item of a block: chain, number, position, kind, size_bytes."""
    from pyspark.sql import functions as f

    return blocks.select("chain", "number", f.explode("sizes").alias("item")).select("chain", "number", "item.*")


def decode_part(headers: Any) -> tuple[Any, ...] | None:
    """The mark of a message, and the root of the block before if the message corrects it; None if it has no mark."""
    mark = find_mark(headers)
    if mark is None:
        return None
    root_before = find_root_before(headers)
    return (mark.number, mark.part, mark.parts, mark.items, mark.size_bytes, mark.root, root_before)


def decode_block(cut: Any) -> tuple[Any, ...] | None:
    """Reads a block from its parts, which are given in order. Returns the version and time of its header, the previous
    root of its footer, the number of items of each kind, and the position, kind and size of each item; None if the
    bytes are no block.
    """
    from block_node.blocks.errors import BlockFormatError

    try:
        block = read_block(b"".join(bytes(part["data"]) for part in cut))
    except BlockFormatError:
        return None
    kinds = Counter(kind for kind, _ in block.items)
    sizes = [(position, kind, len(item)) for position, (kind, item) in enumerate(block.items)]
    return (block.hapi_version, block.time_us, block.previous_root, dict(kinds), sizes)
