"""The places of an export's files, and the operations on them that must be atomic or durable. This module does not know
the ledger.

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
from typing import Final, Self
from urllib.parse import quote

from spark_export.exporter.errors import ExportError, ExportInUse, ExportMismatch
from storage.durable_files import make_folder, rename_durably, sync

TABLE, GENERATIONS, STAGING = "messages", "generations", "staging"
LEDGER, LOCK = "ledger.sqlite", "exporter.lock"
ATTEMPTS, TREE = "attempts", "tree"
"""Within a run's staging folder: files as tasks write them, and the run's folder as the table will have it."""
NO_NAME: Final = "__HIVE_DEFAULT_PARTITION__"
"""What Hive, and so every reader, writes for an empty value."""
NAME_BYTES_MAX = 255
"""Of one part of a path, on every usual file system."""
REMOVE_ATTEMPTS_MAX = 20


class Layout:
    """The paths of one export. folder: on a file system that every executor sees under the same path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.table = self.folder / TABLE
        self.ledger = self.folder / LEDGER
        self.staging = self.folder / STAGING
        self.generations = self.folder / GENERATIONS

    def check_ledger(self) -> None:
        """Raises ExportMismatch if there is a table without a ledger: a new ledger would not know the table's rows."""
        if not self.ledger.exists() and os.path.lexists(self.table):
            raise ExportMismatch(
                f"{self.folder} holds a table, and {LEDGER} is missing: put it back, or export into another folder"
            )

    def make(self) -> None:
        """Makes the folders that are missing. Raises ExportError."""
        try:
            for folder in (self.folder, self.staging, self.generations):
                make_folder(folder)
        except OSError as error:
            raise ExportError(f"cannot write in {self.folder}: {error.strerror or error}") from error

    def generation(self, number: int) -> Path:
        return self.generations / f"{number:06d}"

    def run_staging(self, run_id: int) -> Path:
        return self.staging / f"run-{run_id:06d}"

    def attempts(self, run_id: int) -> Path:
        return self.run_staging(run_id) / ATTEMPTS


class ExportLock:
    """The lock of an export folder, by `flock`: at most one exporter holds it, and a killed exporter releases it. A
    context manager. Raises ExportInUse."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(self._file, 32, 0).decode(errors="replace").strip()
            os.close(self._file)
            raise ExportInUse(f"{folder} is in use by another exporter (process {owner or 'unknown'})") from error
        # Only a refused exporter reads this text. On a full disk the text may be missing, but the lock must still work.
        with suppress(OSError):
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, b"%d\n" % os.getpid(), 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)


def hive_folder(stream: str, date: str) -> str:
    """The folder `stream=…/date=…`, escaped as by Hive and Spark, so that every reader can split it into its values."""
    return f"{stream_folder(stream)}/date={date}"


def stream_folder(stream: str) -> str:
    """The folder `stream=…`. Only ASCII characters are escaped: Spark takes each escaped byte for a character, and
    would misread all others."""
    escaped = "".join(each if ord(each) > 127 else quote(each, safe=" ,;@&+$!()~") for each in stream)
    return f"stream={escaped or NO_NAME}"


def refusal_of_folder(stream: str) -> str | None:
    """The reason why no folder can have this stream's name, or None."""
    size_bytes = len(stream_folder(stream).encode())
    if size_bytes <= NAME_BYTES_MAX:
        return None
    return (
        f"the name of the stream {stream[:40]!r}… makes a folder's name of {size_bytes} bytes, and file systems take "
        f"{NAME_BYTES_MAX}: leave it out by --stream or --pattern, or export with --format delta or iceberg"
    )


def sync_tree(folder: Path) -> None:
    """Syncs a folder and all folders below it, so that the names in them are on disk. The contents of the files must
    have been synced before."""
    for root, _, _ in os.walk(folder):
        sync(Path(root))


def point_to(link: Path, target: Path) -> None:
    """Makes or turns a link atomically: a reader that opens it gets the old folder or the new one."""
    new = link.with_name(f".{link.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(os.path.relpath(target, link.parent))
    rename_durably(new, link)


def remove_tree(folder: Path) -> int:
    """Removes a folder with all files in it, even while a task that Spark has abandoned still writes there. Returns the
    number of files.

    Tasks never make folders, so the next step of such a task fails. Raises ExportError.
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
