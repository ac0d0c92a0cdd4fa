"""Updates the tables silver/batches, silver/updates and gold/reorgs with new messages of Cardinal Streams.

A complete block has a row in silver/batches. The keys that the block sets or deletes are rows of the file with the same
name in silver/updates. The messages of incomplete blocks are saved in the state of the version. `finish` computes the
canonical chain, and writes a file again if the state of one of its blocks changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_export.pipeline.assembly import Assembled, BlockMessage, assemble, read_batch_hash
from spark_export.pipeline.canon import CANONICAL, INCOMPLETE, REORGED, BlockLink, CanonState
from spark_export.pipeline.tables.known_blocks import BATCHES, Block, Complete, StoredBlocks
from spark_export.pipeline.tables.message_tables import TIME, replace_table, rows_of, table_of
from spark_export.pipeline.tables.new_messages import sorted_groups
from spark_export.pipeline.topics import Topics
from spark_export.pipeline.versions import STATE, Version

UPDATES, REORGS = "silver/updates", "gold/reorgs"
OPEN_MESSAGES = f"{STATE}/open_messages"
PART_UPDATES = 1_000_000
"""The number of rows of a file of silver/updates after which the next block goes into a new file."""
HASH_BYTES = 32
BATCH = b"\0"

SCHEMAS = {
    BATCHES: pa.schema(
        [
            ("chain", pa.string()),
            ("hash", pa.binary()),
            ("number", pa.int64()),
            ("parent", pa.binary()),
            ("weight", pa.string()),
            ("timestamp", TIME),
            ("state", pa.string()),
            ("reorged", pa.bool_()),
            ("fork_number", pa.int64()),
            ("updates", pa.int64()),
            ("deletes", pa.int64()),
            ("missing", pa.string()),
        ]
    ),
    UPDATES: pa.schema(
        [
            ("chain", pa.string()),
            ("hash", pa.binary()),
            ("number", pa.int64()),
            ("canonical", pa.bool_()),
            ("reorged", pa.bool_()),
            ("key", pa.string()),
            ("value", pa.binary()),
        ]
    ),
    REORGS: pa.schema(
        [
            ("chain", pa.string()),
            ("fork_number", pa.int64()),
            ("depth", pa.int64()),
            ("blocks", pa.int64()),
            ("began", TIME),
            ("ended", TIME),
        ]
    ),
}
OPEN_SCHEMA = pa.schema(
    [
        ("chain", pa.string()),
        ("feed", pa.string()),
        ("block", pa.binary()),
        ("timestamp", TIME),
        ("partition", pa.int32()),
        ("index", pa.int64()),
        ("key", pa.binary()),
        ("data", pa.binary()),
    ]
)
"""The messages of incomplete blocks. `block` is the name of the chain, a zero byte and the block hash."""
CHAINS_REPORTED = 10


class CardinalTables:
    """The tables of Cardinal Streams, in one version of all tables. `load` must be called before the first `add`."""

    def __init__(self, version: Version, topics: Topics, starts: Mapping[str, bytes]) -> None:
        self._version = version
        self._topics = topics
        self._starts = starts
        self._known = StoredBlocks(version, starts)
        self._incomplete: dict[Block, tuple[Assembled, int]] = {}
        self._open = OPEN_SCHEMA.empty_table()
        self._new: list[pa.Table] = []
        self._stale: set[str] = set()

    def load(self, state: Path | None) -> None:
        self._known.load(state)
        for path in self._version.files(BATCHES, "open"):
            for row in rows_of(pq.ParquetFile(path).read()):
                chain, hash_, number, parent, weight, stored_us, *_, missing = row
                block = Assembled(number, parent, int(weight), None, None, missing)
                self._incomplete[chain, hash_] = (block, stored_us)
        if state is not None:
            self._open = pq.read_table(state / OPEN_MESSAGES, schema=OPEN_SCHEMA)

    def add(self, rows: pa.Table) -> None:
        """Adds new messages to memory."""
        place = self._topics.find(rows["stream"][0].as_py()) if rows.num_rows else None
        if place is None:
            return
        chain, feed = place
        kind = pc.binary_slice(rows["key"], 0, 1)
        of_blocks = pc.and_(
            pc.greater(pc.binary_length(rows["key"]), HASH_BYTES),
            pc.is_in(kind, pa.array([bytes([each]) for each in range(5)], pa.binary())),
        )
        rows = rows.filter(pc.fill_null(of_blocks, False))
        prefix = chain.encode() + b"\0"
        hashes = pc.binary_slice(rows["key"], 1, 1 + HASH_BYTES)
        columns = {
            "chain": _repeat(chain, rows.num_rows),
            "feed": _repeat(feed, rows.num_rows),
            "block": pc.binary_join_element_wise(prefix, hashes, b""),
            **{name: rows[name] for name in ("timestamp", "partition", "index", "key", "data")},
        }
        self._new.append(pa.table(columns, schema=OPEN_SCHEMA))

    def flush(self) -> None:
        """Assembles the blocks of all added messages. Writes the complete blocks."""
        new = pa.concat_tables([OPEN_SCHEMA.empty_table(), *self._new])
        self._new = []
        touched = {block: _split(block) for block in new["block"].unique().to_pylist()}
        self._known.find_settled([place for place in touched.values() if place not in self._known.blocks])
        finished = [block for block, place in touched.items() if place in self._known.blocks]
        is_late = pc.is_in(new["block"], pa.array(finished, pa.binary()))
        self._note_copies(new.filter(is_late))
        self._open = pa.concat_tables([self._open, new.filter(pc.invert(is_late))]).combine_chunks()
        with_batch = self._open.filter(pc.equal(pc.binary_slice(self._open["key"], 0, 1), BATCH))["block"].unique()
        ready = [block for block in with_batch.to_pylist() if block in touched]
        done: list[bytes] = []
        found: dict[Block, Assembled] = {}
        rows = 0
        for block, messages, stored_us in self._group(ready):
            place = _split(block)
            assembled = assemble(messages)
            if assembled is None or stored_us is None:
                continue
            if assembled.values is None or assembled.deletes is None:
                self._incomplete[place] = (assembled, stored_us)
                continue
            self._incomplete.pop(place, None)
            done.append(block)
            link = BlockLink(place[1], assembled.parent, assembled.number, assembled.weight, stored_us)
            counts = len(assembled.values), len(assembled.deletes)
            self._known.changed.add(place)
            self._known.blocks[place] = Complete(link, CanonState(CANONICAL), *counts, "")
            found[place] = assembled
            rows += sum(counts)
            if rows >= PART_UPDATES:
                self._write(found)
                found, rows = {}, 0
        self._write(found)
        if done:
            self._open = self._open.filter(pc.invert(pc.is_in(self._open["block"], pa.array(done, pa.binary()))))

    def finish(self) -> None:
        """Computes the canonical chains. Writes files with changed blocks again, gold/reorgs and the state."""
        self.flush()
        changed = self._known.find_changes()
        for name in sorted(self._stale | changed.keys()):
            self._rewrite(name, changed.get(name, {}))
        self._known.finish()
        replace_table(self._version, REORGS, table_of(SCHEMAS[REORGS], self._reorgs()))
        for path in self._version.files(BATCHES, "open"):
            path.unlink()
        if self._incomplete:
            rows = [
                (
                    *(*place, block.number, block.parent, str(block.weight), stored_us),
                    *(INCOMPLETE, False, None, None, None, block.missing),
                )
                for place, (block, stored_us) in sorted(self._incomplete.items())
            ]
            self._version.write(BATCHES, table_of(SCHEMAS[BATCHES], rows), "open")
        self._version.write(OPEN_MESSAGES, self._open)

    def find_notes(self) -> list[str]:
        """Returns, after `finish`, a line for each setting that has had no effect yet, as with a misspelt name."""
        in_memory = {chain for chain, _ in (*self._known.blocks, *self._incomplete)}
        chains = in_memory | {_split(block)[0] for block in self._open["block"].unique().to_pylist()}
        if not chains:
            yet = "no stream of the export that matches has a message of Cardinal Streams yet"
            return [f"--cardinal {self._topics.pattern}: {yet}"]
        notes = []
        for chain, hash_ in sorted(self._starts.items()):
            option = f"--start {chain}={hash_.hex()}" if self._topics.has_group else f"--start {hash_.hex()}"
            if chain not in chains:
                known = ", ".join(sorted(chains)[:CHAINS_REPORTED])
                notes.append(f"{option}: the export has no block of the chain {chain} yet, but of {known}")
            elif chain not in self._known.on_chain:
                notes.append(
                    f"{option}: no complete block of the chain has this hash or this parent yet, so all its blocks wait"
                )
        return notes

    def _group(self, blocks: list[bytes]) -> Any:
        """Yields each block, its messages, and when its first Batch message was stored; None without a readable one."""
        chosen = self._open.filter(pc.is_in(self._open["block"], pa.array(blocks, pa.binary())))
        for (block,), rows in sorted_groups(chosen.sort_by([("block", "ascending")]), ["block"]):
            messages = []
            stored: list[int] = []
            for _, feed, _, time_us, partition, index, key, data in rows_of(rows):
                messages.append(BlockMessage(feed, (time_us, partition, index), key, data))
                if key[:1] == BATCH and read_batch_hash(key, data) is not None:
                    stored.append(time_us)
            yield block, messages, min(stored, default=None)

    def _note_copies(self, late: pa.Table) -> None:
        """Corrects the storage times of complete blocks, as `late` messages can have been stored earlier."""
        for row in rows_of(late.filter(pc.equal(pc.binary_slice(late["key"], 0, 1), BATCH))):
            _, _, block, time_us, _, _, key, data = row
            known = self._known.blocks[_split(block)]
            if time_us < known.link.stored_us and read_batch_hash(key, data) is not None:
                link = known.link
                known.link = BlockLink(link.hash, link.parent, link.number, link.weight, time_us)
                self._stale.add(known.file)
                self._known.changed.add(_split(block))

    def _write(self, found: dict[Block, Assembled]) -> None:
        if not found:
            return
        name = self._version.next_name("part")
        places = sorted(found, key=lambda place: (place[0], found[place].number, place[1]))
        for place in places:
            self._known.blocks[place].file = name
        updates = [
            (*place, found[place].number, True, False, key, value)
            for place in places
            for pairs in (found[place].values or [], ((key, None) for key in found[place].deletes or []))
            for key, value in pairs
        ]
        self._version.write(BATCHES, self._batch_rows(places), name=name)
        self._version.write(UPDATES, table_of(SCHEMAS[UPDATES], updates), name=name)

    def _batch_rows(self, places: list[Block]) -> pa.Table:
        rows = []
        for place in places:
            block = self._known.blocks[place]
            link, mark = block.link, block.mark
            place_rows = (*place, link.number, link.parent, str(link.weight), link.stored_us)
            state = (mark.state, mark.state == REORGED, mark.fork_number)
            rows.append((*place_rows, *state, block.updates, block.deletes, None))
        return table_of(SCHEMAS[BATCHES], rows)

    def _rewrite(self, name: str, marks: dict[Block, CanonState]) -> None:
        """Writes a file of silver/batches and its companion in silver/updates again, with the new states `marks`."""
        self._known.load_file(name)
        path, beside = (self._version.folder / table / name for table in (BATCHES, UPDATES))
        chains, hashes = pq.ParquetFile(path).read(["chain", "hash"]).columns
        places = list(zip(chains.to_pylist(), hashes.to_pylist(), strict=True))
        for place, mark in marks.items():
            self._known.blocks[place].mark = mark
        new = self._version.next_name("part")
        for place in places:
            self._known.blocks[place].file = new
        self._version.write(BATCHES, self._batch_rows(places), name=new)
        updates = pq.ParquetFile(beside).read().combine_chunks()
        keys = pc.binary_join_element_wise(updates["chain"].cast(pa.binary()), updates["hash"], b"\0")
        codes = keys.combine_chunks().dictionary_encode() if updates.num_rows else None
        if codes is not None:
            states = [self._known.blocks[_split(block)].mark.state for block in codes.dictionary.to_pylist()]
            for flag in (CANONICAL, REORGED):
                values = pa.array([state == flag for state in states], pa.bool_()).take(codes.indices)
                updates = updates.set_column(updates.column_names.index(flag), flag, values)
        self._version.write(UPDATES, updates, name=new)
        path.unlink()
        beside.unlink()

    def _reorgs(self) -> list[tuple[Any, ...]]:
        """Returns the rows of gold/reorgs, as `gold.reorgs` defines them."""
        forks: dict[tuple[str, int | None], list[BlockLink]] = defaultdict(list)
        for (chain, _), block in self._known.blocks.items():
            if block.mark.state == REORGED:
                forks[chain, block.mark.fork_number].append(block.link)
        rows = []
        for (chain, fork), links in sorted(
            forks.items(), key=lambda each: (each[0][0], each[0][1] is not None, each[0][1] or 0)
        ):
            depth = None if fork is None else max(link.number for link in links) - fork
            times = [link.stored_us for link in links]
            rows.append((chain, fork, depth, len(links), min(times), max(times)))
        return rows


def _split(block: bytes) -> Block:
    return block[: -HASH_BYTES - 1].decode(), block[-HASH_BYTES:]


def _repeat(text: str, count: int) -> pa.Array:
    return pa.array([text], pa.string()).take(pa.array([0] * count, pa.int32()))
