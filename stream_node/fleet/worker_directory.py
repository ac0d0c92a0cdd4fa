"""The data directory of a node with several workers: its lock, the number of the workers, and their folders.
Each worker has a folder with a database that names its owner (`stream_node.node.databases`), and locks it
itself. An older version noted the number of workers in the data directory. The note is read only while no database
has the number.

The backup of a node with workers has a folder for each worker, as the data directory has. The copies are taken one
after the other, so each has the state of its own moment. Streams of different workers never depend on each other."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Annotated

import msgspec
import trio

from ockam.files.durable_files import make_folder, write_durably
from ockam.files.parsing import ParseError, convert, parse_toml
from stream_node.care.restore import Present, locked_directory, restore
from stream_node.fleet.worker_place import own_address, worker_name
from stream_node.node.config import Config, ConfigError
from stream_node.node.databases import StoredPlace, ensure_stored, read_stored
from stream_storage.directory_lock import DirectoryLock, owner_lives
from stream_storage.errors import DatabaseInUse, StorageError, system_error
from stream_storage.sqlite.backup import BackupError, BackupManifest, Progress, back_up, names_in
from stream_storage.sqlite.database import FILE_NAME, Database

NOTE_FILE = "workers.toml"
LEFT_S = 20.0
"""The time that the workers of a killed supervisor get to end, in addition to the setting `drain_timeout_s`."""
POLL_S = 0.05
_WORKER_FOLDER = re.compile(r"w\d{2,}")


class _Note(msgspec.Struct, frozen=True):
    workers: Annotated[int, msgspec.Meta(ge=2)]


async def lock_directory(config: Config) -> DirectoryLock:
    """Makes the data directory and takes the lock on it, which the workers share. Raises StorageError.
    After the death of another supervisor, waits until its workers have drained and given its lock back."""
    folder = Path(config.data_dir)
    try:
        make_folder(folder, mode=0o700)
    except OSError as error:
        raise system_error(error) from error
    end_s = trio.current_time() + config.drain_timeout_s + LEFT_S
    while True:
        try:
            return DirectoryLock(folder)
        except DatabaseInUse:
            if owner_lives(folder) or trio.current_time() > end_s:
                raise
        await trio.sleep(POLL_S)


def check_workers(config: Config) -> None:
    """Raises ConfigError if the data directory is for another number of workers, belongs to one worker or has lost a
    database, or if workers with TLS do not trust each other. The number of workers decides which streams each has."""
    folder = Path(config.data_dir)
    # Workers connect to each other with TLS too, so each must trust the certificate of the node.
    if config.workers > 1 and config.tls_certificate is not None and config.tls_forward_ca is None:
        raise ConfigError(
            "workers: the workers connect to each other with TLS too, so tls_forward_ca must name the authority of "
            f"tls_certificate, which must be valid for {own_address(config, 0).host_told}"
        )
    # With a shared database, any number of workers can serve the streams.
    if config.database is not None:
        return
    # Served alone, the folder of one worker would lack the streams of the others.
    whose = worker_of(folder)
    if whose is not None:
        raise ConfigError(
            f"data_dir: {folder} has {whose} that share the streams of a node; serve the directory that holds the "
            f"folders of all workers, with --workers {whose.workers}. Alone, this one would begin the streams of the "
            "other workers again"
        )
    # A directory without a worker's folder, but with a database, is that of one process.
    known = find_workers(folder)
    if known is None and (folder / FILE_NAME).exists():
        known = 1
    if known is not None and known != config.workers:
        raise ConfigError(
            f"workers: the streams in {folder} are shared among {known}, not {config.workers}; start the node with "
            f"--workers {known}, or start a second node with --workers {config.workers} and another data directory and "
            "copy the streams to it (stream-node stream copy NAME NAME --to HOST:PORT)"
        )
    check_not_lost(database_folders(folder))


def worker_of(folder: Path) -> StoredPlace | None:
    """Returns the place of the database in a folder if the database belongs to one of several workers."""
    stored = _read_stored(folder)
    if stored is not None:
        return stored if stored.workers > 1 else None
    # A database of an older version does not name its worker, but the note beside its folder does. A folder of a worker
    # may be a link to another disk, and a link may lead to a folder of a worker.
    for place in {Path(os.path.abspath(folder)), Path(os.path.realpath(folder))}:
        if _WORKER_FOLDER.fullmatch(place.name) and (place.parent / NOTE_FILE).exists():
            number, workers = int(place.name[1:]), _noted(place.parent)
            if place.name == worker_name(number) and number < workers:
                return StoredPlace(number, workers)
    return None


def find_workers(folder: Path) -> int | None:
    """Returns the number of workers that share the streams of a data directory; None if it has no folder of a worker.
    Raises ConfigError if folders are there and the number is not known, or if a database is not in its place."""
    # The databases name their number; the note counts only where none of them does.
    stored = {each.name: _read_stored(each) for each in worker_folders(folder)}
    numbers = {each.workers for each in stored.values() if each is not None}
    if not numbers and (stored or (folder / NOTE_FILE).exists()):
        numbers = {_noted(folder)}
    if not numbers:
        return None
    if len(numbers) > 1:
        said = "; ".join(f"{name} has {place}" for name, place in stored.items() if place is not None)
        raise ConfigError(f"data_dir: the databases in {folder} are not of one node: {said}; {_PUT_BACK}")
    (workers,) = numbers
    if workers == 1:
        raise ConfigError(
            f"data_dir: {folder / next(iter(stored))} has the database of a node with one process, which such a node "
            f"does not look for there; move it to {folder}"
        )
    # Each folder must have the database of its own number, and none beyond the last.
    for name, place in stored.items():
        if place is not None and worker_name(place.number) != name:
            raise ConfigError(f"data_dir: {folder / name} has {place}; {_PUT_BACK}")
        if int(name[1:]) >= workers:
            raise ConfigError(f"data_dir: {folder / name} has a database, but the workers are {workers}; {_PUT_BACK}")
    if (folder / FILE_NAME).exists():
        raise ConfigError(
            f"data_dir: {folder} has a database of its own beside those of {workers} workers; move one of them out"
        )
    return workers


_PUT_BACK = "put each database back where it was, or restore one backup of the whole data directory"


def worker_folders(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        found = (each for each in folder.iterdir() if _WORKER_FOLDER.fullmatch(each.name))
        yield from sorted((each for each in found if (each / FILE_NAME).exists()), key=lambda each: int(each.name[1:]))


def has_database(folder: Path) -> bool:
    return (folder / FILE_NAME).exists() or any(worker_folders(folder))


def _read_stored(folder: Path) -> StoredPlace | None:
    """Returns the place that a folder's database has stored; None without a place, or if the database is damaged.
    The damage is reported by whoever opens the database."""
    try:
        return read_stored(folder)
    except (StorageError, BackupError):
        return None


def _noted(folder: Path) -> int:
    """Returns the number of workers in the note of an older version. Raises ConfigError."""
    note = folder / NOTE_FILE
    try:
        return convert(parse_toml(note.read_bytes()), _Note).workers
    except FileNotFoundError as error:
        raise ConfigError(
            f"workers: {folder} has the databases of several workers, and nothing says how many there were; write "
            f"`workers = NUMBER` into {note}"
        ) from error
    except (OSError, ParseError) as error:
        raise ConfigError(f"workers: {note} cannot be read: {error}; write `workers = NUMBER` into it") from error


def database_folders(folder: Path) -> dict[str, Path]:
    """Returns the database folders of a data directory by worker; by "" without workers. Raises ConfigError."""
    count = find_workers(folder)
    if count is None:
        return {"": folder}
    return {worker_name(number): folder / worker_name(number) for number in range(count)}


def one_database_folder(folder: Path) -> Path:
    """Returns the folder itself if it has one database. Raises ConfigError if it has several, of workers."""
    names = list(database_folders(folder))
    if names == [""]:
        return folder
    raise ConfigError(
        f"data_dir: the streams in {folder} are shared among {len(names)} workers, each with a database of its own; "
        f"run this command for each of them: --data-dir {folder / names[0]} to {folder / names[-1]}"
    )


def check_not_lost(folders: Mapping[str, Path]) -> None:
    """Raises ConfigError if a worker has no database although another one has streams: its database was lost.
    The first start makes all databases (`make_databases`). With an empty one, a worker would begin its streams anew."""
    missing = [str(folder) for folder in folders.values() if not (folder / FILE_NAME).exists()]
    filled = [folder for folder in folders.values() if missing and _has_streams(folder)]
    if filled:
        raise ConfigError(
            f"data_dir: {filled[0]} has streams, and {', '.join(missing)} has no database; put it back, or restore a "
            "backup of it: without it, the worker would begin its streams again"
        )


def make_databases(config: Config) -> None:
    """Makes the databases of the workers that have none, before any worker serves. Raises ConfigError, StorageError."""
    for number in range(0 if config.database is not None else config.workers):
        folder = Path(config.data_dir) / worker_name(number)
        if not (folder / FILE_NAME).exists():
            with closing(Database.open(folder)) as database:
                ensure_stored(database, StoredPlace(number, config.workers))


def _has_streams(folder: Path) -> bool:
    if not (folder / FILE_NAME).exists():
        return False
    try:
        with closing(Database.open(folder, read_only=True).read_session()) as session:
            return bool(session.log.list_streams(limit=1))
    except StorageError:
        return True


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
