"""The table of an export filled by hand, and readers of tables that share no code with the pipeline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from spark_export.pipeline.bronze import BronzeTable
from spark_export.pipeline.outputs import load_manifest
from spark_export.tables.address import parse_place
from spark_export.tables.columns import HEADERS, ROWS
from spark_export.tables.files import write_ranges
from spark_export.tables.log import open_table
from spark_export.tables.model import Incarnation, IndexRange
from tests.spark_export.pipeline.makers import Headers

BASE_US = 1_750_000_000_000_000
Row = tuple[int, int, int, bytes | None, Headers, bytes]
"""Partition, index, seconds since the base time, key, headers and data."""


class Lake:
    """The table of an export. Each `add_run` adds what one run of the exporter adds."""

    def __init__(self, folder: Path, table_format: str = "parquet") -> None:
        self.folder = folder
        self.table = BronzeTable(str(folder), table_format)
        self.log = open_table(parse_place(folder), table_format)
        self.log.create(ROWS)

    def add_run(self, streams: Mapping[str, Sequence[Row]], eras: Mapping[str, int] | None = None) -> None:
        """A range of a run has no gap, so that what follows a gap comes in a run of its own."""
        rows: dict[Incarnation, list[Row]] = defaultdict(list)
        for stream, found in streams.items():
            era = (eras or {}).get(stream, 0)
            for row in sorted(found, key=lambda row: row[:2]):
                rows[Incarnation(stream, row[0], era, era)].append(row)
        while rows:
            state = self.log.load()
            ranges = []
            for of, left in rows.items():
                begin, count = left[0][1], 1
                while count < len(left) and left[count][1] == begin + count:
                    count += 1
                end = state.positions[of].end if of in state.positions else 0
                ranges.append(IndexRange(of, begin, begin + count, lost=begin - end))
            plan = self.log.files_plan(state, ROWS)
            batches = {each: [_batch(rows[each.of], each)] for each in ranges}
            self.log.append(plan, write_ranges(ranges, batches.__getitem__, plan))
            rows = {each.of: left for each in ranges if (left := rows[each.of][each.rows :])}


def _batch(rows: Sequence[Row], wanted: IndexRange) -> pa.RecordBatch:
    chosen = [row for row in rows if wanted.begin <= row[1] < wanted.end]
    return pa.record_batch(
        {
            "index": pa.array([row[1] for row in chosen], pa.int64()),
            "timestamp": pa.array([BASE_US + row[2] * 1_000_000 for row in chosen], ROWS.field("timestamp").type),
            "key": pa.array([row[3] for row in chosen], pa.binary()),
            "headers": pa.array([row[4] or None for row in chosen], HEADERS),
            "data": pa.array([row[5] for row in chosen], pa.binary()),
        }
    )


def plain(stream_rows: Iterable[tuple[int, bytes | None, Headers, bytes]]) -> list[Row]:
    """Messages of partition 0, each a second after the one before: index, key, headers and data."""
    return [(0, index, index, key, headers, data) for index, key, headers, data in stream_rows]


def read_table(out: Path, name: str) -> pa.Table:
    """A table at the version that the last published step names, read by `deltalake` alone."""
    manifest = load_manifest(out)
    assert manifest is not None
    table = DeltaTable(str(out / name), version=manifest.versions[name])
    return pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all())


def read_rows(out: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_table(out, name).to_pylist()
    return found


def all_rows(out: Path) -> dict[str, list[str]]:
    """Every row of every table as text, sorted."""
    manifest = load_manifest(out)
    assert manifest is not None
    names = [name for name in manifest.versions if not name.startswith("state/")]
    return {name: sorted(map(_text, read_rows(out, name))) for name in names}


def _text(row: dict[str, Any]) -> str:
    """A row as text, whatever the order of columns and of a map's entries."""
    return repr(
        sorted((name, sorted(map(str, value)) if name == "kinds" and value else value) for name, value in row.items())
    )
