"""Updates the tables silver/blocks, silver/items and gold/block_gaps with new messages of the block node.

A block can consist of several messages. The messages of an incomplete block are saved in the state of the version until
the other messages arrive. A block can be stored with a wrong root hash, which the first message of the next block
corrects. The row of the block is then written again.

A block can be stored several times. Copies with the same root hash are one row. Its time is that of the copy whose last
message was stored first. If several messages correct the same root hash, the one that was stored first counts. So the
rows do not depend on the order in which messages arrive.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from spark_export.pipeline.block_rows import STREAM_PREFIX, decode_block, decode_part
from spark_export.pipeline.tables.intervals import Intervals, Span
from spark_export.pipeline.tables.message_tables import TIME, minutes_of, replace_table, rows_of, table_of
from spark_export.pipeline.versions import STATE, Version

BLOCKS, ITEMS, BLOCK_GAPS = "silver/blocks", "silver/items", "gold/block_gaps"
OPEN_PARTS, CORRECTIONS = f"{STATE}/open_parts", f"{STATE}/corrected_roots"

SCHEMAS = {
    BLOCKS: pa.schema(
        [
            ("chain", pa.string()),
            ("number", pa.int64()),
            ("root", pa.binary()),
            ("items", pa.int32()),
            ("size_bytes", pa.int64()),
            ("timestamp", TIME),
            ("event_time", TIME),
            ("hapi_version", pa.string()),
            ("previous_root", pa.binary()),
            ("kinds", pa.map_(pa.string(), pa.int32())),
        ]
    ),
    ITEMS: pa.schema(
        [
            ("chain", pa.string()),
            ("number", pa.int64()),
            ("position", pa.int32()),
            ("kind", pa.string()),
            ("size_bytes", pa.int32()),
        ]
    ),
    BLOCK_GAPS: pa.schema(
        [
            ("chain", pa.string()),
            ("first", pa.int64()),
            ("last", pa.int64()),
            ("missing", pa.int64()),
            ("after", TIME),
            ("before", TIME),
        ]
    ),
}
PARTS_SCHEMA = pa.schema(
    [
        ("chain", pa.string()),
        ("number", pa.int64()),
        ("root", pa.binary()),
        ("parts", pa.int32()),
        ("items", pa.int32()),
        ("size_bytes", pa.int64()),
        ("part", pa.int32()),
        ("timestamp", TIME),
        ("data", pa.binary()),
    ]
)
CORRECTIONS_SCHEMA = pa.schema(
    [("chain", pa.string()), ("number", pa.int64()), ("timestamp", TIME), ("root", pa.binary())]
)
Copy: TypeAlias = tuple[str, int, bytes, int, int, int]
"""The identity of a stored block: chain, number, own root hash, number of messages, number of items, size in bytes."""
Number: TypeAlias = tuple[str, int]


@dataclass
class _Open:
    """The storage time (microseconds since 1970) and data of each message of an incomplete block, by position."""

    parts: dict[int, tuple[int, bytes]] = field(default_factory=dict)


@dataclass(eq=False)
class _Row:
    """A row of silver/blocks.

    root: the root hash of the block, from its own messages, or from the next block if that block corrects it.
    contents: the other columns of silver/blocks, and the block items; None after the row is written.
    file, written_root: the name of the file with the row, and the root hash in it; None before the row is written.
    """

    root: bytes
    stored_us: int
    file: str | None = None
    written_root: bytes | None = None
    contents: tuple[tuple[Any, ...], list[Any]] | None = None


class BlockTables:
    """The tables of blocks of the block node, in one version of all tables. `load` comes before the first `add`."""

    def __init__(self, version: Version) -> None:
        self._version = version
        self._open: dict[Copy, _Open] = defaultdict(_Open)
        self._corrected: dict[Number, tuple[int, bytes]] = {}
        self._rows: dict[Number, list[_Row]] = defaultdict(list)
        self._new: list[Number] = []
        self._stale: set[str] = set()
        self._state: Path | None = None
        self._is_read = False

    def load(self, state: Path | None) -> None:
        self._state = state

    def _read_known(self) -> None:
        """Reads silver/blocks and the previous state, when the first message of a block arrives."""
        state, self._is_read = self._state, True
        if state is not None:
            for *copy, part, time_us, data in rows_of(pq.read_table(state / OPEN_PARTS)):
                chain, number, root, parts, items, size_bytes = copy
                self._open[chain, number, root, parts, items, size_bytes].parts[part] = (time_us, data)
            for chain, number, time_us, root in rows_of(pq.read_table(state / CORRECTIONS)):
                self._corrected[chain, number] = (time_us, root)
        for path in self._version.files(BLOCKS):
            for chain, number, root, time_us in rows_of(
                pq.ParquetFile(path).read(["chain", "number", "root", "timestamp"])
            ):
                self._rows[chain, number].append(_Row(root, time_us, path.name, root))

    def add(self, rows: pa.Table) -> pa.Table:
        """Adds new messages. Returns the minutes for which the rows of gold/latency must be computed again."""
        times_us: set[tuple[str, int]] = set()
        if rows.num_rows and rows["stream"][0].as_py().startswith(STREAM_PREFIX):
            if not self._is_read:
                self._read_known()
            chain = rows["stream"][0].as_py().removeprefix(STREAM_PREFIX)
            times = rows["timestamp"].cast(pa.int64()).to_pylist()
            for headers, time_us, data in zip(
                rows["headers"].to_pylist(), times, rows["data"].to_pylist(), strict=True
            ):
                decoded = decode_part(headers)
                if decoded is not None:
                    changed = self._take(chain, time_us, data, *decoded)
                    times_us |= {(STREAM_PREFIX + chain, each) for each in changed}
        minutes = minutes_of(pa.array([each for _, each in times_us], pa.int64()).cast(TIME))
        return pa.table({"stream": pa.array([stream for stream, _ in times_us], pa.string()), "minute": minutes})

    def _take(
        self,
        chain: str,
        time_us: int,
        data: bytes,
        number: int,
        part: int,
        parts: int,
        items: int,
        size_bytes: int,
        root: bytes,
        root_before: bytes | None,
    ) -> set[int]:
        """Adds one message of a block. Returns the old and new storage times of the changed rows."""
        changed: set[int] = set()
        before = (chain, number - 1)
        if root_before is not None and (time_us, root_before) < self._corrected.get(before, (time_us + 1, b"")):
            self._corrected[before] = (time_us, root_before)
            changed |= self._merge(before, root_before)
        place = (chain, number)
        label = self._label(place, root)
        copy = (chain, number, root, parts, items, size_bytes)
        row = next((row for row in self._rows.get(place, ()) if row.root == label), None)
        if row is not None:
            return changed | (self._set_earlier(row, time_us) if part == parts - 1 else set())
        known = self._open[copy].parts
        if part not in known or time_us < known[part][0]:
            known[part] = (time_us, data)
        if len(known) < parts:
            return changed
        block = decode_block(b"".join(known[at][1] for at in sorted(known)))
        version, event_us, previous, kinds, sizes = block or (None, None, None, None, [])
        pairs = None if kinds is None else sorted(kinds.items())
        made = _Row(label, known[parts - 1][0])
        made.contents = ((items, size_bytes, event_us, version, previous, pairs), sizes)
        self._rows[place].append(made)
        self._new.append(place)
        self._drop_open(place, made)
        return changed | {made.stored_us}

    def _label(self, place: Number, root: bytes) -> bytes:
        return self._corrected[place][1] if place in self._corrected else root

    def _merge(self, place: Number, root: bytes) -> set[int]:
        """Gives all rows of a block number the corrected root hash, and keeps one of them, since the others are copies.

        Returns the storage times of the changed rows.
        """
        rows = self._rows.get(place, [])
        if not rows:
            return set()
        if [row.root for row in rows] == [root]:
            return self._drop_open(place, rows[0])
        changed = {row.stored_us for row in rows}
        self._stale |= {row.file for row in rows if row.file is not None}
        kept = min(rows, key=lambda row: row.stored_us)
        kept.root = root
        rows[:] = [kept]
        return changed | self._drop_open(place, kept)

    def _drop_open(self, place: Number, row: _Row) -> set[int]:
        """Forgets incomplete copies of a block that has a row; the row gets the earliest time. Returns the changes."""
        changed: set[int] = set()
        for copy in [each for each in self._open if each[:2] == place and self._label(place, each[2]) == row.root]:
            last = self._open.pop(copy).parts.get(copy[3] - 1)
            if last is not None:
                changed |= self._set_earlier(row, last[0])
        return changed

    def _set_earlier(self, row: _Row, time_us: int) -> set[int]:
        """Sets the storage time of a row to an earlier time. If so, returns the old and the new time."""
        if time_us >= row.stored_us:
            return set()
        if row.file is not None:
            self._stale.add(row.file)
        changed = {row.stored_us, time_us}
        row.stored_us = time_us
        return changed

    def flush(self) -> None:
        """Writes the rows of the blocks that became complete since the last call."""
        places = sorted(set(self._new))
        self._new = []
        new = [(place, row) for place in places for row in self._rows[place] if row.contents is not None]
        if not new:
            return
        name = self._version.next_name("part")
        blocks, items = [], []
        for place, row in new:
            assert row.contents is not None
            (count, size_bytes, *others), sizes = row.contents
            blocks.append((*place, row.root, count, size_bytes, row.stored_us, *others))
            items += [(*place, *size) for size in sizes]
            row.file, row.written_root, row.contents = name, row.root, None
        self._version.write(BLOCKS, table_of(SCHEMAS[BLOCKS], sorted(blocks, key=lambda row: row[:3])), name=name)
        self._version.write(ITEMS, table_of(SCHEMAS[ITEMS], sorted(items)), name=name)

    def finish(self) -> None:
        """Writes all pending rows and corrected root hashes, gold/block_gaps and the state for the next run."""
        if not self._is_read and self._state is not None:
            for name in (OPEN_PARTS, CORRECTIONS):
                self._version.write(name, pq.read_table(self._state / name))
            return
        self.flush()
        for name in sorted(self._stale):
            self._rewrite(name)
        intervals: dict[str, Intervals] = defaultdict(Intervals)
        for (chain, number), rows in sorted(self._rows.items()):
            if rows:
                first_us = min(row.stored_us for row in rows)
                intervals[chain].add(Span(number, number, first_us, first_us))
        gaps = [
            (chain, gap.first, gap.last, gap.last - gap.first + 1, gap.first_us, gap.last_us)
            for chain, found in sorted(intervals.items())
            for gap in found.gaps()
        ]
        replace_table(self._version, BLOCK_GAPS, table_of(SCHEMAS[BLOCK_GAPS], gaps))
        parts = [
            (*copy, part, time_us, data)
            for copy, found in sorted(self._open.items())
            for part, (time_us, data) in sorted(found.parts.items())
        ]
        self._version.write(OPEN_PARTS, table_of(PARTS_SCHEMA, parts))
        corrected = [(*place, *correction) for place, correction in sorted(self._corrected.items())]
        self._version.write(CORRECTIONS, table_of(CORRECTIONS_SCHEMA, corrected))

    def _rewrite(self, name: str) -> None:
        """Replaces a file of silver/blocks and its companion in silver/items, with present root hashes and times."""
        path, items_path = (self._version.folder / table / name for table in (BLOCKS, ITEMS))
        table, items = pq.ParquetFile(path).read(), pq.ParquetFile(items_path).read()
        places = list(zip(table["chain"].to_pylist(), table["number"].to_pylist(), strict=True))
        written = table["root"].to_pylist()
        known = {
            (place, row.written_root): row for place in places for row in self._rows.get(place, ()) if row.file == name
        }
        found = [known.get(key) for key in zip(places, written, strict=True)]
        kept = [row for row in found if row is not None]
        table = table.filter(pa.array([row is not None for row in found]))
        for column, values in (
            ("root", pa.array([row.root for row in kept], pa.binary())),
            ("timestamp", pa.array([row.stored_us for row in kept], pa.int64()).cast(TIME)),
        ):
            table = table.set_column(table.column_names.index(column), column, values)
        if len(kept) < len(found):
            # Items do not say to which row of their number they belong. So a number that has lost all its rows loses
            # all items, and a number that has lost some of its rows keeps each different item once.
            left = {place for place, row in zip(places, found, strict=True) if row is not None}
            removed = {place for place, row in zip(places, found, strict=True) if row is None}
            seen: set[tuple[Any, ...]] = set()
            rows = []
            for each in rows_of(items):
                if each[:2] in removed and (each[:2] not in left or each in seen):
                    continue
                seen.add(each)
                rows.append(each)
            items = table_of(SCHEMAS[ITEMS], rows)
        new = self._version.next_name("part")
        self._version.write(BLOCKS, table, name=new)
        self._version.write(ITEMS, items, name=new)
        path.unlink()
        items_path.unlink()
        for row in kept:
            row.file, row.written_root = new, row.root
