"""The interface of all kinds of tables, so that a run need not know which kind it writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from spark_export.exporter.errors import ExportMismatch
from spark_export.exporter.layout import Layout
from spark_export.exporter.ledger import RunFile
from spark_export.exporter.model import FileEntry


class Table(Protocol):
    """A table in one export folder. The table's own log, or its folders, say which runs it has; it never asks the
    ledger."""

    @property
    def with_stream(self) -> bool:
        """Whether the table's files have the column `stream`."""
        ...

    @property
    def generation(self) -> int:
        """The generation of the table that readers see."""
        ...

    def prepare(self) -> None:
        """Makes the table if it is missing."""
        ...

    def refusal_of(self, stream: str) -> str | None:
        """The reason why the table cannot have rows of this stream, or None."""
        ...

    def arrange(self, run_id: int, entries: Sequence[FileEntry]) -> list[FileEntry]:
        """Moves the files of a run from its `attempts`, where tasks wrote them, to their places in the run's tree, and
        syncs them.

        Returns the entries with their new paths, relative to the folder in which the table keeps the run's files.
        """
        ...

    def staged_whole(self, run_id: int, entries: Sequence[FileEntry]) -> bool:
        """Whether all files that `publish` needs are complete in staging."""
        ...

    def has_run(self, run_id: int) -> bool:
        """Whether readers see this run."""
        ...

    def latest_run(self) -> int:
        """The highest number of a run that readers see; 0 if they see none."""
        ...

    def publish(self, run_id: int, entries: Sequence[FileEntry]) -> None:
        """Publishes the whole run in one step: readers see it from now on. The table must not have the run yet."""
        ...

    def sync(self) -> None:
        """Syncs all that readers see. This is needed because a crash can leave a run published but not synced."""
        ...

    def discard(self, run_id: int, entries: Sequence[FileEntry]) -> int:
        """Removes the files of a run that will never be published. Returns how many they were."""
        ...

    def locate(self, file: RunFile) -> Path:
        """The place of a file of a published run."""
        ...

    def list_files(self) -> set[Path]:
        """All files that a reader of the table would read."""
        ...


FORMATS = ("parquet", "delta", "iceberg")


def make_table(layout: Layout, table_format: str, table_id: str) -> Table:
    """The table of that format. Raises ExportMismatch, ExtraMissing."""
    if table_format == "parquet":
        from spark_export.exporter.parquet_table import ParquetTable

        return ParquetTable(layout)
    if table_format == "delta":
        from spark_export.exporter.delta_table import DeltaLogTable

        return DeltaLogTable(layout, table_id)
    if table_format == "iceberg":
        from spark_export.exporter.iceberg_table import IcebergTable

        return IcebergTable(layout, table_id)
    raise ExportMismatch(f"unknown format {table_format!r}; known are {', '.join(FORMATS)}")
