"""Makes the silver tables of Cardinal Streams: batches, updates, and the blocks that a reorg removed from the canonical
chain.

This module decodes each message separately. Only `cardinal_streams` reassembles and orders the messages of a block.
"""

from __future__ import annotations

from typing import Any

from spark_export.pipeline.chain import BlockLink, mark_chain
from spark_export.pipeline.types import BINARY, LONG, STRING, array, strings_to, struct

UPDATES = array(struct(key=STRING, value=BINARY))
BATCH_SCHEMA = struct(
    number=LONG,
    parent=BINARY,
    weight=STRING,
    updates=UPDATES,
    deletes=array(STRING),
    counts=strings_to(LONG),
    sub_batches=strings_to(BINARY),
)
ITEM_SCHEMA = struct(updates=UPDATES, deletes=array(STRING))
MARKS_SCHEMA = array(struct(hash=BINARY, fork_number=LONG))
HASH_BYTES = 32
BATCH, SUB_BATCH_ITEM, UPDATE, DELETE = "00", "02", "03", "04"
"""The first byte of a message key, in hex, which gives the kind of message (`cardinal_streams.message.messages`)."""


def cardinal_messages(bronze: Any) -> Any:
    """Returns the messages of Cardinal Streams with two parts of the key as columns: kind (the first byte, in hex) and
    hash (the hash of the block).
    """
    from pyspark.sql import functions as f

    return bronze.where(f.octet_length("key") > HASH_BYTES).select(
        "stream",
        "partition",
        "index",
        "timestamp",
        f.lower(f.hex(f.substring("key", 1, 1))).alias("kind"),
        f.substring("key", 2, HASH_BYTES).alias("hash"),
        "key",
        "data",
    )


def silver_batches(messages: Any) -> Any:
    """Returns one row for each block that has a readable Batch message.

    Columns: stream, hash, timestamp (when first stored), number, parent, weight (decimal digits), and from the Batch
    message updates, deletes, counts and sub_batches. If redundant producers send the same Batch, the table contains the
    first Batch only. messages: the table of `cardinal_messages`."""
    from pyspark.sql import functions as f

    decode = f.udf(decode_batch, BATCH_SCHEMA, useArrow=False)
    first = (
        messages.where(f.col("kind") == BATCH)
        .groupBy("stream", "hash")
        .agg(f.min("timestamp").alias("timestamp"), f.min_by(f.struct("key", "data"), "index").alias("record"))
    )
    return (
        first.select("stream", "hash", "timestamp", decode("record.key", "record.data").alias("batch"))
        .where("batch IS NOT NULL")
        .select("stream", "hash", "timestamp", "batch.*")
    )


def mark_reorged(batches: Any) -> Any:
    """Adds the columns reorged and fork_number to the table of `silver_batches`.

    reorged: whether a reorg removed the block from the canonical chain. fork_number: for a removed block, the number of
    its latest ancestor on the canonical chain; null for other blocks, or if the ancestor is unknown.

    One task processes the hashes, numbers and weights of all blocks of a stream. It needs about 0.5 KiB of memory for
    each block.
    """
    from pyspark.sql import functions as f

    find = f.udf(find_marks, MARKS_SCHEMA, useArrow=False)
    links = batches.groupBy("stream").agg(f.collect_list(f.struct("hash", "parent", "number", "weight")).alias("links"))
    marks = links.select("stream", f.explode(find("links")).alias("mark")).selectExpr(
        "stream", "mark.*", "true AS marked"
    )
    joined = batches.join(marks, ["stream", "hash"], "left")
    columns = ["stream", "hash", "timestamp", *BATCH_SCHEMA.fieldNames(), "fork_number"]
    return joined.selectExpr(*columns, "coalesce(marked, false) AS reorged")


def find_marks(links: Any) -> list[tuple[bytes, int | None]]:
    """Returns the hash and fork number of each block of one stream that a reorg removed from the canonical chain.

    A fork number is None if unknown.
    """
    blocks = [
        BlockLink(bytes(each["hash"]), bytes(each["parent"]), each["number"], int(each["weight"])) for each in links
    ]
    return [(mark.hash, mark.fork_number) for mark in mark_chain(blocks) if mark.reorged]


def silver_updates(messages: Any, batches: Any) -> Any:
    """Returns one row for each key that a block sets or deletes.

    Columns: stream, hash, number, reorged, key, value (null if the block deletes the key), source (the message with the
    update: `batch`, `message` for a message of its own, or `sub_batch`). An update that was sent twice appears once.
    messages: the table of `cardinal_messages`. batches: the table of `mark_reorged`.
    """
    from pyspark.sql import functions as f

    decode = f.udf(decode_item, ITEM_SCHEMA, useArrow=False)
    name = f.substring("key", HASH_BYTES + 2, 2**30).cast("string").alias("key")
    nothing = f.lit(None).cast("binary").alias("value")
    columns = ["stream", "hash", "key", "value", "source"]
    parts = [
        messages.where(f.col("kind") == UPDATE).select("stream", "hash", name, f.col("data").alias("value")),
        messages.where(f.col("kind") == DELETE).select("stream", "hash", name, nothing),
    ]
    items = messages.where(f.col("kind") == SUB_BATCH_ITEM).select(
        "stream", "hash", decode("key", "data").alias("item")
    )
    inlined = [
        (batches.select("stream", "hash", "updates", "deletes"), "batch"),
        (items.select("stream", "hash", "item.*"), "sub_batch"),
    ]
    found = [part.select("*", f.lit("message").alias("source")) for part in parts]
    for rows, source in inlined:
        updates = rows.select("stream", "hash", f.explode("updates").alias("u")).select("stream", "hash", "u.*")
        deletes = rows.select("stream", "hash", f.explode("deletes").alias("key")).select("*", nothing)
        found += [part.select("*", f.lit(source).alias("source")) for part in (updates, deletes)]
    united = found[0].select(columns)
    for part in found[1:]:
        united = united.unionByName(part.select(columns))
    blocks = batches.select("stream", "hash", "number", "reorged")
    # `dropDuplicates` would ask the session for the columns, and a declarative pipeline forbids that call.
    once = united.groupBy("stream", "hash", "key", "source").agg(f.first("value").alias("value"))
    return once.join(blocks, ["stream", "hash"], "left")


def decode_batch(key: Any, data: Any) -> tuple[Any, ...] | None:
    """Decodes a Batch message into the fields of `BATCH_SCHEMA`. Returns None if the message is no readable Batch."""
    from cardinal_streams.errors import MessageError
    from cardinal_streams.message.messages import decode
    from cardinal_streams.message.types import Batch

    try:
        batch = decode(bytes(key), bytes(data))
    except MessageError:
        return None
    if not isinstance(batch, Batch):
        return None
    updates, deletes = list(batch.values.items()), sorted(batch.deletes)
    return (batch.number, batch.parent, str(batch.weight), updates, deletes, batch.counts, batch.sub_batches)


def decode_item(key: Any, data: Any) -> tuple[Any, ...] | None:
    """Decodes an item of a sub-batch into the fields of `ITEM_SCHEMA`.

    Returns None if the message is no readable item of a sub-batch.
    """
    from cardinal_streams.errors import MessageError
    from cardinal_streams.message.messages import decode
    from cardinal_streams.message.types import SubBatchMsg

    try:
        item = decode(bytes(key), bytes(data))
    except MessageError:
        return None
    if not isinstance(item, SubBatchMsg):
        return None
    return (list(item.updates.items()), list(item.deletes))
