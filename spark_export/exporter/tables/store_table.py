"""A table of plain Parquet files on a store.

Tasks write the files under their final names. A manifest, one numbered object of the table's log, publishes the files.
A file that no manifest names does not belong to the table. Readers get the list of files from the manifests
(`spark_export.table_files`), not from a listing of the folders.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace

from spark_export.exporter.errors import ExportError, TakenOver
from spark_export.exporter.model import FileEntry, Range, RunFile
from spark_export.exporter.runs.task import TaskSettings
from spark_export.exporter.tables.hive_names import hive_folder
from spark_export.exporter.tables.layout import ATTEMPTS, Layout, refusal_of_folder
from spark_export.exporter.tables.manifest import FENCE, REWRITE, RUN, TableFile, TableState
from spark_export.exporter.tables.manifest_log import ManifestLog
from spark_export.store.paths import FilePath, StorePath
from spark_export.store.store import Store

DATA = "data"
SWEPT_RUNS = 8
"""The number of latest runs whose folders `find_leftovers` lists in a large table, for unnamed files."""
SWEPT_FILES = 5_000
"""The number of files above which a table is large, so that `find_leftovers` lists only the latest runs."""
COPY_BYTES = 8 * 1024 * 1024


class StoreParquetTable:
    """A `Table` of plain Parquet files on a store. `layout` has only temporary files of the exporter."""

    with_stream = False
    keeps_latest_run = True

    def __init__(self, layout: Layout, store: Store, table_id: str) -> None:
        self._layout = layout
        self._store = store
        self._table_id = table_id
        self._log = ManifestLog(store, now_us=lambda: time.time_ns() // 1000)

    def prepare(self) -> None:
        self._log.load()
        self._log.check_table(self._table_id)

    @property
    def generation(self) -> int:
        """The number of the generation (version of the whole table) that readers see now."""
        return self._log.load().generation

    def refusal_of(self, stream: str) -> str | None:
        return refusal_of_folder(stream)

    def place_files(self, run_id: int, settings: TaskSettings) -> TaskSettings:
        address = str(self._store.place / run_folder(run_id))
        return replace(settings, store=address, store_options=self._store.options, hive=True)

    def arrange(self, run_id: int, entries: Sequence[FileEntry]) -> list[FileEntry]:
        """Checks that each file is on the store with its full size. Returns the entries. Raises ExportError."""
        there = self._sizes(run_id)
        for entry in entries:
            if there.get(entry.path) != entry.file_bytes:
                address = self._store.place / run_folder(run_id) / entry.path
                raise ExportError(
                    f"a task wrote {address} with {entry.file_bytes} bytes, and the store has "
                    f"{there.get(entry.path, 'no such file')}: do executors use the same store and credentials?"
                )
        return list(entries)

    def staged_whole(self, run_id: int, entries: Sequence[FileEntry]) -> bool:
        there = self._sizes(run_id)
        return all(there.get(entry.path) == entry.file_bytes for entry in entries)

    def has_run(self, run_id: int) -> bool:
        # Runs are published in the order of their numbers. The store may have a manifest whose answer was lost.
        return self._log.peek().latest_run >= run_id

    def latest_run(self) -> int:
        return self._log.state.latest_run

    def publish(self, run_id: int, entries: Sequence[FileEntry], ranges: Sequence[Range] = ()) -> None:
        added = [_table_file(RunFile(run_id, entry)) for entry in entries]
        try:
            self._log.settle()
            if not _has(self._log.state, run_id, added):
                self._append(RUN, run=run_id, ranges=tuple(ranges), add=added)
        except TakenOver:
            # The exporter that began this run may still be alive, and may have published the run just now.
            if not _has(self._log.load(), run_id, added):
                raise

    def sync(self) -> None:
        """Does nothing, because a store confirms a write only after it is durable."""

    def discard(self, run_id: int, entries: Sequence[FileEntry]) -> int:
        """Makes sure that the run is never published. Removes no file yet, and returns 0.

        `find_leftovers` finds the files after the ledger has recorded the run as abandoned. The ledger refuses this if
        another exporter has taken over the table; the files then belong to it.
        """
        if entries:
            # The exporter that began the run may be about to publish it. The fence takes the needed manifest number.
            self._append(FENCE, run=run_id)
        return 0

    def find_leftovers(self, run_id: int | None = None, entries: Sequence[FileEntry] = ()) -> list[str]:
        state, after = self._log.state, ""
        if run_id is None and len(state.files) > SWEPT_FILES:
            # Listing a large table takes many requests. Earlier calls have already found such files of old runs.
            after = f"{DATA}/run={max(0, state.latest_run - SWEPT_RUNS):06d}"
        folder = DATA if run_id is None else run_folder(run_id)
        named = {_table_file(RunFile(run_id, entry)).path for entry in entries} if run_id is not None else set()
        found = [each.name for each in self._store.list_objects(folder, after=after)]
        if all(name in named for name in found):
            return []
        state = self._log.peek()
        return [name for name in found if name not in state.files and name not in state.removed]

    def remove(self, names: Sequence[str]) -> int:
        """Deletes files by their names relative to the address of the store. Returns their number."""
        self._store.delete(names)
        expired = tuple(name for name in names if name in self._log.state.removed)
        if expired:
            # Without this manifest, the next call would find and count the files again.
            self._append(FENCE, expired=expired)
        return len(names)

    def locate(self, file: RunFile) -> FilePath:
        return StorePath(self._store.data, f"{run_folder(file.run_id)}/{file.entry.path}")

    def hides_rows(self) -> bool:
        return False

    def list_files(self) -> set[FilePath]:
        self._log.settle()
        return {StorePath(self._store.data, path) for path in self._log.state.files}

    def missing(self) -> str | None:
        """Returns the address of the table if the table has no manifest, and None if it has one."""
        return None if self._log.load().number else str(self._store.place)

    def stage_rewrite(self, generation: int, kept: Sequence[RunFile], new: Sequence[RunFile]) -> list[RunFile]:
        """Copies the new files of a rewrite to the store, under their final names. Returns all files."""
        attempts = self._layout.staging / f"rewrite-{generation:06d}" / ATTEMPTS
        made = list(kept)
        for number, file in enumerate(new):
            entry = file.entry
            unique = entry.sha256[:16]
            name = f"rewritten-{generation:06d}-{number:05d}-{unique}.parquet"
            path = f"{hive_folder(entry.stream, entry.date)}/{name}"
            in_store = f"{run_folder(file.run_id)}/{path}"
            target = self._store.data.open_output(in_store)
            with (attempts / entry.path).open("rb") as source:
                while chunk := source.read(COPY_BYTES):
                    target.write(chunk)
            self._store.data.close_output(target, in_store, entry.file_bytes)
            made.append(RunFile(file.run_id, replace(entry, path=path)))
        return made

    def rewrite(self, generation: int, before: Sequence[RunFile], after: Sequence[RunFile], expires_s: float) -> None:
        self._log.settle()
        current = self._log.state.generation
        if current == generation:
            return
        if current > generation:
            raise TakenOver(
                f"another exporter has taken over the table {self._store.place}, and rewrite {generation} is older "
                "than the table; this one publishes nothing more"
            )
        old, new = ({each.path: each for each in map(_table_file, files)} for files in (before, after))
        self._append(
            REWRITE,
            generation=generation,
            add=[file for path, file in new.items() if old.get(path) != file],
            remove=[path for path in old if path not in new],
        )

    def drop_rewrite(self, generation: int) -> None:
        self._append(FENCE)

    def expire_log(self, now_s: float, keep_s: float) -> int:
        """Does nothing: all manifests are kept."""
        return 0

    def find_expired(self, current: Sequence[RunFile], now_s: float, keep_s: float) -> list[str]:
        """Returns the names of the files in the store that were replaced at least `keep_s` seconds ago."""
        self._log.settle()
        before_us = int((now_s - keep_s) * 1e6)
        return [path for path, removed_us in self._log.state.removed.items() if removed_us <= before_us]

    def _append(self, kind: str, **fields: object) -> None:
        self._log.append(self._table_id, kind, **fields)

    def _sizes(self, run_id: int) -> dict[str, int]:
        prefix = f"{run_folder(run_id)}/"
        return {
            each.name.removeprefix(prefix): each.size_bytes for each in self._store.list_objects(prefix.rstrip("/"))
        }


def _has(state: TableState, run_id: int, added: Sequence[TableFile]) -> bool:
    return state.latest_run == run_id and all(state.files.get(file.path) == file for file in added)


def run_folder(run_id: int) -> str:
    return f"{DATA}/run={run_id:06d}"


def _table_file(file: RunFile) -> TableFile:
    fields = asdict(file.entry) | {"path": f"{run_folder(file.run_id)}/{file.entry.path}", "run": file.run_id}
    return TableFile(**fields)


def addresses(store: Store, paths: Iterable[str]) -> list[str]:
    return [str(store.place / path) for path in paths]
