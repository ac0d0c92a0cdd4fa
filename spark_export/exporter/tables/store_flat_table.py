"""The common part of Delta and Iceberg tables on stores.

Tasks write the data files under their final names. A commit adds the files to the table. A commit to Delta is a new
object in the log, which only one of several writers can create. A commit to Iceberg goes through the catalog. A file
that no commit names does not belong to the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spark_export.exporter.errors import ExportError
from spark_export.exporter.model import FileEntry, Range, RunFile
from spark_export.exporter.runs.task import TaskSettings
from spark_export.exporter.tables.flat_table import RUN_PREFIX, FlatTable
from spark_export.exporter.tables.layout import ATTEMPTS, TABLE, Layout
from spark_export.exporter.tables.store_table import COPY_BYTES
from spark_export.store.paths import FilePath, StorePath
from spark_export.store.store import Store


class StoreFlatTable(FlatTable):
    """The base class of a `Table` on a store with a log; a subclass writes the log.

    While this exporter is paused, another exporter can take over the table. After that, this exporter must publish
    nothing more. Two rules ensure this:

    - Only the owner of the ledger (the record of all runs) can set a run to the state written.
    - If this exporter has left a run in the state written, the other exporter publishes this run itself, or forbids its
      publication in the table's log (`discard`).
    """

    def __init__(self, layout: Layout, store: Store, data: str) -> None:
        """Takes the store of the table. data: the folder of the data files, relative to the address of the store."""
        super().__init__(layout, layout.table, layout.table)
        self._store = store
        self._folder = data

    def place_files(self, run_id: int, settings: TaskSettings) -> TaskSettings:
        address = str(self._store.place / f"{self._folder}/{_run_folder(run_id)}")
        return replace(settings, store=address, store_options=self._store.options)

    def arrange(self, run_id: int, entries: Sequence[FileEntry]) -> list[FileEntry]:
        """Raises ExportError if a file is incomplete on the store. Returns them with paths below the data folder."""
        arranged = [replace(entry, path=f"{_run_folder(run_id)}/{entry.path}") for entry in entries]
        there = self._sizes(_run_folder(run_id))
        for entry in arranged:
            if there.get(entry.path) != entry.file_bytes:
                raise ExportError(
                    f"a task wrote {self._path_to(entry.path)} with {entry.file_bytes} bytes, and the store has "
                    f"{there.get(entry.path, 'no such file')}: do executors use the same store and credentials?"
                )
        return arranged

    def staged_whole(self, run_id: int, entries: Sequence[FileEntry]) -> bool:
        there = self._sizes(_run_folder(run_id))
        return all(there.get(entry.path) == entry.file_bytes for entry in entries)

    def publish(self, run_id: int, entries: Sequence[FileEntry], ranges: Sequence[Range] = ()) -> None:
        self._commit(run_id, entries)

    def sync(self) -> None:
        """Does nothing, because a store confirms a write only after it is durable."""

    def discard(self, run_id: int, entries: Sequence[FileEntry]) -> int:
        """Makes sure that no exporter publishes the run from now on. Removes no file yet, and returns 0.

        Another exporter has perhaps taken over the table and published the run before this call.
        """
        if entries:
            self._fence(run_id=run_id)
        return 0

    def find_leftovers(self, run_id: int | None = None, entries: Sequence[FileEntry] = ()) -> list[str]:
        """Returns the names of the files of failed tasks of a run, or of all runs after the latest published run."""
        if run_id is not None:
            named = {entry.path for entry in entries}
            return [f"{self._folder}/{path}" for path in self._sizes(_run_folder(run_id)) if path not in named]
        found = [each.name for each in self._store.list_objects(self._folder)]
        latest, named = self.latest_run(), self._names_in_log()
        abandoned = []
        for name in found:
            path = name.removeprefix(f"{self._folder}/")
            run = path.partition("/")[0].removeprefix(RUN_PREFIX)
            is_own = path.startswith(RUN_PREFIX) and run.isdigit()
            if is_own and int(run) > latest and path.rpartition("/")[2] not in named:
                abandoned.append(name)
        return abandoned

    def remove(self, names: Sequence[str]) -> int:
        """Deletes files by their names relative to the address of the store. Returns their number."""
        self._store.delete(names)
        return len(names)

    def stage_rewrite(self, generation: int, kept: Sequence[RunFile], new: Sequence[RunFile]) -> list[RunFile]:
        """Copies the new files of a rewrite to the store, under their final names. Returns all files."""
        attempts = self._layout.rewrite_staging(generation) / ATTEMPTS
        made = list(kept)
        for number, file in enumerate(new):
            path = f"rewritten-{generation:06d}-{number:05d}-{file.entry.sha256[:16]}.parquet"
            in_store = f"{self._folder}/{path}"
            target = self._store.data.open_output(in_store)
            with (attempts / file.entry.path).open("rb") as source:
                while chunk := source.read(COPY_BYTES):
                    target.write(chunk)
            self._store.data.close_output(target, in_store, file.entry.file_bytes)
            made.append(RunFile(file.run_id, replace(file.entry, path=path)))
        return made

    def rewrite(self, generation: int, before: Sequence[RunFile], after: Sequence[RunFile], expires_s: float) -> None:
        self._commit_rewrite(generation, before, after)

    def drop_rewrite(self, generation: int) -> None:
        """Forbids the publication of a rewrite, since the exporter that began it is perhaps only paused."""
        self._fence(generation=generation)

    def _path_to(self, path: str) -> FilePath:
        return StorePath(self._store.data, f"{self._folder}/{path}")

    def _sizes(self, folder: str) -> dict[str, int]:
        found = self._store.list_objects(f"{self._folder}/{folder}")
        return {each.name.removeprefix(f"{self._folder}/"): each.size_bytes for each in found}


def log_address(store: Store) -> str:
    return str(store.place / TABLE)


def _run_folder(run_id: int) -> str:
    return f"{RUN_PREFIX}{run_id:06d}"
