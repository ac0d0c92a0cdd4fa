"""The interface that all table formats (plain Parquet, Delta, Iceberg) implement, so that a run works with each
of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from spark_export.exporter.errors import ExportMismatch
from spark_export.exporter.model import FileEntry, Range, RunFile
from spark_export.exporter.runs.task import TaskSettings
from spark_export.exporter.tables.layout import Layout
from spark_export.store.paths import FilePath


class Table(Protocol):
    """The exported table in one export folder.

    The table finds the runs that it contains in its own log or folders. It does not use the ledger, the exporter's
    record of runs.
    """

    @property
    def with_stream(self) -> bool:
        """Whether the table's files have the column `stream`."""
        ...

    @property
    def generation(self) -> int:
        """The number of the generation (version of the whole table) that readers see.

        Each compaction or repair makes a new generation.
        """
        ...

    @property
    def keeps_latest_run(self) -> bool:
        """Whether the id of the latest run always stays in the table.

        If False, other tools can remove it, and `latest_run` then returns a smaller id.
        """
        ...

    def missing(self) -> str | None:
        """Returns a description of the missing link, log or catalog entry of the table, or None if the table exists."""
        ...

    def prepare(self) -> None:
        """Creates the table if it does not exist."""
        ...

    def refusal_of(self, stream: str) -> str | None:
        """Returns why the table cannot store rows of this stream, or None if the table can."""
        ...

    def place_files(self, run_id: int, settings: TaskSettings) -> TaskSettings:
        """Returns the settings for the tasks of a run. A table on a store adds the address for the files.

        Without an address, tasks write their files into the staging folder.
        """
        ...

    def find_leftovers(self, run_id: int | None = None, entries: Sequence[FileEntry] = ()) -> list[str]:
        """Returns the names of unpublished files on a store, for `remove`. A table in a folder has none.

        Such files come from failed or repeated tasks, and from abandoned runs, compactions and repairs. The files are
        listed before the table's log is read.

        run_id: a run that was just published with the files `entries`; only files of this run are returned. None for
            all ended runs; the caller ensures that no run is unfinished.
        """
        ...

    def remove(self, names: Sequence[str]) -> int:
        """Removes files, whose names `find_leftovers` or `find_expired` has returned. Returns their number."""
        ...

    def arrange(self, run_id: int, entries: Sequence[FileEntry]) -> list[FileEntry]:
        """Moves the files of a run within the staging folder, from `attempts` to `tree`, and syncs their folders.

        Tasks wrote the files into `attempts`; `tree` has the structure that the table needs. Returns the entries with
        new paths, relative to `tree`.
        """
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

        ranges: the indexes of the streams' messages that the run has exported. A table on a store lists them in its
        manifest; other tables ignore them.
        """
        ...

    def sync(self) -> None:
        """Calls fsync on the log or folder that makes runs visible to readers.

        After a crash, a run can be visible but not synced. Recovery calls this method for such a run.
        """
        ...

    def stage_rewrite(self, generation: int, kept: Sequence[RunFile], new: Sequence[RunFile]) -> list[RunFile]:
        """Moves the new files of a rewrite (a compaction or repair) to their final names, and makes them durable.

        Returns all files of the generation, with final paths. Readers do not see the new files yet.

        generation: the generation that the rewrite makes.
        kept: the files that stay as they are.
        new: the files in the folder `attempts` of the rewrite's staging folder.
        """
        ...

    def rewrite(self, generation: int, before: Sequence[RunFile], after: Sequence[RunFile], expires_s: float) -> None:
        """Replaces the files `before` by the files `after` for readers, atomically.

        The call can be repeated after a crash. Raises TakenOver if another exporter has dropped this rewrite, or has
        published a later one. Raises TableChanged if the table has other files than `before`.

        expires_s: the time after which the replaced files can be removed, in seconds since 1970.
        """
        ...

    def drop_rewrite(self, generation: int) -> None:
        """Makes sure that a rewrite (compaction or repair) is never published.

        Its files are removed now, or later by means of `find_leftovers` or `find_expired`.
        """
        ...

    def expire_log(self, now_s: float, keep_s: float) -> int:
        """Removes old entries or snapshots from the table's log. Returns their number.

        now_s: the present time in seconds since 1970.
        keep_s: how long old versions of the table stay readable, in seconds. Delta has its own setting for the age of
            entries, and ignores both.
        """
        ...

    def find_expired(self, current: Sequence[RunFile], now_s: float, keep_s: float) -> list[str]:
        """Returns the names of replaced files and old versions that were kept long enough, for `remove`.

        The files are listed before the table's log is read. The caller ensures that no run, compaction or repair is
        unfinished.

        current: all files of the table that the ledger has.
        now_s, keep_s: as for `expire_log`.
        """
        ...

    def discard(self, run_id: int, entries: Sequence[FileEntry]) -> int:
        """Makes sure that a run is never published, and removes its files now or later (`find_leftovers`).

        Returns the number of files that were removed now.
        """
        ...

    def locate(self, file: RunFile) -> FilePath:
        """Returns the path of a file of a published run."""
        ...

    def list_files(self) -> set[FilePath]:
        """Returns the paths of all files that a reader of the table reads."""
        ...

    def hides_rows(self) -> bool:
        """Returns whether readers may leave out rows of these files, since another program has marked them as deleted.
        A copy of the files would bring such rows back.
        """
        ...


FORMATS = ("parquet", "delta", "iceberg")


def make_table(layout: Layout, table_format: str, table_id: str) -> Table:
    """Returns the table of an export in one of the FORMATS.

    Raises ExportMismatch for an unknown format, and ExtraMissing if a library of the format is not installed.

    table_id: the name of the export in the log of a Delta or Iceberg table.
    """
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
