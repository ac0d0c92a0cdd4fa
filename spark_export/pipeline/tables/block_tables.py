"""Updates the tables silver/blocks, silver/items and gold/block_gaps with new messages of the block node.

A block may consist of several messages. The messages of an incomplete block are saved in the state of the version until
the other messages arrive. A block may be stored with a wrong root hash, which the first message of the next block
corrects. The row of the block is then written again.
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
CORRECTIONS_SCHEMA = pa.schema([("chain", pa.string()), ("number", pa.int64()), ("root", pa.binary())])
Copy: TypeAlias = tuple[str, int, bytes, int, int, int]
"""The identity of a stored block: chain, number, root hash, number of messages, number of items, size in bytes.

The root hash is the one in the messages of the block. A block number may be stored several times with different values.
"""
Number: TypeAlias = tuple[str, int]
"""A chain and a block number."""


@dataclass
class _Open:
    """The messages of an incomplete block, by position in the block.

    Each value is the storage time of a message, in microseconds since 1970, and the data of the message.
    """

    parts: dict[int, tuple[int, bytes]] = field(default_factory=dict)


@dataclass
class _Row:
    """A row of silver/blocks.

    root: the root hash of the block, as its messages give it, or the correction in the next block. stored_us: when the
    last message of the block was stored, in microseconds since 1970. file: the name of the file with the row; None
    until the row is written.
    """

    root: bytes
    stored_us: int
    file: str | None


class BlockTables:
    """The tables of blocks of the block node, in one version of all tables.

    `load` must be called before the first `add`.
    """

    def __init__(self, version: Version) -> None:
        self._version = version
        self._open: dict[Copy, _Open] = defaultdict(_Open)
        self._corrected: dict[Number, bytes] = {}
        self._rows: dict[Number, list[_Row]] = defaultdict(list)
        self._blocks: list[tuple[Any, ...]] = []
        self._items: list[tuple[Any, ...]] = []
        self._relabelled: set[Number] = set()
        self._state: Path | None = None
        self._is_read = False

    def load(self, state: Path | None) -> None:
        """Sets the folder of the previous version. The state in this folder is read later, if it is needed.

        state: the folder; None if there is no previous version.
        """
        self._state = state

    def _read_known(self) -> None:
        """Reads the existing rows of silver/blocks and the state of the previous version.

        `add` calls this method when the first message of a block arrives.
        """
        state, self._is_read = self._state, True
        if state is not None:
            for *copy, part, time_us, data in rows_of(pq.read_table(state / OPEN_PARTS)):
                chain, number, root, parts, items, size_bytes = copy
                self._open[chain, number, root, parts, items, size_bytes].parts[part] = (time_us, data)
            for chain, number, root in rows_of(pq.read_table(state / CORRECTIONS)):
                self._corrected[chain, number] = root
        for path in self._version.files(BLOCKS):
            for chain, number, root, time_us in rows_of(
                pq.ParquetFile(path).read(["chain", "number", "root", "timestamp"])
            ):
                self._rows[chain, number].append(_Row(root, time_us, path.name))

    def add(self, rows: pa.Table) -> pa.Table:
        """Adds new messages. Returns the minutes in which blocks were stored, for the table gold/latency.

        The result has a row for each block that became complete and has an event time. Its columns are stream (the name
        of the chain) and minute (microseconds since 1970). rows: as `take_file` returns them. Messages that belong to
        no block are ignored.
        """
        minutes: list[tuple[str, int]] = []
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
                    minutes += self._take(chain, time_us, data, *decoded)
        return pa.table(
            {"stream": [stream for stream, _ in minutes], "minute": [minute for _, minute in minutes]},
            schema=pa.schema([("stream", pa.string()), ("minute", pa.int64())]),
        )

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
    ) -> list[tuple[str, int]]:
        """Adds one message of a block.

        If the message completes the block and the block has an event time, returns the chain, and the minute in which
        the last message of the block was stored. Otherwise returns an empty list.
        """
        if root_before is not None and (chain, number - 1) not in self._corrected:
            self._corrected[chain, number - 1] = root_before
            for row in self._rows.get((chain, number - 1), ()):
                row.root = root_before
                self._relabelled.add((chain, number - 1))
        label = self._corrected.get((chain, number), root)
        if any(row.root == label for row in self._rows.get((chain, number), ())):
            return []
        copy = (chain, number, root, parts, items, size_bytes)
        known = self._open[copy].parts
        known.setdefault(part, (time_us, data))
        if len(known) < parts:
            return []
        del self._open[copy]
        stored_us = max(each[0] for each in known.values())
        block = decode_block(b"".join(known[at][1] for at in sorted(known)))
        version, event_us, previous, kinds, sizes = block or (None, None, None, None, [])
        pairs = None if kinds is None else sorted(kinds.items())
        self._rows[chain, number].append(_Row(label, stored_us, None))
        self._blocks.append((chain, number, label, items, size_bytes, stored_us, event_us, version, previous, pairs))
        self._items += [(chain, number, *size) for size in sizes]
        if event_us is None:
            return []
        minute = minutes_of(pa.array([stored_us], pa.int64()).cast(TIME))[0].as_py()
        return [(chain, minute)]

    def flush(self) -> None:
        """Writes the rows of the blocks that became complete since the last call."""
        if not self._blocks:
            return
        name = self._version.next_name("part")
        self._version.write(BLOCKS, table_of(SCHEMAS[BLOCKS], sorted(self._blocks, key=_place)), name=name)
        self._version.write(ITEMS, table_of(SCHEMAS[ITEMS], sorted(self._items)), name=name)
        for each in self._blocks:
            for row in self._rows[each[0], each[1]]:
                row.file = row.file or name
        self._blocks, self._items = [], []

    def finish(self) -> None:
        """Writes all pending rows and corrected root hashes, gold/block_gaps and the state for the next run."""
        if not self._is_read and self._state is not None:
            for name in (OPEN_PARTS, CORRECTIONS):
                self._version.write(name, pq.read_table(self._state / name))
            return
        self.flush()
        files: dict[str, set[Number]] = defaultdict(set)
        for place in self._relabelled:
            for row in self._rows.get(place, ()):
                if row.file is not None:
                    files[row.file].add(place)
        for name, places in sorted(files.items()):
            self._relabel(name, places)
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
        corrected = [(*place, root) for place, root in sorted(self._corrected.items())]
        self._version.write(CORRECTIONS, table_of(CORRECTIONS_SCHEMA, corrected))

    def _relabel(self, name: str, places: set[Number]) -> None:
        """Replaces a file of silver/blocks by a file of another name, with the corrected root hashes.

        name: the name of the old file. Its companion in silver/items, which has the same name, is replaced by an equal
        file with the new name. places: the blocks with a corrected root hash.
        """
        path = self._version.folder / BLOCKS / name
        table = pq.ParquetFile(path).read()
        keys = zip(table["chain"].to_pylist(), table["number"].to_pylist(), table["root"].to_pylist(), strict=True)
        roots = [self._corrected[chain, number] if (chain, number) in places else root for chain, number, root in keys]
        table = table.set_column(table.column_names.index("root"), "root", pa.array(roots, pa.binary()))
        items = self._version.folder / ITEMS / name
        new = self._version.next_name("part")
        self._version.write(BLOCKS, table, name=new)
        self._version.write(ITEMS, pq.ParquetFile(items).read(), name=new)
        path.unlink()
        items.unlink()
        for rows in self._rows.values():
            for row in rows:
                row.file = new if row.file == name else row.file


def _place(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return row[:3]
