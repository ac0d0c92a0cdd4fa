"""Reads an export of any format as a user of that format would: with pyarrow, deltalake or pyiceberg."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark_export.exporter.export_world import World, rows_of

LIBRARIES = {"parquet": "pyarrow", "delta": "deltalake", "iceberg": "pyiceberg"}
COLUMNS = ["stream", "partition", "index", "data"]


def read_delta(folder: Path) -> Any:
    return pytest.importorskip("deltalake").DeltaTable(str(folder / "messages")).to_pyarrow_table(columns=COLUMNS)


def read_iceberg(folder: Path) -> Any:
    catalogs = pytest.importorskip("pyiceberg.catalog.sql")
    catalog = catalogs.SqlCatalog(
        "stream-node", uri=f"sqlite:///{folder / 'catalog.sqlite'}", warehouse=f"file://{folder}"
    )
    try:
        return catalog.load_table("export.messages").scan(selected_fields=tuple(COLUMNS)).to_arrow()
    finally:
        catalog.close()


def rows_in(world: World) -> list[tuple[str, int, int, bytes]]:
    """Stream, partition, index and data of every row in the table, sorted."""
    if world.settings.format == "parquet":
        return rows_of(world.folder / "messages")
    read = {"delta": read_delta, "iceberg": read_iceberg}[world.settings.format]
    table = read(world.folder).select(COLUMNS)
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))
