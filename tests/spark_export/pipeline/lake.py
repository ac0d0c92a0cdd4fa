"""An export's folder filled by hand, and readers of tables that share no code with the pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_export.exporter.tables.hive_names import hive_folder
from spark_export.exporter.tables.parquet_table import run_folder
from spark_export.exporter.tables.write_files import FILE_SCHEMA

BASE_US = 1_750_000_000_000_000
Headers = list[dict[str, Any]]
Row = tuple[int, int, int, bytes | None, Headers, bytes]
"""Partition, index, seconds since the base time, key, headers and data."""


class Lake:
    """The folder of an export. Each `add_run` adds what one run of the exporter adds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = 0
        (folder / "messages").mkdir(parents=True)

    def add_run(self, streams: Mapping[str, Sequence[Row]], eras: Mapping[str, int] | None = None) -> None:
        self.runs += 1
        for stream, rows in streams.items():
            self.write(self.runs, stream, rows, (eras or {}).get(stream, 0))

    def write(self, run: int, stream: str, rows: Sequence[Row], era: int = 0, name: str = "part-00000") -> None:
        columns: dict[str, list[Any]] = {
            "era": [era] * len(rows),
            "partition": [row[0] for row in rows],
            "index": [row[1] for row in rows],
            "timestamp": [BASE_US + row[2] * 1_000_000 for row in rows],
            "key": [row[3] for row in rows],
            "headers": [row[4] or None for row in rows],
            "data": [row[5] for row in rows],
        }
        place = self.folder / "messages" / run_folder(run) / hive_folder(stream, "2025-06-15") / f"{name}.parquet"
        place.parent.mkdir(parents=True, exist_ok=True)
        arrays = [pa.array(columns[field.name], field.type) for field in FILE_SCHEMA]
        pq.write_table(pa.Table.from_arrays(arrays, schema=FILE_SCHEMA), place)


def plain(stream_rows: Iterable[tuple[int, bytes | None, Headers, bytes]]) -> list[Row]:
    """Messages of partition 0, each a second after the one before: index, key, headers and data."""
    return [(0, index, index, key, headers, data) for index, key, headers, data in stream_rows]


def read_rows(tables: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(tables.resolve() / name).to_pylist()
    return found


def all_rows(tables: Path) -> dict[str, list[str]]:
    """Every row of every table as text, sorted."""
    folders = sorted(path for kind in ("silver", "gold") for path in (tables.resolve() / kind).iterdir())
    return {f"{path.parent.name}/{path.name}": sorted(map(repr, read_rows(path, "."))) for path in folders}
