"""Brings the silver and gold tables up to date with new rows of bronze: one micro-batch of a streaming query.

A step computes the rows that the new messages touch with the DataFrame functions of `silver…` and `gold`, which also
make the tables of a rebuild. The tables `state/…` have the parts of earlier messages that a step needs: the messages of
incomplete blocks, corrected root hashes, and the spans of the indexes that were taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark.sql import functions as f

from spark_export.pipeline import canon, gold, silver, silver_cardinal
from spark_export.pipeline.outputs import Manifest, Outputs, Touched
from spark_export.pipeline.silver_cardinal import BLOCK, Topics, block_link

MESSAGES, RATES, LATENCY, INDEX_GAPS = "silver/messages", "gold/rates", "gold/latency", "gold/index_gaps"
BLOCKS, ITEMS, BLOCK_GAPS = "silver/blocks", "silver/items", "gold/block_gaps"
BATCHES, UPDATES, REORGS = "silver/batches", "silver/updates", "gold/reorgs"
TAKEN, BLOCK_SPANS = "state/index_spans", "state/block_spans"
OPEN_PARTS, ROOTS, OPEN_MESSAGES = "state/open_parts", "state/corrected_roots", "state/open_messages"

SOURCE, CHAIN = ["stream", "era", "partition"], ["chain"]
SPANS = "first bigint, last bigint, began timestamp, ended timestamp"
TAKEN_SCHEMA, BLOCK_SPANS_SCHEMA = f"stream string, era int, partition int, {SPANS}", f"chain string, {SPANS}"
MINUTE_US = 60_000_000
CHAINS_REPORTED = 10


@dataclass(frozen=True)
class Settings:
    """The settings that decide what is in the tables of a pipeline.

    topics: the streams that contain Cardinal Streams; None if no tables of Cardinal Streams are to be built.
    starts: by the name of a chain, the hash of a block on the canonical chain, if it is known (see `canon`).
    """

    topics: Topics | None = None
    starts: Mapping[str, bytes] = field(default_factory=dict)

    def named(self) -> dict[str, str | None]:
        """Returns the settings by the names of the command's options."""
        return {
            "cardinal": None if self.topics is None else self.topics.pattern,
            "start": " ".join(f"{chain}={hash_.hex()}" for chain, hash_ in sorted(self.starts.items())) or None,
        }

    def notes(self, state: Manifest) -> tuple[str, ...]:
        """Returns a line for each setting that has had no effect yet, as with a misspelt name."""
        if self.topics is None:
            return ()
        if not state.chains:
            yet = "no stream of the export that matches has a message of Cardinal Streams yet"
            return (f"--cardinal {self.topics.pattern}: {yet}",)
        notes, known = [], ", ".join(sorted(state.chains)[:CHAINS_REPORTED])
        for chain, hash_ in sorted(self.starts.items()):
            yet = f"the export has no block of the chain {chain} yet, but of {known}"
            if chain in state.chains:
                yet = "no complete block of the chain has this hash or this parent yet, so all its blocks wait"
            if chain not in state.rooted:
                notes.append(f"--start {chain + '=' if self.topics.has_group else ''}{hash_.hex()}: {yet}")
        return tuple(notes)


@dataclass
class _Chain:
    """The blocks of a chain that a step knows, with their states before the step, and the blocks that it changed."""

    links: dict[bytes, canon.BlockLink] = field(default_factory=dict)
    known: dict[bytes, canon.CanonState] = field(default_factory=dict)
    changed: set[bytes] = field(default_factory=set)


class Step:
    """One step of a pipeline. state: the state after the last step; for a rebuild, only the export and the settings."""

    def __init__(self, spark: Any, out: Path, state: Manifest, settings: Settings, *, anew: bool) -> None:
        self._spark = spark
        self._state = state
        self._settings = settings
        self._anew = anew
        self._tables = Outputs(spark, out, None if anew else state)

    def take(self, rows: Any) -> tuple[Manifest, int]:
        """Adds rows of bronze to all tables, and publishes these. Returns the new state, and the number of new rows."""
        # Rows that an earlier step has taken change nothing.
        taken = self._tables.read(TAKEN, TAKEN_SCHEMA)
        ends = f.broadcast(taken.groupBy(*SOURCE).agg((f.max("last") + 1).alias("end")))
        fresh = rows.join(ends, SOURCE, "left").where(f.col("index") >= f.coalesce("end", f.lit(0))).drop("end")
        with _kept(fresh) as new:
            minute = f.unix_micros("timestamp") - f.pmod(f.unix_micros("timestamp"), f.lit(MINUTE_US))
            # A rebuild touches every minute.
            place = [f.col("stream"), f.lit(0) if self._anew else minute]
            found = new.groupBy(place[0], place[1].alias("minute")).count().collect()
            if not found and not self._anew:
                return self._state, 0
            streams, minutes = {row["stream"] for row in found}, {row["minute"] for row in found}
            self._tables.append(MESSAGES, silver.silver_messages(new))
            spans = gold.spans(taken.unionByName(gold.points(new, SOURCE, "index")), SOURCE)
            self._tables.replace(TAKEN, spans)
            self._tables.replace(INDEX_GAPS, gold.gaps(self._tables.read(TAKEN, TAKEN_SCHEMA), SOURCE))
            if self._anew or any(stream.startswith(silver.STREAM_PREFIX) for stream in streams):
                minutes |= self._take_blocks(silver.block_parts(new))
            topics = self._settings.topics
            if topics is not None and (self._anew or any(map(topics.has, streams))):
                self._take_batches(silver_cardinal.cardinal_messages(new, topics))
            self._summarise(None if self._anew else minutes)
            return self._tables.publish(self._state), sum(row["count"] for row in found)

    def _take_blocks(self, new_parts: Any) -> set[int]:
        """Updates the tables of blocks. Returns the minutes whose latencies have changed."""
        tables = self._tables
        before = tables.read(OPEN_PARTS, silver.PARTS)
        with _kept(new_parts) as new:
            corrected = new.where("root_before IS NOT NULL")
            numbers = new.select("chain", "number").union(corrected.select("chain", f.col("number") - 1))
            touched = Touched.of("number", _numbers(numbers.distinct().collect()))
            roots = silver.corrected_roots(new, tables.read(ROOTS, silver.ROOTS))
            known = tables.read(BLOCKS, silver.BLOCKS, touched)
            parts = before.unionByName(new)
            with _kept(silver.silver_blocks(parts.where(touched.condition()), known, roots)) as blocks:
                times = [each.select(*CHAIN, "number", "root", "timestamp") for each in (known, blocks)]
                changed = times[0].exceptAll(times[1]).unionByName(times[1].exceptAll(times[0]))
                moved = [] if self._anew else changed.select(f.unix_micros("timestamp").alias("us")).collect()
                tables.replace(BLOCKS, blocks, touched)
                tables.replace(ITEMS, silver.silver_items(blocks), touched)
                spans = tables.read(BLOCK_SPANS, BLOCK_SPANS_SCHEMA).unionByName(gold.points(blocks, CHAIN, "number"))
                tables.replace(BLOCK_SPANS, gold.spans(spans, CHAIN))
                tables.replace(BLOCK_GAPS, gold.gaps(tables.read(BLOCK_SPANS, BLOCK_SPANS_SCHEMA), CHAIN))
                tables.replace(OPEN_PARTS, silver.open_parts(parts, blocks, roots))
                tables.replace(ROOTS, roots)
        return {row["us"] - row["us"] % MINUTE_US for row in moved}

    def _take_batches(self, messages: Any) -> None:
        """Updates the tables of Cardinal Streams."""
        tables = self._tables
        stored = tables.read(BATCHES, silver_cardinal.BATCHES)
        waiting = tables.read(OPEN_MESSAGES, silver_cardinal.MESSAGES)
        with _kept(messages) as new, _kept(new.select(*BLOCK).distinct()) as hashes:
            touched = stored.join(hashes, BLOCK, "left_semi")
            with _kept(touched.select(*BLOCK, "number", "timestamp", "missing")) as before:
                done = before.where("missing IS NULL").select(*BLOCK, "number", f.col("timestamp").alias("known"))
                work = waiting.join(hashes, BLOCK, "left_semi").unionByName(new).join(done, BLOCK, "left_anti")
                with _kept(silver_cardinal.assembled_blocks(work)) as blocks:
                    # A copy of the Batch message of a complete block can have been stored earlier.
                    times = silver_cardinal.batch_times(new).join(done, BLOCK).where("timestamp < known").drop("known")
                    self._replace_batches(stored, before, blocks, times, hashes)
                    finished = blocks.where("missing IS NULL")
                    rest = waiting.join(hashes, BLOCK, "left_anti").unionByName(work.join(finished, BLOCK, "left_anti"))
                    tables.replace(OPEN_MESSAGES, rest)

    def _replace_batches(self, stored: Any, before: Any, blocks: Any, times: Any, hashes: Any) -> None:
        tables, stored_us = self._tables, f.unix_micros("timestamp").alias("stored_us")
        found = blocks.select(*BLOCK, "parent", "number", "weight", stored_us, "missing").collect()
        moved = times.select(*BLOCK, "number", stored_us).collect()
        numbers = _numbers([*found, *moved, *before.where("missing IS NOT NULL").collect()])
        names = {row["chain"] for row in hashes.select("chain").distinct().collect()}
        marks, reorgs_change = self._mark(stored, found, moved, names)
        for row in marks:
            numbers[row[0]].add(row[4])
        touched = Touched.of("number", numbers)
        new_marks = self._spark.createDataFrame([row[:4] for row in marks], silver_cardinal.MARKS)
        kept = tables.read(BATCHES, silver_cardinal.BATCHES, touched).join(blocks, BLOCK, "left_anti")
        earlier = times.select(*BLOCK, f.col("timestamp").alias("earlier"))
        kept = kept.join(earlier, BLOCK, "left").withColumn("timestamp", f.coalesce("earlier", "timestamp"))
        old_marks = kept.where("missing IS NULL").select(*new_marks.columns).join(new_marks, BLOCK, "left_anti")
        kept_rows = silver_cardinal.marked(kept, old_marks.unionByName(new_marks))
        with _kept(kept_rows.unionByName(silver_cardinal.silver_batches(blocks, new_marks))) as batches:
            updates = silver_cardinal.flagged(tables.read(UPDATES, silver_cardinal.UPDATES, touched), batches)
            updates = updates.unionByName(silver_cardinal.silver_updates(blocks, batches))
            tables.replace(BATCHES, batches, touched)
            tables.replace(UPDATES, updates, touched)
        if self._anew or reorgs_change:
            tables.replace(REORGS, gold.reorgs(tables.read(BATCHES, silver_cardinal.BATCHES)))

    def _mark(self, stored: Any, found: Any, moved: Any, names: set[str]) -> tuple[list[tuple[Any, ...]], bool]:
        """Finds the canonical chains. Returns the rows of MARKS that are new, each with the number of its block, and
        whether a reorged block is among the changed blocks."""
        changes: dict[str, _Chain] = defaultdict(_Chain)
        for row in found:
            if row["missing"] is None:
                chain = changes[row["chain"]]
                chain.links[bytes(row["hash"])] = block_link(row)
                chain.changed.add(bytes(row["hash"]))
        for row in moved:
            changes[row["chain"]].changed.add(bytes(row["hash"]))
        times = {(row["chain"], bytes(row["hash"])): row["stored_us"] for row in moved}
        rows, reorgs_change = list[tuple[Any, ...]](), False
        chains, rooted = {**dict.fromkeys(names), **self._state.chains}, set(self._state.rooted)
        for name, chain in changes.items():
            place, marks = self._state.chains.get(name), None
            if place is not None:
                self._load(stored, name, place, chain, times)
                settled = bytes.fromhex(place[1])
                marks = canon.mark_descendants(chain.links.values(), chain.known, chain.changed, settled)
            if marks is None:
                # There is no settled block, or the states depend on the whole chain.
                self._load(stored, name, None, chain, times)
                marks = canon.mark_chain(chain.links.values(), self._settings.starts.get(name))
            block = canon.find_settled(chain.links.values(), marks)
            chains[name] = None if block is None else [block.number, block.hash.hex()]
            is_rooted = any(mark.state == canon.CANONICAL for mark in marks.values())
            rooted = rooted | {name} if is_rooted else rooted - {name}
            for hash_, mark in marks.items():
                known = chain.known.get(hash_)
                if known != mark:
                    rows.append((name, hash_, mark.state, mark.fork_number, chain.links[hash_].number))
                if (known != mark or (name, hash_) in times) and canon.REORGED in (mark.state, known and known.state):
                    reorgs_change = True
        self._state = replace(self._state, chains=chains, rooted=sorted(rooted))
        return rows, reorgs_change

    def _load(self, stored: Any, name: str, place: Any, chain: _Chain, times: Mapping[Any, int]) -> None:
        """Adds the complete blocks in silver/batches to a chain. place: the chain's settled block, below which only
        reorged blocks are needed; None: all blocks are needed."""
        rows = stored.where((f.col("chain") == name) & f.col("missing").isNull())
        if place is not None:
            rows = rows.where(f.col("reorged") | (f.col("number") >= place[0]))
        columns = (*BLOCK, "parent", "number", "weight", f.unix_micros("timestamp").alias("stored_us"))
        for row in rows.select(*columns, "state", "fork_number").toLocalIterator():
            link, hash_ = block_link(row), bytes(row["hash"])
            chain.links[hash_] = replace(link, stored_us=times.get((name, hash_), link.stored_us))
            chain.known[hash_] = canon.CanonState(row["state"], row["fork_number"])

    def _summarise(self, minutes: set[int] | None) -> None:
        """Computes the rows of gold/rates and gold/latency for these minutes; None: for all minutes."""
        tables = self._tables
        touched = None if minutes is None else Touched.of("minute", {None: minutes}, MINUTE_US)
        times = touched and Touched("timestamp", [(None, a, b + MINUTE_US - 1) for _, a, b in touched.ranges])
        messages = tables.read(MESSAGES, "", times)
        tables.replace(RATES, gold.rates(messages), touched)
        blocks = tables.read(BLOCKS, "", times)
        tables.replace(LATENCY, gold.latency(gold.events(messages, blocks)), touched)


def _numbers(rows: Iterable[Any]) -> dict[str | None, set[int]]:
    found: dict[str | None, set[int]] = defaultdict(set)
    for row in rows:
        found[row["chain"]].add(row["number"])
    return found


@contextmanager
def _kept(frame: Any) -> Iterator[Any]:
    """Keeps the rows of a frame that several queries of a step use, so that Spark computes them once."""
    frame.persist()
    try:
        yield frame
    finally:
        frame.unpersist()
