"""The data directory of a node with several workers: its lock, and the note of their number.

The databases are in a folder for each worker, which the worker locks itself.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import trio

from storage.directory_lock import DirectoryLock, owner_lives
from storage.durable_files import make_folder, rename_durably, sync
from storage.errors import DatabaseInUse, system_error
from storage.sqlite.database import FILE_NAME
from stream_node.config import Config, ConfigError
from stream_node.worker_place import own_address, worker_name

NOTE_FILE = "workers.toml"
LEFT_S = 20.0
"""The time that the workers of a killed supervisor get to end, beside the one that they may use to drain."""
POLL_S = 0.05
_WORKER_FOLDER = re.compile(r"w\d{2,}")


async def lock_directory(config: Config) -> DirectoryLock:
    """Makes the data directory and takes the lock on it, which the supervisor shares with its workers.

    The lock of a supervisor that was killed lasts until its workers have drained and ended. Waits for that, because
    these workers still listen and still have their databases open. Raises StorageError.
    """
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
    """Raises ConfigError if the data directory is for another number of workers, or belongs to one worker.

    The streams of each worker are in a database of its own, and the number of workers decides which streams these are.
    """
    folder = Path(config.data_dir)
    if config.workers > 1 and config.tls_certificate is not None and config.tls_forward_ca is None:
        raise ConfigError(
            "workers: the workers connect to each other with TLS too, so tls_forward_ca must name the authority of "
            f"tls_certificate, which must be valid for {own_address(config, 0).host_told}"
        )
    if config.database is not None:
        return
    _check_whole(folder)
    noted = find_workers(folder)
    if noted is None and (folder / FILE_NAME).exists():
        noted = 1
    if noted is not None and noted != config.workers:
        raise ConfigError(
            f"workers: the streams in {folder} are shared among {noted}, not {config.workers}; start the node with "
            f"--workers {noted}, or start a second node with --workers {config.workers} and another data directory and "
            "copy the streams to it (stream-node stream copy NAME NAME --to HOST:PORT)"
        )


def _check_whole(folder: Path) -> None:
    """Raises ConfigError if the folder is that of one worker, inside the data directory of a node.

    A node that serves it alone begins the streams of the other workers again, so indexes would be assigned twice. The
    whole node never shows the messages that were pushed to them here.
    """
    # A folder of a worker may be a link to another disk, and a link may lead to a folder of a worker.
    for place in {Path(os.path.abspath(folder)), Path(os.path.realpath(folder))}:
        if not _WORKER_FOLDER.fullmatch(place.name):
            continue
        count = find_workers(place.parent) or 0
        if place.name in (worker_name(number) for number in range(count)):
            raise ConfigError(
                f"data_dir: {folder} is the directory of one of the {count} workers that share the streams in "
                f"{place.parent}; start the node with --data-dir {place.parent} --workers {count}. Alone, it would "
                "begin the streams of the other workers again. To serve a copy of its own streams by another node, "
                f"copy the directory out of {place.parent}"
            )


def find_workers(folder: Path) -> int | None:
    """Returns the number of workers that share the streams of a data directory. Returns None if it has no note of
    that. Raises ConfigError."""
    note = folder / NOTE_FILE
    try:
        return msgspec.toml.decode(note.read_bytes(), type=dict[str, int]).get("workers", 0)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"workers: {note} cannot be read: {error}") from error


def database_folders(folder: Path) -> dict[str, Path]:
    """Returns the folders of the databases of a data directory by the names of the workers. A data directory without
    workers has one database, with the name "". Raises ConfigError."""
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


def note_workers(config: Config) -> None:
    """Writes the number of workers into the data directory, which exists. Raises OSError."""
    folder = Path(config.data_dir)
    if config.database is None and not (folder / NOTE_FILE).exists():
        new = folder / f"{NOTE_FILE}.new"
        new.write_text(f"# The worker processes among which the streams here are shared.\nworkers = {config.workers}\n")
        sync(new)
        rename_durably(new, folder / NOTE_FILE)
