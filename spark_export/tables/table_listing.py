"""Lists the files of an exported plain Parquet table, for other Parquet readers such as DuckDB and Spark.

    import duckdb
    from spark_export import table_files

    duckdb.read_parquet(table_files("s3://bucket/lake"), hive_partitioning=True)
    spark.read.parquet(*table_files("s3a://bucket/lake"))

The list has the files that the table has at the time of the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spark_export.exporter.address import TableAddress
from spark_export.exporter.errors import ExportMismatch
from spark_export.exporter.tables.manifest_log import ManifestLog
from spark_export.store.open import open_store
from spark_export.store.place import StoreLocation


def table_files(address: str | Path | StoreLocation, options: Mapping[str, str] | None = None) -> list[str]:
    """Returns the addresses of all files that a plain Parquet table has now, for any reader of Parquet.

    The files contain each row of the published export runs once. A compaction keeps replaced files for at least the
    time of the option `export compact --keep`. Raises ExportMismatch if there is no table, and StoreError.

    address: the address of the table, a folder or a prefix in a store; the results have the same scheme, such as `s3a`
        for Spark.
    options: the options of the store, see `spark_export.store.options`.
    """
    scheme, colon, _ = str(address).partition("://")
    paths = (row["path"] for row in list_table_files(TableAddress(TableAddress.of(address).place, options or {})))
    return [f"{scheme}://{path.partition('://')[2]}" if colon and "://" in path else path for path in paths]


def list_table_files(address: TableAddress) -> list[dict[str, Any]]:
    """Returns one mapping for each file: its `path`, on a store all fields of `TableFile`. Raises as `table_files`."""
    return list(_in_folder(address) if address.place.is_local else _on_store(address))


def _in_folder(address: TableAddress) -> Iterator[dict[str, Any]]:
    table = (address.place.folder / "messages").resolve()
    if not table.is_dir():
        raise ExportMismatch(f"{address.place} holds no table: {table} is missing")
    if (table / "_delta_log").is_dir() or (table / "metadata").is_dir():
        # Such a folder also has files that the table does not list any more.
        raise ExportMismatch(f"{address.place} holds a Delta or Iceberg table: read it with a reader of that format")
    for path in sorted(table.rglob("*.parquet")):
        yield {"path": str(path)}


def _on_store(address: TableAddress) -> Iterator[dict[str, Any]]:
    store = open_store(address.place, address.options)
    state = ManifestLog(store, now_us=lambda: 0).load()
    if not state.number:
        raise ExportMismatch(f"{store.place} holds no table: it has no manifests")
    for path, file in sorted(state.files.items()):
        yield asdict(file) | {"path": str(store.place / path)}
