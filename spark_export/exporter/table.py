"""What every kind of table can do, so that a run need not know which it writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from spark_export.exporter.errors import ExportMismatch
from spark_export.exporter.layout import Layout
from spark_export.exporter.ledger import RunFile
from spark_export.exporter.model import FileEntry


class Table(Protocol):
    """A table in one export folder. Its own log, or its folders, say which runs it has; it never asks the ledger."""

    @property
    def with_stream(self) -> bool:
        """Whether its files have the column `stream`."""
        ...

    @property
    def generation(self) -> int:
        """Which generation of the table readers see."""
        ...

    def prepare(self) -> None:
        """Make it where it is missing."""
        ...

    def refusal_of(self, stream: str) -> str | None:
        """Why it cannot have rows of that stream, or None."""
        ...

    def arrange(self, run_id: int, entries: Sequence[FileEntry]) -> list[FileEntry]:
        """Give the files of a run, which tasks wrote into its `attempts`, their places in the run's own tree, synced.

        The entries with their paths below the folder that the table keeps the run's files in.
        """
        ...

    def staged_whole(self, run_id: int, entries: Sequence[FileEntry]) -> bool:
        """Whether `publish` has all it needs."""
        ...

    def has_run(self, run_id: int) -> bool:
        """Whether readers see it."""
        ...

    def latest_run(self) -> int:
        """The highest number of a run that readers see; 0 where there is none."""
        ...

    def publish(self, run_id: int, entries: Sequence[FileEntry]) -> None:
        """Have readers see the whole run, in one step, and for good. Only for a run that the table does not have."""
        ...

    def sync(self) -> None:
        """What readers see is on disk when this returns: a crash can leave a run published and not synced."""
        ...

    def discard(self, run_id: int, entries: Sequence[FileEntry]) -> int:
        """Remove what is left of a run that will never be published; how many files."""
        ...

    def locate(self, file: RunFile) -> Path:
        """Where a file of a published run is."""
        ...

    def list_files(self) -> set[Path]:
        """All that a reader of the table would read."""
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
