"""A Delta table, written without Spark's connector. The exporter writes the data files, `deltalake` the log.

Each run is one transaction in the log. The transaction contains the export's id and the run's id, so the log shows
which runs the table has. Readers of Delta ignore files that are in no transaction.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from spark_export.exporter.delta_statistics import read_delta_statistics
from spark_export.exporter.errors import ExportError, ExtraMissing
from spark_export.exporter.flat_table import FlatTable
from spark_export.exporter.layout import Layout
from spark_export.exporter.model import FileEntry, RunFile
from spark_export.exporter.write_files import ERA, FILE_SCHEMA
from spark_export.store.paths import FilePath
from storage.durable_files import make_folder

try:
    from deltalake import CommitProperties, DeltaTable, Field, Transaction
    from deltalake.exceptions import DeltaError
    from deltalake.transaction import AddAction, RemoveAction
except ModuleNotFoundError as error:
    raise ExtraMissing(
        f"the format delta needs the extra `delta` ({error.name}): pip install 'stream-node[delta]'"
    ) from error

PARTITION_COLUMNS = ["stream", "date"]
SCHEMA = FILE_SCHEMA.append(pa.field("stream", pa.string(), False)).append(pa.field("date", pa.date32(), False))
"""The columns of the table. The values of the last two, `stream` and `date`, are in the log and not in the files."""


CHECKPOINT_COMMITS = 20
"""After how many transactions the maintenance writes a checkpoint, from which readers begin."""


class DeltaLogTable(FlatTable):
    """A `Table` in the format of Delta."""

    with_stream = False
    keeps_latest_run = True

    def __init__(self, layout: Layout, table_id: str) -> None:
        super().__init__(layout, layout.table, layout.table / "_delta_log")
        self._application = f"stream-node-export-{table_id}"
        self._rewrites = f"{self._application}-rewrites"

    def missing(self) -> str | None:
        return None if DeltaTable.is_deltatable(str(self._layout.table)) else str(self._log)

    def prepare(self) -> None:
        make_folder(self._layout.table)
        if not DeltaTable.is_deltatable(str(self._layout.table)):
            DeltaTable.create(str(self._layout.table), SCHEMA, partition_by=PARTITION_COLUMNS)
            self.sync()
            return
        table = self._open()
        if ERA not in {field.name for field in table.schema().fields}:
            # A table of an earlier version gets the column; its older rows have null there.
            table.alter.add_columns(Field(ERA, "integer"))
            self.sync()

    def has_run(self, run_id: int) -> bool:
        # Runs are published in the order of their ids.
        return self.latest_run() >= run_id

    def latest_run(self) -> int:
        if not DeltaTable.is_deltatable(str(self._layout.table)):
            return 0
        return self._open().transaction_version(self._application) or 0

    def list_files(self) -> set[FilePath]:
        return {self._layout.table / name for name in self._open().file_uris()}

    def locate(self, file: RunFile) -> Path:
        return self._layout.table / file.entry.path

    def _commit(self, run_id: int, entries: Sequence[FileEntry]) -> None:
        self._transact([self._add(entry) for entry in entries], self._application, run_id, f"run {run_id}")

    def _commit_rewrite(self, generation: int, old: Sequence[RunFile], new: Sequence[RunFile]) -> None:
        # The rows stay the same, or are those that the damaged files should have: a stream of changes needs none.
        added = [self._add(file.entry, data_change=False) for file in new]
        removed = [_remove(file.entry) for file in old]
        self._transact([*removed, *added], self._rewrites, generation, f"rewrite {generation}")

    def _transact(self, actions: list[AddAction | RemoveAction], application: str, number: int, what: str) -> None:
        """Adds one transaction to the log. Its application id and number tell later that the table has it."""
        table = self._open()
        try:
            table.create_write_transaction(
                actions,
                mode="append",
                schema=table.schema(),
                partition_by=PARTITION_COLUMNS,
                commit_properties=CommitProperties(app_transactions=[Transaction(application, number)]),
            )
        except DeltaError as error:
            raise ExportError(f"the transaction of {what} failed: {error}; the next run tries again") from error

    def _read_generation(self) -> int | None:
        number: int | None = self._open().transaction_version(self._rewrites)
        return number

    def _expire_log(self, now_s: float, keep_s: float) -> int:
        """Writes a checkpoint after CHECKPOINT_COMMITS transactions, and removes the log files that expired.

        The property delta.logRetentionDuration of the table says when they expire; without it, after 30 days."""
        before = len(list(self._log.iterdir()))
        table = self._open()
        checkpoints = [int(path.name[:20]) for path in self._log.glob("*.checkpoint.parquet")]
        if table.version() - max(checkpoints, default=0) >= CHECKPOINT_COMMITS:
            try:
                table.create_checkpoint()
                table.cleanup_metadata()
            except DeltaError as error:
                raise ExportError(f"no checkpoint of {self._layout.table} could be written: {error}") from error
            self.sync()
        return max(0, before - len(list(self._log.iterdir())))

    def _names_in_log(self) -> set[str]:
        return {path.name for path in self.list_files()}

    def _add(self, entry: FileEntry, *, data_change: bool = True) -> AddAction:
        return AddAction(
            path=entry.path,
            size=entry.file_bytes,
            partition_values={"stream": entry.stream, "date": entry.date},
            modification_time=time.time_ns() // 1_000_000,
            data_change=data_change,
            stats=read_delta_statistics(self._data / entry.path),
        )

    def _open(self) -> DeltaTable:
        try:
            return DeltaTable(str(self._layout.table))
        except DeltaError as error:
            raise ExportError(f"the Delta table {self._layout.table} cannot be read: {error}") from error


def _remove(entry: FileEntry) -> RemoveAction:
    return RemoveAction(
        path=entry.path,
        data_change=False,
        deletion_timestamp=time.time_ns() // 1_000_000,
        size=entry.file_bytes,
        partition_values={"stream": entry.stream, "date": entry.date},
    )
