"""An Iceberg table, written without Spark's connector. The exporter writes the data files, `pyiceberg` the snapshots.

Each run is one snapshot. The summary of the snapshot contains the run's id, so the snapshots show which runs the table
has. The catalog is an SQLite file in the export's folder. Iceberg stores absolute paths, so an export folder with an
Iceberg table cannot be moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from spark_export.exporter.errors import ExportError, ExtraMissing
from spark_export.exporter.flat_table import FlatTable
from spark_export.exporter.layout import Layout
from spark_export.exporter.model import FileEntry, RunFile
from spark_export.exporter.write_files import ERA, FILE_SCHEMA_WITH_STREAM
from spark_export.store.paths import FilePath
from storage.durable_files import make_folder

try:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, NoSuchTableError
    from pyiceberg.io.pyarrow import parquet_files_to_data_files
    from pyiceberg.transforms import DayTransform, IdentityTransform
    from pyiceberg.types import IntegerType
except ModuleNotFoundError as error:
    raise ExtraMissing(
        f"the format iceberg needs the extra `iceberg` ({error.name}): pip install 'stream-node[iceberg]'"
    ) from error

CATALOG_FILE = "catalog.sqlite"
NAMESPACE, NAME = "export", "messages"
RUN_PROPERTY = "stream-node.run"
"""The key in a snapshot's summary under which the export's id and the run's id are stored."""

GENERATION_PROPERTY = "stream-node.generation"
"""The property of the table under which the export's id and the number of the latest rewrite are stored."""


class IcebergTable(FlatTable):
    """A `Table` in the format of Iceberg, partitioned by stream and day."""

    with_stream = True
    keeps_latest_run = False
    """Other tools may expire the snapshots that name the runs."""

    def __init__(self, layout: Layout, table_id: str) -> None:
        super().__init__(layout, layout.table / "data", layout.table / "metadata")
        self._table_id = table_id
        with _told(f"the catalog {CATALOG_FILE} cannot be opened"):
            self._catalog = SqlCatalog(
                "stream-node", uri=f"sqlite:///{layout.folder / CATALOG_FILE}", warehouse=f"file://{layout.folder}"
            )

    def missing(self) -> str | None:
        with _told("the catalog cannot be read"):
            try:
                self._open()
            except NoSuchTableError:
                return f"the table in {self._layout.folder / CATALOG_FILE}"
        return None

    def prepare(self) -> None:
        make_folder(self._data)
        with _told("the table cannot be made"):
            self._catalog.create_namespace_if_not_exists(NAMESPACE)
            try:
                self._ensure_era()
                return
            except NoSuchTableError:
                made = self._catalog.create_table(
                    (NAMESPACE, NAME), FILE_SCHEMA_WITH_STREAM, location=f"file://{self._layout.table}"
                )
            with made.update_spec() as spec:
                spec.add_field("stream", IdentityTransform(), "stream_value")
                spec.add_field("timestamp", DayTransform(), "day")
        self.sync()

    def _ensure_era(self) -> None:
        """Adds the column `era` to a table of an earlier version; its older rows have null there."""
        table = self._open()
        if ERA not in table.schema().column_names:
            with table.update_schema() as update:
                update.add_column(ERA, IntegerType())
            self.sync()

    def has_run(self, run_id: int) -> bool:
        return run_id in self._runs()

    def latest_run(self) -> int:
        return max(self._runs(), default=0)

    def list_files(self) -> set[FilePath]:
        return {_path_of(task.file.file_path) for task in self._open().scan().plan_files()}

    def locate(self, file: RunFile) -> Path:
        return self._data / file.entry.path

    def _commit(self, run_id: int, entries: Sequence[FileEntry]) -> None:
        paths = [f"file://{self._data / entry.path}" for entry in entries]
        with _told(f"the snapshot of run {run_id} failed, the next run tries again"):
            self._open().add_files(paths, snapshot_properties={RUN_PROPERTY: self._run_name(run_id)})

    def _commit_rewrite(self, generation: int, old: Sequence[RunFile], new: Sequence[RunFile]) -> None:
        table = self._open()
        replaced = {f"file://{self._data / file.entry.path}" for file in old}
        paths = [f"file://{self._data / file.entry.path}" for file in new]
        properties = {RUN_PROPERTY: self._run_name(self.latest_run())}
        with _told(f"the snapshot of rewrite {generation} failed, the next run tries again"):
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
        """Expires the snapshots that were replaced `keep_s` ago, and removes manifests that no snapshot needs."""
        with _told("old snapshots cannot be expired"):
            table = self._open()
            before = len(table.snapshots())
            # A snapshot is read from its own beginning to the beginning of the next one.
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
        """Removes manifests, lists of manifests and metadata files that nothing needs since the time `before_s`."""
        needed = {table.metadata_location}
        for snapshot in table.snapshots():
            needed.add(snapshot.manifest_list)
            needed.update(manifest.manifest_path for manifest in snapshot.manifests(table.io))
        names = {_path_of(each).name for each in needed}
        removed = 0
        for path in self._log.iterdir():
            if path.name not in names and path.suffix in (".avro", ".json") and path.stat().st_mtime <= before_s:
                path.unlink()
                removed += 1
        return removed

    def _names_in_log(self) -> set[str]:
        table, names = self._open(), set()
        for snapshot in table.snapshots():
            for manifest in snapshot.manifests(table.io):
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                names |= {_path_of(entry.data_file.file_path).name for entry in entries}
        return names

    def _open(self) -> Any:
        return self._catalog.load_table((NAMESPACE, NAME))

    def _runs(self) -> set[int]:
        """Returns the ids of this export's runs that have a snapshot."""
        try:
            with _told("the table cannot be read"):
                snapshots = self._open().snapshots()
        except NoSuchTableError:
            return set()
        names = [(each.summary.get(RUN_PROPERTY) or "") for each in snapshots if each.summary is not None]
        own = self._run_name("")
        return {int(name.removeprefix(own)) for name in names if name.startswith(own)}

    def _run_name(self, run_id: int | str) -> str:
        return f"{self._table_id}/{run_id}"


def _path_of(address: str) -> Path:
    """Returns the path of an address in the table's metadata."""
    return Path(unquote(urlparse(address).path))


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
    except (ValueError, CommitFailedException, CommitStateUnknownException) as error:
        raise ExportError(f"{what}: {error}") from error
