"""An Iceberg table, written without Spark's connector. The exporter writes the data files, `pyiceberg` the snapshots.

Each run is one snapshot. The summary of the snapshot contains the run's id, so the snapshots show which runs the table
has. The catalog is an SQLite file in the export's folder. Iceberg stores absolute paths, so an export folder with an
Iceberg table cannot be moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from spark_export.exporter.errors import ExportError, ExtraMissing
from spark_export.exporter.flat_table import FlatTable
from spark_export.exporter.layout import Layout
from spark_export.exporter.ledger import RunFile
from spark_export.exporter.model import FileEntry
from spark_export.exporter.write_files import ERA, FILE_SCHEMA_WITH_STREAM
from storage.durable_files import make_folder

try:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, NoSuchTableError
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


class IcebergTable(FlatTable):
    """A `Table` in the format of Iceberg, partitioned by stream and day."""

    with_stream = True

    def __init__(self, layout: Layout, table_id: str) -> None:
        super().__init__(layout, layout.table / "data", layout.table / "metadata")
        self._table_id = table_id
        with _told(f"the catalog {CATALOG_FILE} cannot be opened"):
            self._catalog = SqlCatalog(
                "stream-node", uri=f"sqlite:///{layout.folder / CATALOG_FILE}", warehouse=f"file://{layout.folder}"
            )

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

    def list_files(self) -> set[Path]:
        return {Path(unquote(urlparse(task.file.file_path).path)) for task in self._open().scan().plan_files()}

    def locate(self, file: RunFile) -> Path:
        return self._data / file.entry.path

    def _commit(self, run_id: int, entries: Sequence[FileEntry]) -> None:
        paths = [f"file://{self._data / entry.path}" for entry in entries]
        with _told(f"the snapshot of run {run_id} failed, the next run tries again"):
            self._open().add_files(paths, snapshot_properties={RUN_PROPERTY: self._run_name(run_id)})

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
