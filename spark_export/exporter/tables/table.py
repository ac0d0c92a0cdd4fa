"""The interface that all table formats (plain Parquet, Delta, Iceberg) implement, so that a run works with each of
them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from spark_export.exporter.errors import ExportMismatch
from spark_export.exporter.model import FileEntry, Range, RunFile
from spark_export.exporter.runs.task import TaskSettings
from spark_export.exporter.tables.layout import Layout
from spark_export.store.paths import FilePath


class Table(Protocol):
    """The exported table in one export folder. It finds its runs in its own log or folders, not in the ledger."""

    @property
    def with_stream(self) -> bool: ...

    @property
    def generation(self) -> int:
        """The number of the generation (version of the whole table) that readers see."""
        ...

    @property
    def keeps_latest_run(self) -> bool:
        """Whether the latest run's id always stays in the table. If False, other tools can remove it."""
        ...

    def missing(self) -> str | None:
        """Returns a description of the missing link, log or catalog entry of the table, or None if the table exists."""
        ...

    def prepare(self) -> None: ...

    def refusal_of(self, stream: str) -> str | None:
        """Returns why the table cannot store rows of this stream, or None if the table can."""
        ...

    def place_files(self, run_id: int, settings: TaskSettings) -> TaskSettings:
        """Returns the settings for the tasks of a run. A table on a store adds the address for the files."""
        ...

    def find_leftovers(self, run_id: int | None = None, entries: Sequence[FileEntry] = ()) -> list[str]:
        """Returns the names of unpublished files on a store, for `remove`. A table in a folder has none.

        Such files come from failed or repeated tasks, and from abandoned runs and rewrites. The files are listed before
        the table's log is read.

        run_id: a run that was just published with the files `entries`; None for all ended runs, if no run is
            unfinished.
        """
        ...

    def remove(self, names: Sequence[str]) -> int:
        """Removes files by names from `find_leftovers` or `find_expired`. Returns their number."""
        ...

    def arrange(self, run_id: int, entries: Sequence[FileEntry]) -> list[FileEntry]:
        """Moves and syncs the files of a run from `attempts` to `tree`. Returns them with paths relative to `tree`."""
        ...

    def staged_whole(self, run_id: int, entries: Sequence[FileEntry]) -> bool:
        """Returns whether all files that `publish` needs exist with their full size."""
        ...

    def has_run(self, run_id: int) -> bool:
        """Returns whether this run is published, so that readers see its rows."""
        ...

    def latest_run(self) -> int:
        """Returns the highest id of a published run; 0 if no run is published."""
        ...

    def publish(self, run_id: int, entries: Sequence[FileEntry], ranges: Sequence[Range] = ()) -> None:
        """Makes all rows of a run visible to readers atomically. The run must not be published yet.

        ranges: the exported indexes, for the manifest of a table on a store.
        """
        ...

    def sync(self) -> None:
        """Syncs the log or folder that makes runs visible. After a crash, a run can be visible but not synced."""
        ...

    def stage_rewrite(self, generation: int, kept: Sequence[RunFile], new: Sequence[RunFile]) -> list[RunFile]:
        """Moves the new files of a rewrite to their final names, durably; readers do not see them yet.

        Returns all files of the generation, with final paths. The new files are in `attempts` of the rewrite's staging
        folder.
        """
        ...

    def rewrite(self, generation: int, before: Sequence[RunFile], after: Sequence[RunFile], expires_s: float) -> None:
        """Replaces the files `before` by the files `after` for readers, atomically. The call can be repeated.

        Raises TakenOver if another exporter has dropped this rewrite, or has published a later one, and TableChanged if
        the table has other files than `before`. `expires_s` is when replaced files can be removed, in seconds since
        1970.
        """
        ...

    def drop_rewrite(self, generation: int) -> None:
        """Makes sure that a rewrite (compaction or repair) is never published."""
        ...

    def expire_log(self, now_s: float, keep_s: float) -> int:
        """Removes entries or snapshots older than `keep_s` seconds from the table's log. Returns their number.

        Delta has its own setting for the age of entries, and ignores both parameters.
        """
        ...

    def find_expired(self, current: Sequence[RunFile], now_s: float, keep_s: float) -> list[str]:
        """Returns the names of files and versions that were replaced at least `keep_s` seconds ago, for `remove`.

        The files are listed before the table's log is read. No run or rewrite may be unfinished.
        """
        ...

    def discard(self, run_id: int, entries: Sequence[FileEntry]) -> int:
        """Makes sure that a run is never published. Removes its files now or later; returns the number removed now."""
        ...

    def locate(self, file: RunFile) -> FilePath: ...

    def list_files(self) -> set[FilePath]:
        """Returns the paths of all files that a reader of the table reads."""
        ...

    def hides_rows(self) -> bool:
        """Returns whether another program has marked rows as deleted; copied files would bring such rows back."""
        ...


FORMATS = ("parquet", "delta", "iceberg")


def make_table(layout: Layout, table_format: str, table_id: str) -> Table:
    """Returns the table of an export in one of the FORMATS. Raises ExportMismatch, ExtraMissing."""
    if layout.store is not None:
        if table_format == "delta":
            from spark_export.exporter.tables.delta_table import StoreDeltaTable

            return StoreDeltaTable(layout, layout.store, table_id)
        if table_format == "iceberg":
            from spark_export.exporter.tables.iceberg_table import StoreIcebergTable

            return StoreIcebergTable(layout, layout.store, table_id)
        if table_format != "parquet":
            raise ExportMismatch(f"unknown format {table_format!r}; known are {', '.join(FORMATS)}")
        from spark_export.exporter.tables.store_table import StoreParquetTable

        return StoreParquetTable(layout, layout.store, table_id)
    if table_format == "parquet":
        from spark_export.exporter.tables.parquet_table import ParquetTable

        return ParquetTable(layout)
    if table_format == "delta":
        from spark_export.exporter.tables.delta_table import DeltaLogTable

        return DeltaLogTable(layout, table_id)
    if table_format == "iceberg":
        from spark_export.exporter.tables.iceberg_table import IcebergTable

        return IcebergTable(layout, table_id)
    raise ExportMismatch(f"unknown format {table_format!r}; known are {', '.join(FORMATS)}")
