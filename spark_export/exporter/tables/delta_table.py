"""A Delta table, written without Spark's connector. The exporter writes the data files, and `deltalake` writes the log.

Each run is one transaction in the log. The transaction contains the export's id and the run's id, so the log shows
which runs the table has. Readers of Delta ignore files that are in no transaction.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from urllib.parse import unquote

import pyarrow as pa

from ockam.files.durable_files import make_folder
from spark_export.exporter.errors import ExportError, ExtraMissing, TableChanged, TakenOver
from spark_export.exporter.ledger.ledger import FIRST_GENERATION
from spark_export.exporter.model import FileEntry, RunFile
from spark_export.exporter.tables.delta_statistics import read_delta_statistics
from spark_export.exporter.tables.flat_table import REWRITTEN_PREFIX, RUN_PREFIX, FlatTable
from spark_export.exporter.tables.layout import TABLE, Layout
from spark_export.exporter.tables.store_flat_table import StoreFlatTable, log_address
from spark_export.exporter.tables.write_files import ERA, FILE_SCHEMA
from spark_export.store.data import one_line
from spark_export.store.options import azure_names, is_set
from spark_export.store.paths import FilePath
from spark_export.store.store import Store

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
"""The number of transactions after which `expire_log` writes a checkpoint, at which readers of the log start."""


class DeltaLog(FlatTable):
    """The log of a Delta table, in a folder or on a store. A subclass stores the data files.

    _address: the address of the table.
    _options: the options of the store. Both are in the form that deltalake expects.
    _table_id: the id of the export, which marks the transactions of the export in the log.
    """

    with_stream = False
    keeps_latest_run = True

    _address: str
    _options: dict[str, str]
    _table_id: str

    @property
    def _application(self) -> str:
        return f"stream-node-export-{self._table_id}"

    @property
    def _rewrites(self) -> str:
        return f"{self._application}-rewrites"

    @property
    def _fences(self) -> str:
        """The application id of fences: transactions that forbid the publication of abandoned runs, up to the stored
        number."""
        return f"{self._application}-fences"

    @property
    def _rewrite_fences(self) -> str:
        """The application id of fences that forbid the publication of dropped compactions and repairs."""
        return f"{self._application}-rewrite-fences"

    def missing(self) -> str | None:
        return None if self._exists() else f"{self._address}/_delta_log"

    def prepare(self) -> None:
        if not self._exists():
            with _map_errors(f"the Delta table {self._address} cannot be made"):
                DeltaTable.create(
                    self._address, SCHEMA, partition_by=PARTITION_COLUMNS, storage_options=self._options or None
                )
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
        if not self._exists():
            return 0
        return self._open().transaction_version(self._application) or 0

    def hides_rows(self) -> bool:
        return _has_deletion_vectors(self._open())

    def list_files(self) -> set[FilePath]:
        return {self._path_to(path) for path in self._paths(self._open())}

    def _commit(self, run_id: int, entries: Sequence[FileEntry]) -> None:
        table = self._begin()
        if (table.transaction_version(self._fences) or 0) >= run_id:
            raise TakenOver(f"another exporter has taken over the table {self._address}, and abandoned run {run_id}")
        if (table.transaction_version(self._application) or 0) < run_id:
            try:
                self._transact(
                    table, [self._add(entry) for entry in entries], {self._application: run_id}, f"run {run_id}"
                )
                return
            except ExportError:
                # The answer of the store may have got lost, or another exporter may have published the run.
                table = self._open()
                if (table.transaction_version(self._fences) or 0) >= run_id:
                    raise TakenOver(f"another exporter has taken over the table {self._address}") from None
                if (table.transaction_version(self._application) or 0) < run_id:
                    raise
        lacking = {entry.path for entry in entries} - set(self._paths(table))
        if lacking:
            raise TakenOver(f"another exporter has taken over the table {self._address}, and published run {run_id}")

    def _fence(self, *, run_id: int = 0, generation: int = 0) -> None:
        """Forbids other exporters to publish an abandoned run or a dropped rewrite, by a transaction without files.

        A commit that has already begun fails, because it and the fence both set the number of the latest run: Delta
        refuses one of two such concurrent transactions. A later commit finds the fence and raises TakenOver.
        """
        table = self._open()
        numbers = {self._application: table.transaction_version(self._application) or 0}
        numbers |= {self._fences: run_id} if run_id else {}
        numbers |= {self._rewrite_fences: generation} if generation else {}
        self._transact(table, [], numbers, f"abandoning run {run_id}" if run_id else f"dropping rewrite {generation}")

    def _commit_rewrite(self, generation: int, before: Sequence[RunFile], after: Sequence[RunFile]) -> None:
        table = self._begin()
        current = table.transaction_version(self._rewrites) or FIRST_GENERATION
        if current == generation:
            return
        self._check_generation(generation, current, table.transaction_version(self._rewrite_fences) or 0)
        if _has_deletion_vectors(table):
            raise TableChanged(f"another program has marked rows of {self._address} as deleted meanwhile; it stays so")
        old, new = self._changes(set(self._paths(table)), before, after)
        # The rows stay the same, or replace damaged ones, so a reader of the table's changes gets no rows.
        actions = [*(_remove(file.entry) for file in old), *(self._add(file.entry, data_change=False) for file in new)]
        numbers = {self._rewrites: generation, self._application: table.transaction_version(self._application) or 0}
        try:
            self._transact(table, actions, numbers, f"rewrite {generation}")
        except ExportError:
            # The answer of the store may have got lost, or another exporter may have changed the table.
            table = self._open()
            current = table.transaction_version(self._rewrites) or FIRST_GENERATION
            if current == generation:
                return
            self._check_generation(generation, current, table.transaction_version(self._rewrite_fences) or 0)
            raise

    def _transact(
        self, table: DeltaTable, actions: list[AddAction | RemoveAction], numbers: Mapping[str, int], what: str
    ) -> None:
        """Adds one transaction to the log. `numbers` has the numbers to store, by application id.

        Raises ExportError, also if another transaction with one of the application ids was added since `table` was
        opened.
        """
        with _map_errors(f"the transaction of {what} failed, the next run tries again"):
            table.create_write_transaction(
                actions,
                mode="append",
                schema=table.schema(),
                partition_by=PARTITION_COLUMNS,
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(application, number) for application, number in numbers.items()]
                ),
            )

    def _read_generation(self) -> int | None:
        number: int | None = self._open().transaction_version(self._rewrites)
        return number

    def expire_log(self, now_s: float, keep_s: float) -> int:
        """Writes a checkpoint after CHECKPOINT_COMMITS transactions, and then removes old log files. Returns their
        number."""
        names = self._list_log()
        checkpoints = [int(name[:20]) for name in names if name[:20].isdigit() and ".checkpoint." in name]
        table = self._open()
        if table.version() - max(checkpoints, default=0) < CHECKPOINT_COMMITS:
            return 0
        with _map_errors(f"no checkpoint of {self._address} could be written"):
            table.create_checkpoint()
            table.cleanup_metadata()
        self.sync()
        return max(0, len(names) - len(self._list_log()))

    def _list_log(self) -> list[str]:
        return [path.name for path in self._log.iterdir()]

    def _names_in_log(self) -> set[str]:
        return {path.rpartition("/")[2] for path in self._paths(self._open())}

    def _paths(self, table: DeltaTable) -> list[str]:
        found: list[str] = pa.table(table.get_add_actions()).column("path").to_pylist()
        return [unquote(path) for path in found]

    def _exists(self) -> bool:
        with _map_errors(f"the Delta table {self._address} cannot be read"):
            return bool(DeltaTable.is_deltatable(self._address, self._options or None))

    def _add(self, entry: FileEntry, *, data_change: bool = True) -> AddAction:
        return AddAction(
            path=entry.path,
            size=entry.file_bytes,
            partition_values={"stream": entry.stream, "date": entry.date},
            modification_time=time.time_ns() // 1_000_000,
            data_change=data_change,
            stats=read_delta_statistics(self._path_to(entry.path)),
        )

    def _begin(self) -> DeltaTable:
        """Opens the table for a commit, which fails if another exporter has called `_fence` meanwhile."""
        return self._open()

    def _open(self) -> DeltaTable:
        with _map_errors(f"the Delta table {self._address} cannot be read"):
            return DeltaTable(self._address, storage_options=self._options or None)


class DeltaLogTable(DeltaLog):
    def __init__(self, layout: Layout, table_id: str) -> None:
        super().__init__(layout, layout.table, layout.table / "_delta_log")
        self._address, self._options, self._table_id = str(layout.table), {}, table_id

    def prepare(self) -> None:
        make_folder(self._layout.table)
        super().prepare()


class StoreDeltaTable(StoreFlatTable, DeltaLog):
    def __init__(self, layout: Layout, store: Store, table_id: str) -> None:
        super().__init__(layout, store, TABLE)
        self._address, self._options, self._table_id = log_address(store), delta_options(store), table_id

    def find_expired(self, current: Sequence[RunFile], now_s: float, keep_s: float) -> list[str]:
        """Returns the names of own data files that no version of the last `keep_s` seconds needs."""
        table = self._open()
        with _map_errors(f"old files of {self._address} cannot be listed"):
            old = table.vacuum(
                # deltalake takes whole hours. Rounded down, half an hour would remove files at once.
                retention_hours=math.ceil(keep_s / 3600),
                dry_run=True,
                enforce_retention_duration=False,
                full=True,
            )
        # Another exporter may have published some of these files since `table` was opened.
        needed = {file.entry.path for file in current} | set(self._paths(self._open()))
        own = [path for path in map(unquote, old) if path.startswith((RUN_PREFIX, REWRITTEN_PREFIX))]
        return [f"{self._folder}/{path}" for path in own if path not in needed]

    def _list_log(self) -> list[str]:
        return [each.name.rpartition("/")[2] for each in self._store.list_objects(f"{TABLE}/_delta_log")]


def _has_deletion_vectors(table: DeltaTable) -> bool:
    """Returns whether files of the table can have deletion vectors. `deltalake` does not say which files have one."""
    return "deletionVectors" in (table.protocol().reader_features or ())


def _remove(entry: FileEntry) -> RemoveAction:
    return RemoveAction(
        path=entry.path,
        data_change=False,
        deletion_timestamp=time.time_ns() // 1_000_000,
        size=entry.file_bytes,
        partition_values={"stream": entry.stream, "date": entry.date},
    )


def delta_options(store: Store) -> dict[str, str]:
    given, scheme = store.options, store.place.scheme
    endpoint = given.get("endpoint", "")
    found = {"timeout": f"{given['timeout_s']}s", "max_retries": given["tries"]}
    if endpoint.startswith("http://"):
        found["allow_http"] = "true"
    if scheme == "s3":
        names = {"endpoint": "aws_endpoint_url", "region": "aws_region"}
        found |= {name: given[option] for option, name in names.items() if option in given}
        if endpoint:
            found.setdefault("aws_region", "us-east-1")
        found["aws_skip_signature"] = "true" if is_set(given, "anonymous") else "false"
        found["aws_virtual_hosted_style_request"] = "true" if is_set(given, "virtual_hosted") else "false"
    elif scheme == "gs" and endpoint:
        found["google_base_url"] = endpoint
    elif scheme == "abfs":
        found["azure_storage_account_name"] = azure_names(store.place, given)[0]
        if endpoint:
            found["azure_storage_endpoint"] = endpoint
    return found


@contextmanager
def _map_errors(what: str) -> Iterator[None]:
    """Turns errors of deltalake into ExportErrors. `what` is the beginning of the message."""
    try:
        yield
    except (DeltaError, OSError) as error:
        raise ExportError(f"{what}: {one_line(error)}") from error
