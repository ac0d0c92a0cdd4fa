"""The common part of tables with a log of their own: all files lie in one folder, and an entry in the log publishes
them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from spark_export.exporter.layout import ATTEMPTS, TREE, Layout, remove_tree, sync_tree
from spark_export.exporter.ledger import FIRST_GENERATION
from spark_export.exporter.model import FileEntry
from storage.durable_files import sync


class FlatTable:
    """A `Table` whose log is written by a subclass. data: the folder of the files. log: the folder of the log.

    Files are moved to their folder before the log names them. File names contain the run's number, so that files which
    a crash left behind are found. The libraries that write the logs do not sync them, so this class does.
    """

    generation = FIRST_GENERATION

    def __init__(self, layout: Layout, data: Path, log: Path) -> None:
        self._layout = layout
        self._data = data
        self._log = log

    def refusal_of(self, stream: str) -> str | None:
        """No stream is refused: a stream's name is a value in the log, not part of a path."""
        return None

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
        """Whether all files are whole, in the table's folder or in staging: a crash between moving them leaves them in
        both places."""
        return all(self._find(run_id, entry) is not None for entry in entries)

    def publish(self, run_id: int, entries: Sequence[FileEntry]) -> None:
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

    def _commit(self, run_id: int, entries: Sequence[FileEntry]) -> None:
        """Writes one entry to the log, which names the files and the run."""
        raise NotImplementedError

    def _find(self, run_id: int, entry: FileEntry) -> Path | None:
        """The place of the whole file: in the table's folder, or still in staging."""
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
    return f"run-{run_id:06d}-"
