"""The common part of Delta and Iceberg tables: one folder of data files, and a log that publishes them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ockam.files.durable_files import sync
from spark_export.exporter.errors import TableChanged, TakenOver
from spark_export.exporter.ledger.ledger import FIRST_GENERATION
from spark_export.exporter.model import FileEntry, Range, RunFile
from spark_export.exporter.runs.task import TaskSettings
from spark_export.exporter.tables.layout import ATTEMPTS, TREE, Layout, remove_tree, sync_tree
from spark_export.store.paths import FilePath

RUN_PREFIX, REWRITTEN_PREFIX = "run-", "rewritten-"
"""The beginnings of the names of data files: those that a run wrote, and those that a compaction or repair wrote."""


class FlatTable:
    """The base class of a `Table` with a log; a subclass writes the log.

    `publish` moves the files into the data folder, and then adds them to the log. File names contain the run's id, so
    that `discard` finds the files of a run. The libraries that write the logs do not sync them, so this class does.
    """

    def __init__(self, layout: Layout, data: Path, log: Path) -> None:
        self._layout = layout
        self._data = data
        self._log = log

    @property
    def generation(self) -> int:
        return self._read_generation() or FIRST_GENERATION

    def refusal_of(self, stream: str) -> str | None:
        """Returns None: the name is a value in the table and not part of a path."""
        return None

    def place_files(self, run_id: int, settings: TaskSettings) -> TaskSettings:
        return settings

    def find_leftovers(self, run_id: int | None = None, entries: Sequence[FileEntry] = ()) -> list[str]:
        return []

    def remove(self, names: Sequence[str]) -> int:
        """Removes files by their names relative to the folder of the table. Returns their number."""
        for name in names:
            (self._layout.table / name).unlink(missing_ok=True)
        return len(names)

    def arrange(self, run_id: int, entries: Sequence[FileEntry]) -> list[FileEntry]:
        staging = self._layout.run_staging(run_id)
        (staging / TREE).mkdir()
        arranged = []
        for number, entry in enumerate(entries):
            name = f"{_prefix(run_id)}{number:05d}.parquet"
            (staging / ATTEMPTS / entry.path).rename(staging / TREE / name)
            arranged.append(replace(entry, path=name))
        sync_tree(staging / TREE)
        return arranged

    def staged_whole(self, run_id: int, entries: Sequence[FileEntry]) -> bool:
        """Returns whether each file is complete, in the data folder or, after a crash in `publish`, in the staging
        folder."""
        return all(self._find(run_id, entry) is not None for entry in entries)

    def publish(self, run_id: int, entries: Sequence[FileEntry], ranges: Sequence[Range] = ()) -> None:
        for entry in entries:
            found = self._find(run_id, entry)
            assert found is not None
            if found.parent != self._data:
                found.rename(self._data / entry.path)
        sync(self._data)
        known = set(self._log.iterdir())
        self._commit(run_id, entries)
        _sync_files(path for path in self._log.iterdir() if path not in known)
        sync(self._log)

    def sync(self) -> None:
        _sync_files(self._log.iterdir())
        for folder in {self._log, self._data}:
            sync(folder)

    def discard(self, run_id: int, entries: Sequence[FileEntry]) -> int:
        moved = list(self._data.glob(f"{_prefix(run_id)}*.parquet"))
        for path in moved:
            path.unlink()
        return len(moved) + remove_tree(self._layout.run_staging(run_id))

    def stage_rewrite(self, generation: int, kept: Sequence[RunFile], new: Sequence[RunFile]) -> list[RunFile]:
        staging = self._layout.rewrite_staging(generation)
        (staging / TREE).mkdir()
        made = list(kept)
        for number, file in enumerate(new):
            name = f"{_rewritten(generation)}{number:05d}.parquet"
            (staging / ATTEMPTS / file.entry.path).rename(staging / TREE / name)
            made.append(RunFile(file.run_id, replace(file.entry, path=name)))
        sync_tree(staging / TREE)
        return made

    def rewrite(self, generation: int, before: Sequence[RunFile], after: Sequence[RunFile], expires_s: float) -> None:
        if self.generation == generation:
            self.sync()
            return
        kept = {file.entry.path for file in before} & {file.entry.path for file in after}
        for file in after:
            staged = self._layout.rewrite_staging(generation) / TREE / file.entry.path
            if file.entry.path not in kept and staged.exists():
                staged.rename(self._data / file.entry.path)
        sync(self._data)
        old = [file for file in before if file.entry.path not in kept]
        for file in old:
            # A replaced file never changes, so its modification time stores when `find_expired` may return the file.
            with suppress(FileNotFoundError):
                os.utime(self._data / file.entry.path, (expires_s, expires_s))
        known = set(self._log.iterdir())
        self._commit_rewrite(generation, before, after)
        _sync_files(path for path in self._log.iterdir() if path not in known)
        sync(self._log)

    def drop_rewrite(self, generation: int) -> None:
        # A lock protects the folder, so no other exporter can publish the rewrite, and no fence is needed.
        for path in self._data.glob(f"{_rewritten(generation)}*.parquet"):
            path.unlink()
        remove_tree(self._layout.rewrite_staging(generation))

    def locate(self, file: RunFile) -> FilePath:
        return self._path_to(file.entry.path)

    def find_expired(self, current: Sequence[RunFile], now_s: float, keep_s: float) -> list[str]:
        needed = {file.entry.path for file in current} | self._names_in_log()
        old = [
            path
            for path in self._data.glob("*.parquet")
            if path.name.startswith((RUN_PREFIX, REWRITTEN_PREFIX))
            and path.name not in needed
            and path.stat().st_mtime <= now_s
        ]
        return [str(path.relative_to(self._layout.table)) for path in old]

    def _path_to(self, path: str) -> FilePath:
        return self._data / path

    def latest_run(self) -> int:
        raise NotImplementedError

    def _begin(self) -> Any:
        raise NotImplementedError

    def _read_generation(self) -> int | None:
        """Returns the number of the latest compaction or repair in the table's log, or None."""
        raise NotImplementedError

    def expire_log(self, now_s: float, keep_s: float) -> int:
        raise NotImplementedError

    def _commit_rewrite(self, generation: int, before: Sequence[RunFile], after: Sequence[RunFile]) -> None:
        """Replaces the files `before` by the files `after` in one entry of the log. Raises TakenOver, TableChanged."""
        raise NotImplementedError

    def _changes(
        self, listed: Collection[str], before: Sequence[RunFile], after: Sequence[RunFile]
    ) -> tuple[list[RunFile], list[RunFile]]:
        """Returns the files that a rewrite removes from the log, and the files that it adds.

        Raises TableChanged if `listed`, the files of the table, are others than `before`.
        """
        known, kept = {file.entry.path for file in before}, {file.entry.path for file in after}
        if other := sorted(known ^ set(listed)):
            raise TableChanged(
                f"another program changed the table meanwhile, first {self._path_to(other[0])}; the table is as that "
                "program left it"
            )
        removed = [file for file in before if file.entry.path not in kept]
        return removed, [file for file in after if file.entry.path not in known]

    def _check_generation(self, generation: int, current: int, fenced: int) -> None:
        """Raises TakenOver if this rewrite is not later than the latest published and the latest forbidden one."""
        if current > generation or fenced >= generation:
            raise TakenOver(
                f"another exporter has taken over the table {self._path_to('')}, and has dropped rewrite {generation} "
                "or published a later one; this one publishes nothing more"
            )

    def _names_in_log(self) -> set[str]:
        """Returns the names of all data files that belong to a version of the table in the log."""
        raise NotImplementedError

    def _commit(self, run_id: int, entries: Sequence[FileEntry]) -> None:
        """Adds one entry with the files and the run's id to the table's log, unless the log already has this entry.

        Raises TakenOver if another exporter has forbidden this run (`_fence`) or published other files for it.
        """
        raise NotImplementedError

    def _fence(self, *, run_id: int = 0, generation: int = 0) -> None:
        """Forbids the publication of an abandoned run or a dropped rewrite, by an entry without files, the fence.

        Another exporter's commit of the run or rewrite then fails, even if it has already begun. 0 stands for none.
        """
        raise NotImplementedError

    def _find(self, run_id: int, entry: FileEntry) -> Path | None:
        """Returns the path of the complete file, in the data folder or in the staging folder, or None."""
        for folder in (self._data, self._layout.run_staging(run_id) / TREE):
            path = folder / entry.path
            if path.is_file() and path.stat().st_size == entry.file_bytes:
                return path
        return None


def _sync_files(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_file():
            sync(path)


def _prefix(run_id: int) -> str:
    return f"{RUN_PREFIX}{run_id:06d}-"


def _rewritten(generation: int) -> str:
    return f"{REWRITTEN_PREFIX}{generation:06d}-"
