"""Builds the silver tables of Cardinal Streams with Spark: the blocks, and the keys that each block changes.

The module `assembly` assembles blocks from messages, and `canon` finds the canonical chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_export.pipeline.assembly import BlockMessage, assemble, read_batch_hash
from spark_export.pipeline.canon import CANONICAL, INCOMPLETE, REORGED, BlockLink, mark_chain
from spark_export.pipeline.topics import CHANNEL, Topics
from spark_export.pipeline.types import BINARY, BOOLEAN, LONG, STRING, array, struct

BLOCK_SCHEMA = struct(
    number=LONG,
    parent=BINARY,
    weight=STRING,
    sets=array(struct(key=STRING, value=BINARY)),
    deletes=array(STRING),
    missing=STRING,
)
MARKS_SCHEMA = array(struct(hash=BINARY, state=STRING, fork_number=LONG))
HASH_BYTES = 32
BLOCK_KINDS = ("00", "01", "02", "03", "04")
"""The kinds of messages that belong to a block, in hex: the first byte of a message's key."""
BATCH = "00"


MESSAGES = (
    "chain string, feed string, hash binary, kind string, timestamp timestamp, partition int, index bigint, "
    "key binary, data binary"
)
BLOCKS = (
    "chain string, hash binary, timestamp timestamp, number bigint, parent binary, weight string, "
    "sets array<struct<key: string, value: binary>>, deletes array<string>, missing string"
)
MARKS = "chain string, hash binary, state string, fork_number bigint"
BATCHES = (
    "chain string, hash binary, number bigint, parent binary, weight string, timestamp timestamp, state string, "
    "reorged boolean, fork_number bigint, updates bigint, deletes bigint, missing string"
)
UPDATES = "chain string, hash binary, number bigint, canonical boolean, reorged boolean, key string, value binary"


def cardinal_messages(bronze: Any, topics: Topics) -> Any:
    """Returns one row for each message on these topics that belongs to a block.

    Columns: chain, feed ("" for normal topics; for a reorg channel, the end of its name), hash (of the block), kind
    (the first byte of the key, in hex), timestamp, partition, index, key, data.
    """
    from pyspark.sql import functions as f

    feed = f.regexp_extract("stream", f"({CHANNEL})", 1)
    base = f.regexp_replace("stream", CHANNEL, "")
    whole = f"^(?:{topics.pattern})$"
    chain = f.regexp_extract(base, whole, 1) if topics.has_group else f.lit(topics.pattern)
    kind = f.lower(f.hex(f.substring("key", 1, 1)))
    return bronze.where(
        f.regexp_like(base, f.lit(whole)) & (f.octet_length("key") > HASH_BYTES) & kind.isin(*BLOCK_KINDS)
    ).select(
        chain.alias("chain"),
        feed.alias("feed"),
        f.substring("key", 2, HASH_BYTES).alias("hash"),
        kind.alias("kind"),
        "timestamp",
        "partition",
        "index",
        "key",
        "data",
    )


def batch_times(messages: Any) -> Any:
    """Returns when the first readable Batch message of each block was stored: chain, hash, timestamp."""
    from pyspark.sql import functions as f

    readable = f.udf(is_batch, BOOLEAN, useArrow=False)
    batches = messages.where(f.col("kind") == BATCH).where(readable("key", "data"))
    return batches.groupBy("chain", "hash").agg(f.min("timestamp").alias("timestamp"))


def assembled_blocks(messages: Any) -> Any:
    """Returns one row for each block, complete or not, that has a readable Batch message (which begins a block).

    Columns: chain, hash, timestamp (when the first Batch message was stored), and the fields of `BLOCK_SCHEMA`.
    """
    from pyspark.sql import functions as f

    put_together = f.udf(assemble_rows, BLOCK_SCHEMA, useArrow=False)
    row = f.struct("feed", f.unix_micros("timestamp").alias("stored_us"), "partition", "index", "key", "data")
    blocks = messages.groupBy("chain", "hash").agg(f.collect_list(row).alias("found"))
    return (
        blocks.join(batch_times(messages), ["chain", "hash"])
        .select("chain", "hash", "timestamp", put_together("found").alias("block"))
        .select("chain", "hash", "timestamp", "block.*")
    )


def chain_marks(blocks: Any, starts: Mapping[str, bytes] | None = None) -> Any:
    """Returns the state of each complete block on its chain, with the columns MARKS; see `CanonState`.

    One Spark task processes all blocks of a chain, with about 0.5 KiB of memory for each.
    """
    from pyspark.sql import functions as f

    def find(chain: str, links: Any) -> list[tuple[bytes, str, int | None]]:
        return find_marks(links, (starts or {}).get(chain))

    link = f.struct("hash", "parent", "number", "weight", f.unix_micros("timestamp").alias("stored_us"))
    links = blocks.where("missing IS NULL").groupBy("chain").agg(f.collect_list(link).alias("links"))
    marks = links.select("chain", f.explode(f.udf(find, MARKS_SCHEMA, useArrow=False)("chain", "links")).alias("mark"))
    return marks.select("chain", "mark.*")


def silver_batches(blocks: Any, marks: Any) -> Any:
    """Returns one row for each block in `blocks`, with its state on the chain.

    Columns: chain, hash, number, parent (hash), weight (decimal digits), timestamp (when its first Batch message was
    stored), state (`canonical`, `reorged`, `waiting` or `incomplete`), reorged, fork_number (see `CanonState`), updates
    and deletes (the numbers of keys; null while the block is incomplete), missing (the messages that it lacks).
    """
    from pyspark.sql import functions as f

    is_complete = f.col("missing").isNull()
    counted = blocks.select(
        *("chain", "hash", "number", "parent", "weight", "timestamp"),
        f.when(is_complete, f.size("sets").cast("bigint")).alias("updates"),
        f.when(is_complete, f.size("deletes").cast("bigint")).alias("deletes"),
        "missing",
    )
    return marked(counted, marks)


def marked(batches: Any, marks: Any) -> Any:
    """Returns the rows of silver/batches with the states of `marks`."""
    from pyspark.sql import functions as f

    joined = batches.drop("state", "reorged", "fork_number").join(marks, ["chain", "hash"], "left")
    state = f.coalesce("state", f.lit(INCOMPLETE))
    columns = {"state": state, "reorged": state == REORGED}
    return joined.withColumns(columns).select(*(name.split()[0] for name in BATCHES.split(", ")))


def silver_updates(blocks: Any, batches: Any) -> Any:
    """Returns one row for each key that a complete block sets, and one row for each key that the block deletes.

    Columns: chain, hash, number, canonical and reorged (whether the block has this state), key, value (null for a
    deleted key). A key that a block sets and deletes has two rows.
    """
    from pyspark.sql import functions as f

    nothing = f.lit(None).cast("binary").alias("value")
    sets = blocks.select("chain", "hash", f.explode("sets").alias("u")).select("chain", "hash", "u.key", "u.value")
    deletes = blocks.select("chain", "hash", f.explode("deletes").alias("key"), nothing)
    return flagged(sets.unionByName(deletes), batches)


def flagged(updates: Any, batches: Any) -> Any:
    """Returns the rows of silver/updates with the states of their blocks in `batches`."""
    from pyspark.sql import functions as f

    states = batches.select("chain", "hash", "number", (f.col("state") == CANONICAL).alias("canonical"), "reorged")
    keys = updates.select("chain", "hash", "key", "value")
    return keys.join(states, ["chain", "hash"]).select("chain", "hash", *states.columns[2:], "key", "value")


def find_marks(links: Any, start: bytes | None) -> list[tuple[bytes, str, int | None]]:
    """Returns the hash, the state and the fork number of each complete block of one chain (see `CanonState`)."""
    blocks = [
        BlockLink(bytes(each["hash"]), bytes(each["parent"]), each["number"], int(each["weight"]), each["stored_us"])
        for each in links
    ]
    return [(hash_, mark.state, mark.fork_number) for hash_, mark in mark_chain(blocks, start).items()]


def is_batch(key: Any, data: Any) -> bool:
    return read_batch_hash(bytes(key), bytes(data)) is not None


def assemble_rows(rows: Any) -> tuple[Any, ...] | None:
    """Assembles a block from its messages. Returns the fields of `BLOCK_SCHEMA`; None without a Batch message."""
    block = assemble(
        BlockMessage(
            row["feed"], (row["stored_us"], row["partition"], row["index"]), bytes(row["key"]), bytes(row["data"])
        )
        for row in rows
    )
    if block is None:
        return None
    return (block.number, block.parent, str(block.weight), block.values, block.deletes, block.missing)
