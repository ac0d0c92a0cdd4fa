"""Judges an export's folder on a disk that a power cut left. It needs pyarrow, which reads the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow.dataset as dataset

from spark_export.tables.address import parse_place
from spark_export.tables.parquet_folder import ParquetFolderLog
from tests.power.load import parse
from tests.spark_export.exporter.export_world import COLUMNS, rows_of


def check_lake(
    folder: Path, exported: Sequence[tuple[str, int, int]], confirmed: Mapping[tuple[str, int], tuple[int, int]]
) -> None:
    """Every row once and true, all that was exported there, and positions from which the next run can go on.

    exported: stream, first and next index of each finished run. confirmed: incarnation and number by stream and index.
    """
    table = folder / "messages"
    # Without files pyarrow knows no columns.
    has_rows = any(table.resolve().rglob("*.parquet"))
    rows = rows_of(dataset.dataset(table.resolve(), partitioning="hive").to_table(COLUMNS)) if has_rows else []
    places = [(stream, index) for stream, _, index, _ in rows]
    assert len(places) == len(set(places)), "a message is in the table twice"
    for stream, _, index, data in rows:
        name, incarnation, number = parse(data)
        assert name == stream
        assert confirmed.get((stream, index), (incarnation, number)) == (incarnation, number), (
            f"{stream}/{index} is another message"
        )
    for stream, first, end in exported:
        missing = {(stream, index) for index in range(first, end)} - set(places)
        assert not missing, f"exported, and not in the table: {sorted(missing)[:5]}"
    if has_rows:
        positions = ParquetFolderLog(parse_place(folder), {}).load().positions
        wanted = {(of.stream, position.end - 1) for of, position in positions.items()}
        ends = {stream: max(index for name, index in places if name == stream) for stream, _ in places}
        assert wanted == set(ends.items()), "the table's positions are not those of its rows"
