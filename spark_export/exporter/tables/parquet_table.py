"""A table of plain Parquet files, in folders that any Parquet reader can read.

FOLDER/messages is a symbolic link to the current generation, a folder with one version of the whole table. Each run
adds one subfolder to this generation, by one atomic rename. A compaction builds another generation and changes the link
to it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ockam.files.durable_files import make_folder, rename_durably, sync
from spark_export.exporter.errors import ExportError
from spark_export.exporter.ledger.ledger import FIRST_GENERATION
from spark_export.exporter.model import FileEntry, Range, RunFile
from spark_export.exporter.runs.task import TaskSettings
from spark_export.exporter.tables.hive_names import hive_folder
from spark_export.exporter.tables.layout import (
    ATTEMPTS,
    RUN_FOLDER_PREFIX,
    TREE,
    Layout,
    point_to,
    refusal_of_folder,
    remove_tree,
    sync_tree,
)
from spark_export.exporter.tables.table_link import read_link
from spark_export.store.paths import FilePath


class ParquetTable:
    with_stream = False
    keeps_latest_run = False

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def missing(self) -> str | None:
        return None if os.path.lexists(self._layout.table) else str(self._layout.table)

    def prepare(self) -> None:
        first = self._layout.generation(FIRST_GENERATION)
        if not os.path.lexists(self._layout.table):
            make_folder(first)
            point_to(self._layout.table, first)

    @property
    def generation(self) -> int:
        """The number of the generation that readers see. Raises ExportMismatch if the link that names it is lost."""
        return read_link(self._layout)

    def refusal_of(self, stream: str) -> str | None:
        return refusal_of_folder(stream)

    def place_files(self, run_id: int, settings: TaskSettings) -> TaskSettings:
        return settings

    def find_leftovers(self, run_id: int | None = None, entries: Sequence[FileEntry] = ()) -> list[str]:
        return []

    def remove(self, names: Sequence[str]) -> int:
        """Removes generations (old versions of the table) by the names of their folders. Returns their number."""
        for name in names:
            remove_tree(self._layout.generations / name)
        return len(names)

    def arrange(self, run_id: int, entries: Sequence[FileEntry]) -> list[FileEntry]:
        return arrange_tree(self._layout.run_staging(run_id), entries, "part")

    def staged_whole(self, run_id: int, entries: Sequence[FileEntry]) -> bool:
        return tree_is_whole(self._layout.run_staging(run_id) / TREE, entries)

    def has_run(self, run_id: int) -> bool:
        return self._run_folder(run_id).is_dir()

    def latest_run(self) -> int:
        folders = self._layout.table.resolve().glob(f"{RUN_FOLDER_PREFIX}*")
        return max((int(folder.name.removeprefix(RUN_FOLDER_PREFIX)) for folder in folders), default=0)

    def publish(self, run_id: int, entries: Sequence[FileEntry], ranges: Sequence[Range] = ()) -> None:
        rename_durably(self._layout.run_staging(run_id) / TREE, self._run_folder(run_id))

    def sync(self) -> None:
        sync(self._layout.table.resolve())

    def stage_rewrite(self, generation: int, kept: Sequence[RunFile], new: Sequence[RunFile]) -> list[RunFile]:
        """Makes the folder of a generation. Retained files are linked into it; new files are moved."""
        folder, attempts = self._layout.generation(generation), self._layout.rewrite_staging(generation) / ATTEMPTS
        folder.mkdir()
        made = list(kept)
        for file in kept:
            link_or_copy(self.locate(file), folder / run_folder(file.run_id) / file.entry.path)
        for number, file in enumerate(new):
            entry = file.entry
            path = Path(hive_folder(entry.stream, entry.date)) / f"rewritten-{generation:06d}-{number:05d}.parquet"
            target = folder / run_folder(file.run_id) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            (attempts / entry.path).rename(target)
            made.append(RunFile(file.run_id, replace(entry, path=str(path))))
        sync_tree(folder)
        sync(folder.parent)
        return made

    def rewrite(self, generation: int, before: Sequence[RunFile], after: Sequence[RunFile], expires_s: float) -> None:
        old, new = self._layout.table.resolve(), self._layout.generation(generation)
        if old != new:
            # The old folder never changes again, so its modification time stores when `find_expired` may return it.
            os.utime(old, (expires_s, expires_s))
            point_to(self._layout.table, new)

    def drop_rewrite(self, generation: int) -> None:
        remove_tree(self._layout.generation(generation))
        remove_tree(self._layout.rewrite_staging(generation))

    def expire_log(self, now_s: float, keep_s: float) -> int:
        """Does nothing: the table has no log."""
        return 0

    def find_expired(self, current: Sequence[RunFile], now_s: float, keep_s: float) -> list[str]:
        seen = self.generation
        old = [self._layout.generation(number) for number in self._layout.list_generations() if number < seen]
        return [folder.name for folder in old if folder.stat().st_mtime <= now_s]

    def discard(self, run_id: int, entries: Sequence[FileEntry]) -> int:
        return remove_tree(self._layout.run_staging(run_id))

    def locate(self, file: RunFile) -> Path:
        return self._run_folder(file.run_id) / file.entry.path

    def hides_rows(self) -> bool:
        return False

    def list_files(self) -> set[FilePath]:
        return set(self._layout.table.resolve().rglob("*.parquet"))

    def _run_folder(self, run_id: int) -> Path:
        return self._layout.table.resolve() / run_folder(run_id)


def run_folder(run_id: int) -> str:
    return f"{RUN_FOLDER_PREFIX}{run_id:06d}"


def arrange_tree(staging: Path, entries: Sequence[FileEntry], prefix: str) -> list[FileEntry]:
    """Moves the files from a run's `attempts` folder to its `tree` folder. Returns them with paths relative to `tree`.

    Other files, such as those of failed tasks, are not moved. Raises ExportError if a file is missing.
    """
    tree = staging / TREE
    tree.mkdir()
    arranged = []
    for number, entry in enumerate(sorted(entries, key=lambda each: (each.stream, each.era, each.date, each.path))):
        path = Path(hive_folder(entry.stream, entry.date)) / f"{prefix}-{number:05d}.parquet"
        target = tree / path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            (staging / ATTEMPTS / entry.path).rename(target)
        except OSError as error:
            raise ExportError(
                f"a task wrote {entry.path}, and it is not in {staging / ATTEMPTS} ({error.strerror}): "
                "does every executor see the folder under this path?"
            ) from error
        arranged.append(replace(entry, path=str(path)))
    sync_tree(tree)
    return arranged


def tree_is_whole(tree: Path, entries: Sequence[FileEntry]) -> bool:
    there = {str(path.relative_to(tree)): path.stat().st_size for path in tree.rglob("*") if path.is_file()}
    return tree.is_dir() and there == {entry.path: entry.file_bytes for entry in entries}


def link_or_copy(source: Path, target: Path) -> None:
    """Makes `target` a hard link to the file `source`, and creates missing parent folders."""
    target.parent.mkdir(parents=True, exist_ok=True)
    os.link(source, target)
