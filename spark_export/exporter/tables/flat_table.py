"""The common part of Delta and Iceberg tables.

All data files are in one folder. An entry in the table's log makes the files of a run visible to readers.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_export.exporter.errors import TableChanged, TakenOver
from spark_export.exporter.ledger.ledger import FIRST_GENERATION
from spark_export.exporter.model import FileEntry, Range, RunFile
from spark_export.exporter.runs.task import TaskSettings
from spark_export.exporter.tables.layout import ATTEMPTS, TREE, Layout, remove_tree, sync_tree
from spark_export.store.paths import FilePath
from stream_storage.durable_files import sync

RUN_PREFIX, REWRITTEN_PREFIX = "run-", "rewritten-"
"""The beginnings of the names of data files: those that a run wrote, and those that a compaction or repair wrote."""


class FlatTable:
    """The base class of a `Table` with a log; a subclass writes the log.

    `publish` moves the files into the data folder, and then adds them to the log. File names contain the run's id, so
    that `discard` finds the files of a run. The libraries that write the logs do not sync them, so this class does.

    data: the folder of the data files.
    log: the folder of the log.
    """

    def __init__(self, layout: Layout, data: Path, log: Path) -> None:
        self._layout = layout
        self._data = data
        self._log = log

    @property
    def generation(self) -> int:
        """The number of the generation (version of the whole table) that readers see.

        Each compaction or repair makes a new generation.
        """
        return self._read_generation() or FIRST_GENERATION

    def refusal_of(self, stream: str) -> str | None:
        """Returns None: every stream name is allowed, since the name is a value in the table and not part of a path."""
        return None

    def place_files(self, run_id: int, settings: TaskSettings) -> TaskSettings:
        return settings

    def find_leftovers(self, run_id: int | None = None, entries: Sequence[FileEntry] = ()) -> list[str]:
        return []

    def remove(self, names: Sequence[str]) -> int:
        """Removes files. Returns the number of removed files.

        names: relative to the folder of the table.
        """
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
        """Returns whether each file exists with its full size, in the table's data folder or in the staging folder.

        A crash in `publish` can leave some files in the data folder and the others in the staging folder.
        """
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
        """Returns the path of a data file. path: relative to the data folder."""
        return self._data / path

    def latest_run(self) -> int:
        """Returns the highest id of a published run; 0 if no run is published."""
        raise NotImplementedError

    def _begin(self) -> Any:
        """Opens the table for a commit. The commit fails if another exporter has called `_fence` meanwhile."""
        raise NotImplementedError

    def _read_generation(self) -> int | None:
        """Returns the number of the latest compaction or repair in the table's log, or None if there was none."""
        raise NotImplementedError

    def expire_log(self, now_s: float, keep_s: float) -> int:
        raise NotImplementedError

    def _commit_rewrite(self, generation: int, before: Sequence[RunFile], after: Sequence[RunFile]) -> None:
        """Adds one entry to the table's log, which replaces the files `before` by the files `after`.

        Raises TakenOver and TableChanged as `Table.rewrite` does, after checking the state of the table to which the
        entry is added.
        """
        raise NotImplementedError

    def _changes(
        self, listed: Collection[str], before: Sequence[RunFile], after: Sequence[RunFile]
    ) -> tuple[list[RunFile], list[RunFile]]:
        """Returns the files that a rewrite removes from the log, and the files that it adds.

        Raises TableChanged if the table has other files than `before`.

        listed: the paths of all files that the table lists, relative to the data folder.
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
        """Raises TakenOver if the rewrite with the number `generation` must not be published any more.

        current: the latest published rewrite.
        fenced: the latest rewrite that `_fence` has forbidden.
        """
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

        If another exporter still tries to publish the run or rewrite, its commit fails, even if it has already begun.

        run_id, generation: the number of the run or rewrite; 0 for none.
        """
        raise NotImplementedError

    def _find(self, run_id: int, entry: FileEntry) -> Path | None:
        """Returns the path of the file, in the table's data folder or in the staging folder of the run.

        Returns None if neither folder has the file with its full size.
        """
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
