"""The paths of an export's files, and the file operations that must be atomic or durable.

FOLDER/messages             the table: for plain Parquet a link to the current generation
FOLDER/generations/000001/run=000007/stream=orders/date=2026-11-21/part-00000.parquet
FOLDER/staging/run-000008/  files of a run that are not published
FOLDER/ledger.sqlite, FOLDER/exporter.lock
"""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ockam.files.durable_files import give_to_folder, give_tree, make_folder, rename_durably, sync
from spark_export.exporter.errors import ExportError, ExportInUse, ExportMismatch
from spark_export.exporter.tables.hive_names import stream_folder
from spark_export.store.errors import PlaceRefused
from spark_export.store.place import parse_place

if TYPE_CHECKING:
    from spark_export.store.store import Store

TABLE, GENERATIONS, STAGING = "messages", "generations", "staging"
LEDGER, LOCK = "ledger.sqlite", "exporter.lock"
ATTEMPTS, TREE = "attempts", "tree"
"""The folders in a run's staging folder: tasks write into ATTEMPTS, and the run moves the files to TREE."""
RUN_FOLDER_PREFIX = "run="
"""The prefix of the name of a run's folder in a generation (version of the table)."""
NAME_BYTES_MAX = 255
"""The largest size of a file or folder name, in bytes, on every usual file system."""
REMOVE_ATTEMPTS_MAX = 20


class Layout:
    """The paths of one export. folder: the export folder; every executor must reach this folder under the same path."""

    def __init__(self, folder: Path, store: Store | None = None) -> None:
        """Takes the folder of the export. With a store, it has only temporary files. Raises PlaceRefused."""
        place = parse_place(folder)
        if not place.is_local:
            raise PlaceRefused(f"{folder} is the address of a store, not a folder")
        self.folder = place.folder
        self.store = store
        self.place = place if store is None else store.place
        self.table = self.folder / TABLE
        self.ledger = self.folder / LEDGER
        self.staging = self.folder / STAGING
        self.generations = self.folder / GENERATIONS

    def check_ledger(self) -> None:
        """Raises ExportMismatch if the folder has a table but no ledger: a new ledger would not know the table's
        messages."""
        if not self.ledger.exists() and self.has_table():
            raise ExportMismatch(
                f"{self.folder} holds a table, and {LEDGER} is missing: put it back, name the table's ledger by "
                "--ledger if it is elsewhere, or export into another folder"
            )

    def has_table(self) -> bool:
        """Returns whether the folder has a table, or at least the files of a run. The link `table` may be lost."""
        runs = self.generations.glob(f"*/{RUN_FOLDER_PREFIX}*")
        return os.path.lexists(self.table) or any(runs)

    def make(self) -> None:
        """Creates the missing folders of the export. Raises ExportError."""
        try:
            for folder in (self.folder, self.staging, self.generations):
                make_folder(folder)
        except OSError as error:
            raise ExportError(f"cannot write in {self.folder}: {error.strerror or error}") from error

    def generation(self, number: int) -> Path:
        return self.generations / f"{number:06d}"

    def list_generations(self) -> list[int]:
        if not self.generations.is_dir():
            return []
        return sorted(int(path.name) for path in self.generations.iterdir() if path.name.isdigit() and path.is_dir())

    def run_staging(self, run_id: int) -> Path:
        return self.staging / f"run-{run_id:06d}"

    def rewrite_staging(self, generation: int) -> Path:
        return self.staging / f"rewrite-{generation:06d}"

    def attempts(self, run_id: int) -> Path:
        return self.run_staging(run_id) / ATTEMPTS


class ExportLock:
    """The lock of an export folder (`flock`), taken by the constructor. Raises ExportInUse.

    The end of the `with` block, or the death of the process, releases the lock. What the superuser has made in the
    folder of an export belongs to the owner of the folder from then on.
    """

    def __init__(self, folder: Path, name: str = LOCK) -> None:
        self._path = folder / name
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        give_to_folder(self._file, folder)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(self._file, 32, 0).decode(errors="replace").strip()
            os.close(self._file)
            raise ExportInUse(f"{folder} is in use by another exporter (process {owner or 'unknown'})") from error
        # Only the error message of another exporter uses this text. On a full disk the text may be missing.
        with suppress(OSError):
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, b"%d\n" % os.getpid(), 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The libraries of tables, and tasks in other processes, have made files of this user.
        if self._path.name == LOCK:
            give_tree(self._path.parent)
        os.close(self._file)


def refusal_of_folder(stream: str) -> str | None:
    """Returns why the folder name of this stream is too long for file systems, or None."""
    size_bytes = len(stream_folder(stream).encode())
    if size_bytes <= NAME_BYTES_MAX:
        return None
    return (
        f"the name of the stream {stream[:40]!r}… makes a folder's name of {size_bytes} bytes, and file systems take "
        f"{NAME_BYTES_MAX}: leave it out by --stream or --pattern, or export with --format delta or iceberg"
    )


def sync_tree(folder: Path) -> None:
    """Calls fsync on a folder and all its subfolders, for the file names. The contents must be synced already."""
    for root, _, _ in os.walk(folder):
        sync(Path(root))


def point_to(link: Path, target: Path) -> None:
    """Creates a symbolic link, or changes its target atomically."""
    new = link.with_name(f".{link.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(os.path.relpath(target, link.parent))
    rename_durably(new, link)


def remove_tree(folder: Path) -> int:
    """Removes a folder, even while an abandoned task still creates files in it. Returns the number of files.

    Raises ExportError after REMOVE_ATTEMPTS_MAX tries.
    """
    count = sum(len(names) for _, _, names in os.walk(folder))
    for _ in range(REMOVE_ATTEMPTS_MAX):
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            return count
        except OSError as error:
            failure = error
        else:
            return count
    raise ExportError(f"cannot remove {folder}: {failure.strerror or failure}; remove it and run again")
