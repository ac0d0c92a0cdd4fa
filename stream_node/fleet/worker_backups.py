"""Backs up and restores a data directory as a whole: the database of its only process, or those of all its workers.
The backup of a node with workers has a folder for each worker, as the data directory has. The copies are taken one
after the other, so each has the state of its own moment. Streams of different workers never depend on each other."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from ockam.files.durable_files import write_durably
from stream_node.care.restore import Present, locked_directory, restore
from stream_node.fleet.worker_directory import NOTE_FILE, database_folders, find_workers
from stream_storage.sqlite.backup import BackupError, BackupManifest, Progress, back_up, names_in
from stream_storage.sqlite.database import FILE_NAME


def back_up_all(source: Path, target: Path, *, now_us: int, check: bool, progress: Progress) -> list[BackupManifest]:
    """Copies all databases of the data directory `source` into the new or empty folder `target`.
    `stream_storage.sqlite.backup.back_up` describes the parameters. Raises ConfigError, BackupError, StorageError."""
    folders = database_folders(source)
    if names_in(target):
        raise BackupError(f"{target} is not empty; choose a new folder for each backup")
    try:
        manifests = [
            back_up(folder, target / name, now_us=now_us, check=check, progress=_named(name, progress))
            for name, folder in folders.items()
        ]
        if (source / NOTE_FILE).exists() and "" not in folders:
            # The databases of an older version do not say how many workers there are.
            write_durably(target / NOTE_FILE, (source / NOTE_FILE).read_bytes())
    except BaseException:
        # A backup that lacks a worker must not stay. `back_up` has removed the copy that has failed.
        for name in filter(None, folders):
            shutil.rmtree(target / name, ignore_errors=True)
        raise
    return manifests


def restore_all(
    backup: Path, target: Path, *, check: bool, over: bool = False, dry_run: bool = False, progress: Progress
) -> tuple[list[BackupManifest], list[Present]]:
    """Restores all databases of a backup into the data directory `target`.
    `stream_node.care.restore.restore` describes parameters, results and errors; each database has its own results. All
    copies are checked before the first database is replaced. A restore that is interrupted later can be repeated."""
    sources = database_folders(backup)
    # Another number of workers would look for the streams in other databases.
    known = find_workers(target) or (1 if (target / FILE_NAME).exists() else len(sources))
    if known != len(sources):
        raise BackupError(
            f"{target} has {known} databases and {backup} has {len(sources)}: the number of workers never changes; "
            "choose another data directory, or the folder of one worker in both"
        )
    # No node may start between the restores of two workers. Each restore takes the lock of its own folder itself.
    with nullcontext() if dry_run or "" in sources else locked_directory(target):
        # With workers, the first pass only checks and the second one replaces.
        passes = [True] if dry_run else [False] if "" in sources else [True, False]
        for is_dry in passes:
            done = [
                restore(
                    source,
                    target / name,
                    check=check and is_dry == passes[0],
                    over=over,
                    dry_run=is_dry,
                    progress=_named(name, progress),
                )
                for name, source in sources.items()
            ]
        if not dry_run and "" not in sources and (backup / NOTE_FILE).exists():
            write_durably(target / NOTE_FILE, (backup / NOTE_FILE).read_bytes())
    return [manifest for manifest, _ in done], [present for _, present in done]


def _named(name: str, progress: Progress) -> Callable[[str, int, int | None], None]:
    return progress if not name else lambda step, done, total: progress(f"{name}: {step}", done, total)
