"""An Iceberg table, written without Spark's connector. The exporter writes the data files, `pyiceberg` the snapshots.

Each run is one snapshot. The summary of the snapshot contains the run's id, so the snapshots show which runs the table
has. `iceberg_catalog.py` opens the catalog. Iceberg stores absolute paths, so an export folder with an Iceberg table
cannot be moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

from ockam.files.durable_files import make_folder
from spark_export.exporter.errors import ExportError, ExportMismatch, ExtraMissing, TakenOver
from spark_export.exporter.ledger.ledger import FIRST_GENERATION
from spark_export.exporter.model import FileEntry, RunFile
from spark_export.exporter.tables.flat_table import REWRITTEN_PREFIX, RUN_PREFIX
from spark_export.exporter.tables.iceberg_catalog import open_catalog
from spark_export.exporter.tables.iceberg_upkeep import IcebergUpkeep, map_errors
from spark_export.exporter.tables.layout import TABLE, Layout
from spark_export.exporter.tables.store_flat_table import StoreFlatTable, log_address
from spark_export.exporter.tables.write_files import ERA, FILE_SCHEMA_WITH_STREAM
from spark_export.store.paths import FilePath
from spark_export.store.store import Store

try:
    from pyiceberg.catalog import Catalog
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
    from pyiceberg.io.pyarrow import parquet_files_to_data_files
    from pyiceberg.table.snapshots import ancestors_of
    from pyiceberg.transforms import DayTransform, IdentityTransform
    from pyiceberg.types import IntegerType
except ModuleNotFoundError as error:
    raise ExtraMissing(
        f"the format iceberg needs the extra `iceberg` ({error.name}): pip install 'stream-node[iceberg]'"
    ) from error

RUN_PROPERTY = "stream-node.run"
"""The key in a snapshot's summary under which the export's id and the run's id are stored."""

FENCE_PROPERTY = "stream-node.fence"
"""The table property with the export's id and the id of the latest run that `_fence` has forbidden."""
METADATA = f"{TABLE}/metadata"
GENERATION_PROPERTY = "stream-node.generation"
"""The table property with the export's id and the number of the latest compaction or repair."""
REWRITE_FENCE_PROPERTY = "stream-node.rewrite-fence"
"""The table property with the export's id and the number of the latest rewrite that `_fence` has forbidden."""


class IcebergLog(IcebergUpkeep):
    """The snapshots of an Iceberg table, partitioned by stream and day. A subclass stores the data files."""

    with_stream = True
    keeps_latest_run = False
    """False, because other tools can remove the snapshot that names the latest run."""
    _table_id: str
    _root: str
    _catalog: Catalog
    _identifier: tuple[str, ...]

    def missing(self) -> str | None:
        with map_errors("the catalog cannot be read"):
            try:
                self._open()
            except (NoSuchTableError, NoSuchNamespaceError):
                return f"the table {'.'.join(self._identifier)} in the catalog"
        return None

    def prepare(self) -> None:
        with map_errors("the table cannot be made"):
            self._catalog.create_namespace_if_not_exists(self._identifier[:-1])
            try:
                self._ensure_era()
                return
            except NoSuchTableError:
                made = self._catalog.create_table(self._identifier, FILE_SCHEMA_WITH_STREAM, location=self._root)
            with made.update_spec() as spec:
                spec.add_field("stream", IdentityTransform(), "stream_value")
                spec.add_field("timestamp", DayTransform(), "day")
        self.sync()

    def _ensure_era(self) -> None:
        """Adds the column `era` to a table of an earlier version. Its rows have null there. Raises ExportMismatch."""
        table = self._open()
        if table.location().rstrip("/") != self._root:
            raise ExportMismatch(
                f"the catalog has {'.'.join(self._identifier)} at {table.location()}, not at {self._root}: name "
                "another one by --catalog-table NAMESPACE.NAME"
            )
        if ERA not in table.schema().column_names:
            with table.update_schema() as update:
                update.add_column(ERA, IntegerType())
            self.sync()

    def has_run(self, run_id: int) -> bool:
        return run_id in self._runs()

    def latest_run(self) -> int:
        return max(self._runs(), default=0)

    def hides_rows(self) -> bool:
        return any(task.delete_files for task in self._open().scan().plan_files())

    def list_files(self) -> set[FilePath]:
        return {self._path_to(self._path_of(task.file.file_path)) for task in self._open().scan().plan_files()}

    def _commit(self, run_id: int, entries: Sequence[FileEntry]) -> None:
        table = self._begin()
        if _number(table, FENCE_PROPERTY, self._table_id) >= run_id:
            raise TakenOver(f"another exporter has taken over the table {self._root}, and abandoned run {run_id}")
        if run_id not in self._runs_of(table):
            # If pyiceberg repeated a failed commit, the repetition would ignore a fence.
            table.metadata.properties["commit.retry.num-retries"] = "0"
            try:
                with map_errors(f"the snapshot of run {run_id} failed, the next run tries again"):
                    table.add_files(
                        [self._address_of(entry.path) for entry in entries],
                        snapshot_properties={RUN_PROPERTY: self._run_name(run_id)},
                    )
                return
            except ExportError:
                # The catalog's answer may have got lost, or another exporter may have published the run.
                table = self._open()
                if _number(table, FENCE_PROPERTY, self._table_id) >= run_id:
                    raise TakenOver(f"another exporter has taken over the table {self._root}") from None
                if run_id not in self._runs_of(table):
                    raise
        there = {self._path_of(task.file.file_path) for task in table.scan().plan_files()}
        if {entry.path for entry in entries} - there:
            raise TakenOver(f"another exporter has taken over the table {self._root}, and published run {run_id}")

    def _fence(self, *, run_id: int = 0, generation: int = 0) -> None:
        """Forbids the publication of an abandoned run or a dropped rewrite, by a snapshot without files.

        A commit that has already begun fails, because the current snapshot has changed. A later commit finds the
        property.
        """
        what = f"abandons run {run_id}" if run_id else f"drops rewrite {generation}"
        numbers = {FENCE_PROPERTY: run_id, REWRITE_FENCE_PROPERTY: generation}
        table = self._open()
        with map_errors(f"the snapshot that {what} failed"), table.transaction() as change:
            change.set_properties({key: self._run_name(number) for key, number in numbers.items() if number})
            latest = max(self._runs_of(table), default=0)
            with change.update_snapshot({RUN_PROPERTY: self._run_name(latest)}).fast_append():
                pass

    def _commit_rewrite(self, generation: int, before: Sequence[RunFile], after: Sequence[RunFile]) -> None:
        table = self._begin()
        if self._has_rewrite(table, generation):
            return
        table.metadata.properties["commit.retry.num-retries"] = "0"
        what = f"the snapshot of rewrite {generation} failed, the next run tries again"
        with map_errors(what):
            listed = {self._path_of(task.file.file_path): task.file for task in table.scan().plan_files()}
        old, new = self._changes(listed.keys(), before, after)
        # The snapshots may no longer name all runs, since they expire.
        latest = max({*self._runs_of(table), *(file.run_id for file in after)}, default=0)
        try:
            with map_errors(what), table.transaction() as change:
                change.set_properties({GENERATION_PROPERTY: f"{self._table_id}/{generation}"})
                with change.update_snapshot({RUN_PROPERTY: self._run_name(latest)}).overwrite() as snapshot:
                    for file in old:
                        snapshot.delete_data_file(listed[file.entry.path])
                    paths = (self._address_of(file.entry.path) for file in new)
                    for data_file in parquet_files_to_data_files(table.io, table.metadata, paths):
                        snapshot.append_data_file(data_file)
        except ExportError:
            # The catalog's answer may have got lost, or another exporter may have changed the table.
            if not self._has_rewrite(self._begin(), generation):
                raise

    def _has_rewrite(self, table: Any, generation: int) -> bool:
        """Returns whether this rewrite is published. Raises TakenOver if it must not be published any more."""
        current = _number(table, GENERATION_PROPERTY, self._table_id) or FIRST_GENERATION
        if current == generation:
            return True
        self._check_generation(generation, current, _number(table, REWRITE_FENCE_PROPERTY, self._table_id))
        return False

    def _read_generation(self) -> int | None:
        try:
            with map_errors("the table cannot be read"):
                return _number(self._open(), GENERATION_PROPERTY, self._table_id) or None
        except NoSuchTableError:
            return None

    def _begin(self) -> Any:
        with map_errors("the table cannot be read"):
            return self._open()

    def _open(self) -> Any:
        return self._catalog.load_table(self._identifier)

    def _runs(self) -> set[int]:
        try:
            with map_errors("the table cannot be read"):
                return self._runs_of(self._open())
        except (NoSuchTableError, NoSuchNamespaceError):
            return set()

    def _runs_of(self, table: Any) -> set[int]:
        """Returns the ids of the runs in the current snapshot and its ancestors. Rolled-back snapshots are not among
        them."""
        found = ancestors_of(table.current_snapshot(), table.metadata)
        names = [(each.summary.get(RUN_PROPERTY) or "") for each in found if each.summary is not None]
        own = self._run_name("")
        return {int(name.removeprefix(own)) for name in names if name.startswith(own)} - {0}

    def _address_of(self, path: str) -> str:
        """Returns the address by which Iceberg's metadata names a data file. path: relative to the data folder."""
        return f"{self._root}/data/{path}"

    def _path_of(self, address: str) -> str:
        """Returns the path of a data file, relative to the data folder. address: as Iceberg's metadata names it."""
        return unquote(address).removeprefix(f"{self._root}/data/")

    def _run_name(self, run_id: int | str) -> str:
        return f"{self._table_id}/{run_id}"


class IcebergTable(IcebergLog):
    def __init__(self, layout: Layout, table_id: str) -> None:
        super().__init__(layout, layout.table / "data", layout.table / "metadata")
        self._table_id, self._root = table_id, f"file://{layout.table}"
        with map_errors("the catalog cannot be opened"):
            self._catalog, self._identifier = open_catalog(layout)

    def prepare(self) -> None:
        make_folder(self._data)
        super().prepare()


class StoreIcebergTable(StoreFlatTable, IcebergLog):
    def __init__(self, layout: Layout, store: Store, table_id: str) -> None:
        super().__init__(layout, store, f"{TABLE}/data")
        self._table_id, self._root = table_id, log_address(store)
        with map_errors("the catalog cannot be opened"):
            self._catalog, self._identifier = open_catalog(layout)

    def _find_expired_data(self, current: Sequence[RunFile], now_s: float, keep_s: float) -> list[str]:
        # A younger file may be of another exporter that has not committed its snapshot yet.
        listed = [
            each.name for each in self._store.list_objects(self._folder) if each.modified_us <= (now_s - keep_s) * 1e6
        ]
        needed = {file.entry.path.rpartition("/")[2] for file in current} | self._names_in_log()
        return [
            name
            for name in listed
            if name.removeprefix(f"{self._folder}/").startswith((RUN_PREFIX, REWRITTEN_PREFIX))
            and name.rpartition("/")[2] not in needed
        ]

    def _list_metadata(self) -> Iterator[tuple[str, float]]:
        for each in self._store.list_objects(METADATA):
            yield each.name, each.modified_us / 1e6


def _number(table: Any, key: str, table_id: str) -> int:
    """Returns the number in a table property of this export; 0 if it is missing."""
    own, _, number = table.properties.get(key, "").partition("/")
    return int(number) if own == table_id else 0
