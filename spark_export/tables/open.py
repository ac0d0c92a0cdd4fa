"""Opens the table of an export: chooses the class of its format, which loads the format's library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_export.tables.address import StoreLocation
from spark_export.tables.errors import TableRefused
from spark_export.tables.log import TableLog

FORMATS: Final = ("parquet", "delta", "iceberg")


@dataclass(frozen=True)
class CatalogChoice:
    """The user's choice of a catalog for an Iceberg table; see `spark_export.tables.iceberg.IcebergLog`."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    table: str | None = None


def open_table(
    place: StoreLocation,
    table_format: str,
    options: Mapping[str, str] | None = None,
    catalog: CatalogChoice | None = None,
) -> TableLog:
    """Returns the table of a format at an address; it need not exist. Raises ExportError.

    options: the options of the store; see `spark_export.tables.address`.
    """
    if table_format == "iceberg":
        from spark_export.tables.iceberg import IcebergLog

        if catalog is None:
            return IcebergLog(place, options or {})
        return IcebergLog(
            place, options or {}, catalog=catalog.name, catalog_options=catalog.options, table=catalog.table
        )
    if table_format == "delta":
        from spark_export.tables.delta import DeltaLog

        return DeltaLog(place, options or {})
    if table_format == "parquet":
        from spark_export.tables.parquet_folder import ParquetFolderLog

        return ParquetFolderLog(place, options or {})
    raise TableRefused(f"the format {table_format}: one of {', '.join(FORMATS)}")
