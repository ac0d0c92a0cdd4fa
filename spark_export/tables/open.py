"""Opens the table of an export: chooses the class of its format, which loads the format's library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pyarrow.fs import FileSelector

from spark_export.tables.address import StoreLocation
from spark_export.tables.errors import EarlierVersion, TableRefused
from spark_export.tables.filesystem import open_filesystem, store_errors
from spark_export.tables.log import EARLIER_MARK, TableLog

CATALOG_FILE = "catalog.sqlite"
FORMATS: Final = ("parquet", "delta", "iceberg")
URL_SIGNS: Final = frozenset("?#%")
"""Signs in the path of a folder that deltalake and pyiceberg decode as in a URL: they would write elsewhere or fail."""


@dataclass(frozen=True)
class CatalogChoice:
    """The user's choice of a catalog for an Iceberg table, by its name in pyiceberg's configuration.

    options: properties of the catalog for pyiceberg, such as `uri`. table: NAMESPACE.NAME in the catalog.
    """

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    table: str | None = None


def open_table(
    place: StoreLocation,
    table_format: str | None = None,
    options: Mapping[str, str] | None = None,
    catalog: CatalogChoice | None = None,
) -> TableLog:
    """Returns the table at an address, which need not exist. Raises ExportError.

    table_format: None: that of the existing table, or the usual one for the address. options: those of the store.
    """
    if table_format is None:
        usual = "iceberg" if catalog else "parquet" if place.is_local else "delta"
        table_format = find_format(place, options or {}) or usual
    if table_format in ("delta", "iceberg") and place.is_local and (signs := URL_SIGNS & set(place.path)):
        raise TableRefused(
            f"{place}: libraries of {table_format} take {' '.join(sorted(signs))} in a path for a part of a URL; give "
            "the folder another name, or export with --format parquet"
        )
    if table_format == "iceberg":
        from spark_export.tables.iceberg import IcebergLog

        return IcebergLog(place, options or {}, catalog)
    if table_format == "delta":
        from spark_export.tables.delta import DeltaLog

        return DeltaLog(place, options or {})
    if table_format == "parquet":
        from spark_export.tables.parquet_folder import ParquetFolderLog

        return ParquetFolderLog(place, options or {})
    raise TableRefused(f"the format {table_format}: one of {', '.join(FORMATS)}")


def find_format(place: StoreLocation, options: Mapping[str, str]) -> str | None:
    """Returns the format of the table at an address, or None if there is no table. Raises ExportError, and
    EarlierVersion if only an earlier version can have a table there."""
    filesystem, root = open_filesystem(str(place), options)
    delta, own, iceberg, parquet = "_delta_log", "messages/_delta_log", CATALOG_FILE, "generations"
    with store_errors(str(place)):
        names = (delta, own, iceberg, "_export.json", parquet, EARLIER_MARK)
        found = filesystem.get_file_info([f"{root}/{name}" for name in names])
        there = {each.path.removeprefix(f"{root}/") for each in found if each.type.name != "NotFound"}
        if not place.is_local:
            # A store has no folders, so the listing of one shows whether there is a file below it.
            selectors = {name: FileSelector(f"{root}/{name}", allow_not_found=True) for name in (delta, own)}
            there |= {name for name, each in selectors.items() if filesystem.get_file_info(each)}
    if there & {delta, own}:
        return "delta"
    if iceberg in there or ("_export.json" in there and parquet not in there):
        return "iceberg"
    if EARLIER_MARK in there:
        raise EarlierVersion(place)
    return "parquet" if parquet in there else None
