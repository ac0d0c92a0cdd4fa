"""An Iceberg table, written without Spark's connector. The exporter writes the data files, `pyiceberg` the snapshots.

Each run is one snapshot. The summary of the snapshot contains the run's id, so the snapshots show which runs the table
has. `iceberg_catalog.py` opens the catalog. Iceberg stores absolute paths, so an export folder with an Iceberg table
cannot be moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from spark_export.exporter.errors import ExportError, ExportMismatch, ExtraMissing, TakenOver
from spark_export.exporter.flat_table import REWRITTEN_PREFIX, RUN_PREFIX, FlatTable
from spark_export.exporter.iceberg_catalog import open_catalog
from spark_export.exporter.layout import TABLE, Layout
from spark_export.exporter.model import FileEntry, RunFile
from spark_export.exporter.store_flat_table import StoreFlatTable, log_address
from spark_export.exporter.write_files import ERA, FILE_SCHEMA_WITH_STREAM
from spark_export.store.data import one_line
from spark_export.store.paths import FilePath
from spark_export.store.store import Store
from storage.durable_files import make_folder

try:
    from pyiceberg.catalog import Catalog
    from pyiceberg.exceptions import (
        CommitFailedException,
        CommitStateUnknownException,
        NoSuchNamespaceError,
        NoSuchTableError,
        RESTError,
    )
    from pyiceberg.io.pyarrow import parquet_files_to_data_files
    from pyiceberg.transforms import DayTransform, IdentityTransform
    from pyiceberg.types import IntegerType
except ModuleNotFoundError as error:
    raise ExtraMissing(
        f"the format iceberg needs the extra `iceberg` ({error.name}): pip install 'stream-node[iceberg]'"
    ) from error

RUN_PROPERTY = "stream-node.run"
"""The key in a snapshot's summary under which the export's id and the run's id are stored."""

FENCE_PROPERTY = "stream-node.fence"
"""The table property with the export's id and the id of the latest run that `_fence` has forbidden to publish."""
METADATA = f"{TABLE}/metadata"
GENERATION_PROPERTY = "stream-node.generation"
"""The table property that stores the export's id and the number of the latest compaction or repair."""


class IcebergLog(FlatTable):
    """The snapshots of an Iceberg table, partitioned by stream and day, in a folder or on a store.

    A subclass stores the data files. _root: the address of the table.
    """

    with_stream = True
    keeps_latest_run = False
    """Whether the table names its latest run for good. It does not: other tools may remove the snapshot of the run."""
    _table_id: str
    _root: str
    _catalog: Catalog
    _identifier: tuple[str, ...]

    def missing(self) -> str | None:
        with _told("the catalog cannot be read"):
            try:
                self._open()
            except (NoSuchTableError, NoSuchNamespaceError):
                return f"the table {'.'.join(self._identifier)} in the catalog"
        return None

    def prepare(self) -> None:
        with _told("the table cannot be made"):
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
        """Adds the column `era` to a table that an earlier version of this project made. Its rows have null there.

        The era is the number of times that the stream was created again. Raises ExportMismatch if the table of this
        name in the catalog has another address.
        """
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

    def list_files(self) -> set[FilePath]:
        return {self._path_to(self._path_of(task.file.file_path)) for task in self._open().scan().plan_files()}

    def _commit(self, run_id: int, entries: Sequence[FileEntry]) -> None:
        table = self._begin()
        if self._fenced(table) >= run_id:
            raise TakenOver(f"another exporter has taken over the table {self._root}, and abandoned run {run_id}")
        if run_id not in self._runs_of(table):
            # If pyiceberg repeated a failed commit, the repetition would ignore a fence.
            table.metadata.properties["commit.retry.num-retries"] = "0"
            try:
                with _told(f"the snapshot of run {run_id} failed, the next run tries again"):
                    table.add_files(
                        [self._address_of(entry.path) for entry in entries],
                        snapshot_properties={RUN_PROPERTY: self._run_name(run_id)},
                    )
                return
            except ExportError:
                # The catalog's answer may have got lost, or another exporter may have published the run.
                table = self._open()
                if self._fenced(table) >= run_id:
                    raise TakenOver(f"another exporter has taken over the table {self._root}") from None
                if run_id not in self._runs_of(table):
                    raise
        there = {self._path_of(task.file.file_path) for task in table.scan().plan_files()}
        if {entry.path for entry in entries} - there:
            raise TakenOver(f"another exporter has taken over the table {self._root}, and published run {run_id}")

    def _fence(self, run_id: int) -> None:
        """Forbids other exporters to publish this abandoned run, by a snapshot without files, the fence.

        A commit of the run that has already begun fails, because the current snapshot has changed. A later `_commit`
        of the run finds FENCE_PROPERTY and raises TakenOver.
        """
        table = self._open()
        with _told(f"the snapshot that abandons run {run_id} failed"), table.transaction() as change:
            change.set_properties({FENCE_PROPERTY: self._run_name(run_id)})
            latest = max(self._runs_of(table), default=0)
            with change.update_snapshot({RUN_PROPERTY: self._run_name(latest)}).fast_append():
                pass

    def _commit_rewrite(self, generation: int, old: Sequence[RunFile], new: Sequence[RunFile]) -> None:
        table = self._open()
        table.metadata.properties["commit.retry.num-retries"] = "0"
        replaced = {self._address_of(file.entry.path) for file in old}
        paths = [self._address_of(file.entry.path) for file in new]
        properties = {RUN_PROPERTY: self._run_name(max(self._runs_of(table), default=0))}
        what = f"the snapshot of rewrite {generation} failed, the next run tries again"
        with self._answered(lambda: self._read_generation() == generation), _told(what):
            removed = [task.file for task in table.scan().plan_files() if task.file.file_path in replaced]
            with table.transaction() as change:
                change.set_properties({GENERATION_PROPERTY: f"{self._table_id}/{generation}"})
                with change.update_snapshot(properties).overwrite() as snapshot:
                    for file in removed:
                        snapshot.delete_data_file(file)
                    for file in parquet_files_to_data_files(table.io, table.metadata, iter(paths)):
                        snapshot.append_data_file(file)

    def _read_generation(self) -> int | None:
        try:
            with _told("the table cannot be read"):
                text = self._open().properties.get(GENERATION_PROPERTY, "")
        except NoSuchTableError:
            return None
        own, _, number = text.partition("/")
        return int(number) if own == self._table_id else None

    def _expire_log(self, now_s: float, keep_s: float) -> int:
        """Expires snapshots that were replaced at least `keep_s` seconds ago, and removes unneeded metadata files.

        Returns the number of expired snapshots and removed files.
        """
        with _told("old snapshots cannot be expired"):
            table = self._open()
            before = len(table.snapshots())
            # A snapshot is the current one from its own time to the time of the next snapshot.
            times = sorted((each.timestamp_ms, each.snapshot_id) for each in table.snapshots())
            limit_ms = (now_s - keep_s) * 1000
            old = [number for (_, number), (end_ms, _) in pairwise(times) if end_ms <= limit_ms]
            protected = {ref.snapshot_id for ref in table.metadata.refs.values()}
            if expired := [number for number in old if number not in protected]:
                table.maintenance.expire_snapshots().by_ids(expired).commit()
                self.sync()
            table = self._open()
            return before - len(table.snapshots()) + self._remove_old_metadata(table, now_s - keep_s)

    def _remove_old_metadata(self, table: Any, before_s: float) -> int:
        """Removes old manifests, manifest lists and metadata files that no snapshot needs. Returns their number.

        before_s: only files that were written before this time are removed, in seconds since 1970.
        """
        needed = {table.metadata_location}
        for snapshot in table.snapshots():
            needed.add(snapshot.manifest_list)
            needed.update(manifest.manifest_path for manifest in snapshot.manifests(table.io))
        names = {_name_of(each) for each in needed}
        old = [
            name
            for name, changed_s in self._list_metadata()
            if name not in names and name.endswith((".avro", ".json")) and changed_s <= before_s
        ]
        self._delete_metadata(old)
        return len(old)

    def _list_metadata(self) -> Iterator[tuple[str, float]]:
        """Yields the name of each metadata file, and the time when it was written, in seconds since 1970."""
        for path in self._log.iterdir():
            yield path.name, path.stat().st_mtime

    def _delete_metadata(self, names: Iterable[str]) -> None:
        for name in names:
            (self._log / name).unlink()

    def _names_in_log(self) -> set[str]:
        table, names = self._open(), set()
        for snapshot in table.snapshots():
            for manifest in snapshot.manifests(table.io):
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                names |= {_name_of(entry.data_file.file_path) for entry in entries}
        return names

    def _begin(self) -> Any:
        """Opens the table for a commit. The commit fails if another exporter has called `_fence` meanwhile."""
        with _told("the table cannot be read"):
            return self._open()

    def _open(self) -> Any:
        return self._catalog.load_table(self._identifier)

    def _runs(self) -> set[int]:
        """Returns the ids of this export's runs that have a snapshot."""
        try:
            with _told("the table cannot be read"):
                return self._runs_of(self._open())
        except (NoSuchTableError, NoSuchNamespaceError):
            return set()

    def _runs_of(self, table: Any) -> set[int]:
        names = [(each.summary.get(RUN_PROPERTY) or "") for each in table.snapshots() if each.summary is not None]
        own = self._run_name("")
        return {int(name.removeprefix(own)) for name in names if name.startswith(own)} - {0}

    def _fenced(self, table: Any) -> int:
        """Returns the id of the latest run that `_fence` has forbidden to publish; 0 if there is none."""
        own, _, number = table.properties.get(FENCE_PROPERTY, "").partition("/")
        return int(number) if own == self._table_id else 0

    @contextmanager
    def _answered(self, is_done: Callable[[], bool]) -> Iterator[None]:
        """Ignores an ExportError in the `with` block if `is_done` returns True.

        In this case the commit succeeded, and only the catalog's answer was lost.
        """
        try:
            yield
        except ExportError:
            if not is_done():
                raise

    def _address_of(self, path: str) -> str:
        """Returns the address by which Iceberg's metadata names a data file. path: relative to the data folder."""
        return f"{self._root}/data/{path}"

    def _path_of(self, address: str) -> str:
        """Returns the path of a data file, relative to the data folder. address: as Iceberg's metadata names it."""
        return unquote(address).removeprefix(f"{self._root}/data/")

    def _run_name(self, run_id: int | str) -> str:
        return f"{self._table_id}/{run_id}"


class IcebergTable(IcebergLog):
    """A `Table` in the format of Iceberg, in a folder."""

    def __init__(self, layout: Layout, table_id: str) -> None:
        super().__init__(layout, layout.table / "data", layout.table / "metadata")
        self._table_id, self._root = table_id, f"file://{layout.table}"
        with _told("the catalog cannot be opened"):
            self._catalog, self._identifier = open_catalog(layout)

    def prepare(self) -> None:
        make_folder(self._data)
        super().prepare()


class StoreIcebergTable(StoreFlatTable, IcebergLog):
    """A `Table` in the format of Iceberg, on a store."""

    def __init__(self, layout: Layout, store: Store, table_id: str) -> None:
        super().__init__(layout, store, f"{TABLE}/data")
        self._table_id, self._root = table_id, log_address(store)
        with _told("the catalog cannot be opened"):
            self._catalog, self._identifier = open_catalog(layout)

    def expire(self, current: Sequence[RunFile], now_s: float, keep_s: float) -> int:
        """Expires old snapshots, and then removes data files that no snapshot needs.

        Returns the number of expired snapshots and removed files.
        """
        removed = self._expire_log(now_s, keep_s)
        needed = {file.entry.path.rpartition("/")[2] for file in current} | self._names_in_log()
        own = (each.name.removeprefix(f"{self._folder}/") for each in self._store.list_objects(self._folder))
        old = [
            path
            for path in own
            if path.startswith((RUN_PREFIX, REWRITTEN_PREFIX)) and path.rpartition("/")[2] not in needed
        ]
        return removed + self._delete(old)

    def _list_metadata(self) -> Iterator[tuple[str, float]]:
        for each in self._store.list_objects(METADATA):
            yield each.name.removeprefix(f"{METADATA}/"), each.modified_us / 1e6

    def _delete_metadata(self, names: Iterable[str]) -> None:
        self._store.delete([f"{METADATA}/{name}" for name in names])


def _name_of(address: str) -> str:
    """Returns the file name, the last part of an address."""
    return unquote(address).rpartition("/")[2]


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Turns errors of `pyiceberg` and of the catalog, within the `with` block, into ExportErrors.

    what: describes the failed step, for the error message.
    """
    try:
        yield
    except SQLAlchemyError as error:
        reason = error.orig if isinstance(error, DBAPIError) else error
        raise ExportError(f"{what}: {reason}") from error
    except (ValueError, OSError, RESTError, CommitFailedException, CommitStateUnknownException) as error:
        raise ExportError(f"{what}: {one_line(error)}") from error
