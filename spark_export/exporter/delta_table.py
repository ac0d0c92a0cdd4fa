"""A Delta table, written without Spark's connector. The exporter writes the data files, `deltalake` the log.

Each run is one transaction in the log. The transaction contains the export's id and the run's id, so the log shows
which runs the table has. Readers of Delta ignore files that are in no transaction.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from spark_export.exporter.errors import ExportError, ExtraMissing
from spark_export.exporter.flat_table import FlatTable
from spark_export.exporter.layout import Layout
from spark_export.exporter.ledger import RunFile
from spark_export.exporter.model import FileEntry
from spark_export.exporter.write_files import ERA, FILE_SCHEMA
from storage.durable_files import make_folder

try:
    from deltalake import CommitProperties, DeltaTable, Field, Transaction
    from deltalake.exceptions import DeltaError
    from deltalake.transaction import AddAction
except ModuleNotFoundError as error:
    raise ExtraMissing(
        f"the format delta needs the extra `delta` ({error.name}): pip install 'stream-node[delta]'"
    ) from error

PARTITION_COLUMNS = ["stream", "date"]
SCHEMA = FILE_SCHEMA.append(pa.field("stream", pa.string(), False)).append(pa.field("date", pa.date32(), False))
"""The columns of the table. The values of the last two, `stream` and `date`, are in the log and not in the files."""


class DeltaLogTable(FlatTable):
    """A `Table` in the format of Delta."""

    with_stream = False

    def __init__(self, layout: Layout, table_id: str) -> None:
        super().__init__(layout, layout.table, layout.table / "_delta_log")
        self._application = f"stream-node-export-{table_id}"

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

    def list_files(self) -> set[Path]:
        return {self._layout.table / name for name in self._open().file_uris()}

    def locate(self, file: RunFile) -> Path:
        return self._layout.table / file.entry.path

    def _commit(self, run_id: int, entries: Sequence[FileEntry]) -> None:
        actions = [
            AddAction(
                path=entry.path,
                size=entry.file_bytes,
                partition_values={"stream": entry.stream, "date": entry.date},
                modification_time=time.time_ns() // 1_000_000,
                data_change=True,
                stats=json.dumps({"numRecords": entry.rows}),
            )
            for entry in entries
        ]
        properties = CommitProperties(app_transactions=[Transaction(self._application, run_id)])
        table = self._open()
        try:
            table.create_write_transaction(
                actions,
                mode="append",
                schema=table.schema(),
                partition_by=PARTITION_COLUMNS,
                commit_properties=properties,
            )
        except DeltaError as error:
            raise ExportError(f"the transaction of run {run_id} failed: {error}; the next run tries again") from error

    def _open(self) -> DeltaTable:
        try:
            return DeltaTable(str(self._layout.table))
        except DeltaError as error:
            raise ExportError(f"the Delta table {self._layout.table} cannot be read: {error}") from error
