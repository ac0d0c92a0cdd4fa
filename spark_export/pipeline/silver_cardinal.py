"""Builds the silver tables of Cardinal Streams with Spark: the blocks, and the keys that each block changes.

A publisher can send a block on the normal topics of its chain and on reorg channels, which are topics for one reorg. As
in a consumer, the normal topics and each reorg channel (a feed) are assembled separately. The result does not depend on
the order of the messages. Of several messages with the same key, the one stored first counts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import functions as f

from cardinal_streams.errors import MessageError
from cardinal_streams.limits import ReassemblyLimits
from cardinal_streams.machines.events import Completed
from cardinal_streams.machines.reassembly_machine import Reassembler
from cardinal_streams.message.messages import Batch, decode
from cardinal_streams.payload import CompleteBatch
from cardinal_streams.prefixes import TRACK_ALL
from spark_export.pipeline.canon import CANONICAL, INCOMPLETE, REORGED, BlockLink, mark_chain

CHANNEL = r"-re-[0-9a-f]{64}$"
"""The end of the name of a reorg channel, for Python and Java (see `cardinal_streams.transports.transport`)."""
HASH_BYTES = 32
BLOCK_KINDS = ("00", "01", "02", "03", "04")
"""The kinds of messages that belong to a block, in hex: the first byte of a message's key."""
BATCH = "00"
BLOCK = ["chain", "hash"]
"""The columns that name a block."""
MESSAGES = (
    "chain string, feed string, hash binary, kind string, timestamp timestamp, partition int, index bigint, "
    "key binary, data binary"
)
ASSEMBLED = (
    "number bigint, parent binary, weight string, sets array<struct<key: string, value: binary>>, "
    "deletes array<string>, missing string"
)
MARK = "hash binary, state string, fork_number bigint"
MARKS = f"chain string, {MARK}"
BATCHES = (
    "chain string, hash binary, number bigint, parent binary, weight string, timestamp timestamp, state string, "
    "reorged boolean, fork_number bigint, updates bigint, deletes bigint, missing string"
)
UPDATES = "chain string, hash binary, number bigint, canonical boolean, reorged boolean, key string, value binary"
UNLIMITED = ReassemblyLimits(incomplete_max=1, incomplete_bytes_max=1 << 62, idle_messages_max=1 << 62, finished_max=1)
Assembled = tuple[int, bytes, str, list[tuple[str, bytes]] | None, list[str] | None, str | None]
"""Number, parent, weight, values, deletes, missing messages. The last is None, or else values and deletes are None."""


@dataclass(frozen=True)
class Topics:
    """The streams that are topics of Cardinal Streams. Publishers send the messages of a chain on several topics.

    pattern: matches the whole name of a topic. Its first group is the name of the chain, as in `(evm-[0-9]+)-.*`.
        Without a group, all matching topics belong to one chain, whose name is the pattern.
    """

    pattern: str

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"{self.pattern!r} is no regular expression: {error}") from error

    @property
    def has_group(self) -> bool:
        return re.compile(self.pattern).groups > 0

    def has(self, stream: str) -> bool:
        return re.fullmatch(self.pattern, re.sub(CHANNEL, "", stream)) is not None


def cardinal_messages(bronze: Any, topics: Topics) -> Any:
    """Returns one row for each message on these topics that belongs to a block, with the columns MESSAGES.

    feed: "" for normal topics, or the end of the name of a reorg channel. hash: of the block. kind: see BLOCK_KINDS.
    """
    base = f.regexp_replace("stream", CHANNEL, "")
    whole = f"^(?:{topics.pattern})$"
    chain = f.regexp_extract(base, whole, 1) if topics.has_group else f.lit(topics.pattern)
    kind = f.lower(f.hex(f.substring("key", 1, 1)))
    of_block = f.regexp_like(base, f.lit(whole)) & (f.octet_length("key") > HASH_BYTES) & kind.isin(*BLOCK_KINDS)
    return bronze.where(of_block).select(
        chain.alias("chain"),
        f.regexp_extract("stream", f"({CHANNEL})", 1).alias("feed"),
        f.substring("key", 2, HASH_BYTES).alias("hash"),
        kind.alias("kind"),
        *("timestamp", "partition", "index", "key", "data"),
    )


def batch_times(messages: Any) -> Any:
    """Returns when the first readable Batch message of each block was stored: chain, hash, timestamp."""
    readable = f.udf(is_batch, "boolean", useArrow=False)
    batches = messages.where(f.col("kind") == BATCH).where(readable("key", "data"))
    return batches.groupBy(*BLOCK).agg(f.min("timestamp").alias("timestamp"))


def assembled_blocks(messages: Any) -> Any:
    """Returns one row for each block, complete or not, that has a readable Batch message.

    Columns: chain, hash, timestamp (when the first Batch message was stored), and the columns that ASSEMBLED lists.
    """
    put_together = f.udf(assemble, ASSEMBLED, useArrow=False)("found").alias("block")
    row = f.struct("feed", f.unix_micros("timestamp").alias("stored_us"), "partition", "index", "key", "data")
    blocks = messages.groupBy(*BLOCK).agg(f.collect_list(row).alias("found")).join(batch_times(messages), BLOCK)
    return blocks.select(*BLOCK, "timestamp", put_together).select(*BLOCK, "timestamp", "block.*")


def chain_marks(blocks: Any) -> Any:
    """Returns the state of each complete block on its chain, with the columns MARKS; see `CanonState`.

    One Spark task processes all blocks of a chain, with about 0.5 KiB of memory for each.
    """

    def find(links: Any) -> list[tuple[bytes, str, int | None]]:
        marks = mark_chain(map(block_link, links))
        return [(hash_, mark.state, mark.fork_number) for hash_, mark in marks.items()]

    find_marks = f.udf(find, f"array<struct<{MARK}>>", useArrow=False)
    link = f.struct("hash", "parent", "number", "weight", f.unix_micros("timestamp").alias("stored_us"))
    links = blocks.where("missing IS NULL").groupBy("chain").agg(f.collect_list(link).alias("links"))
    return links.select("chain", f.explode(find_marks("links")).alias("mark")).select("chain", "mark.*")


def silver_batches(blocks: Any, marks: Any) -> Any:
    """Returns one row for each block in `blocks`, with its state on the chain: the columns BATCHES.

    weight: decimal digits. timestamp: when its first Batch message was stored. state: see `canon`. updates, deletes:
    the numbers of keys; null while the block is incomplete. missing: the messages that it lacks.
    """
    is_complete = f.col("missing").isNull()
    counted = blocks.select(
        *(*BLOCK, "number", "parent", "weight", "timestamp"),
        f.when(is_complete, f.size("sets").cast("bigint")).alias("updates"),
        f.when(is_complete, f.size("deletes").cast("bigint")).alias("deletes"),
        "missing",
    )
    return marked(counted, marks)


def marked(batches: Any, marks: Any) -> Any:
    """Returns the rows of silver/batches with the states of `marks`."""
    joined = batches.drop("state", "reorged", "fork_number").join(marks, BLOCK, "left")
    state = f.coalesce("state", f.lit(INCOMPLETE))
    columns = {"state": state, "reorged": state == REORGED}
    return joined.withColumns(columns).select(*(name.split()[0] for name in BATCHES.split(", ")))


def silver_updates(blocks: Any, batches: Any) -> Any:
    """Returns a row for each key that a complete block sets, and for each key that it deletes: the columns UPDATES.

    canonical, reorged: whether the block has this state. value: null for a deleted key.
    """
    nothing = f.lit(None).cast("binary").alias("value")
    sets = blocks.select(*BLOCK, f.explode("sets").alias("u")).select(*BLOCK, "u.key", "u.value")
    deletes = blocks.select(*BLOCK, f.explode("deletes").alias("key"), nothing)
    return flagged(sets.unionByName(deletes), batches)


def flagged(updates: Any, batches: Any) -> Any:
    """Returns the rows of silver/updates with the states of their blocks in `batches`."""
    states = batches.select(*BLOCK, "number", (f.col("state") == CANONICAL).alias("canonical"), "reorged")
    keys = updates.select(*BLOCK, "key", "value")
    return keys.join(states, BLOCK).select(*BLOCK, "number", "canonical", "reorged", "key", "value")


def block_link(row: Any) -> BlockLink:
    return BlockLink(bytes(row["hash"]), bytes(row["parent"]), row["number"], int(row["weight"]), row["stored_us"])


def assemble(messages: Iterable[Any]) -> Assembled | None:
    """Assembles a block from its messages, which all have the same block hash. None without a readable Batch message.

    Of several complete feeds, the normal topics have priority, then the reorg channel with the smallest name.
    """
    feeds: dict[str, list[Any]] = defaultdict(list)
    for row in messages:
        feeds[row["feed"]].append(row)
    opened: Assembled | None = None
    for feed in sorted(feeds):
        found = _assemble_feed(feed, feeds[feed])
        if isinstance(found, CompleteBatch):
            values, deletes = sorted(found.values.items()), sorted(found.deletes)
            return found.number, found.parent, str(found.weight), values, deletes, None
        opened = opened or found
    return opened


def _assemble_feed(feed: str, rows: list[Any]) -> CompleteBatch | Assembled | None:
    machine = Reassembler(TRACK_ALL, UNLIMITED)
    batch: Batch | None = None
    # The Batch message has the smallest key, so it is processed first, and tells which other messages to expect.
    rows.sort(key=lambda row: (bytes(row["key"]), row["stored_us"], row["partition"], row["index"]))
    for offset, row in enumerate(rows):
        try:
            message = decode(bytes(row["key"]), bytes(row["data"]))
        except MessageError:
            continue
        if isinstance(message, Batch):
            batch = batch or message
        for event in machine.receive(message, feed, offset):
            if isinstance(event, Completed):
                return event.batch
    if batch is None:
        return None
    return batch.number, batch.parent, str(batch.weight), None, None, str(machine.why_incomplete(batch.hash))


def is_batch(key: Any, data: Any) -> bool:
    try:
        return isinstance(decode(bytes(key), bytes(data)), Batch)
    except MessageError:
        return False
