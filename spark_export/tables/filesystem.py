"""Opens the file system of a table with pyarrow. Spark executors load this module, and need no library but pyarrow."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from pyarrow import fs

from ockam.files.durable_files import give_to_folder, sync
from spark_export.tables.address import FILE, StoreLocation, azure_names, complete_options, parse_place
from spark_export.tables.errors import ExportError, TableRefused
from spark_export.tables.model import DataFile, FilesPlan

CONNECT_S = 5.0
"""The longest time to open a connection, in seconds."""


def open_filesystem(address: str, given: Mapping[str, str]) -> tuple[fs.FileSystem, str]:
    """Returns the pyarrow file system of an address, and the path of the address in it. Raises ExportError."""
    place = parse_place(address)
    if place.scheme == FILE:
        return fs.LocalFileSystem(), place.path
    options = complete_options(place, given)
    root = azure_names(place, options)[1] if place.scheme == "abfs" else place.authority
    path = f"/{place.path}" if place.scheme == "hdfs" else f"{root}/{place.path}"
    return _open(StoreLocation(place.scheme, place.authority, ""), tuple(sorted(options.items()))), path


@lru_cache(maxsize=16)
def _open(place: StoreLocation, given: tuple[tuple[str, str], ...]) -> fs.FileSystem:
    # All threads of a process share the file system of a bucket.
    options = dict(given)
    endpoint = urlsplit(options["endpoint"]) if "endpoint" in options else None
    scheme, host = (endpoint.scheme, endpoint.netloc) if endpoint else (None, None)
    if place.scheme == "s3":
        return fs.S3FileSystem(
            anonymous=options.get("anonymous") == "true",
            region=options.get("region"),
            scheme=scheme,
            endpoint_override=host,
            force_virtual_addressing=options.get("virtual_hosted") == "true",
            request_timeout=float(options["timeout_s"]),
            connect_timeout=CONNECT_S,
            # With this setting, a file of less than 5 MB is sent in one request.
            allow_delayed_open=True,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=int(options["tries"])),
        )
    if place.scheme == "gs":
        anonymous, project = options.get("anonymous") == "true", options.get("project")
        return fs.GcsFileSystem(anonymous=anonymous, scheme=scheme, endpoint_override=host, project_id=project)
    if place.scheme == "abfs":
        return fs.AzureFileSystem(
            azure_names(place, options)[0],
            account_key=os.environ.get("AZURE_STORAGE_ACCOUNT_KEY"),
            sas_token=os.environ.get("AZURE_STORAGE_SAS_TOKEN"),
            blob_storage_authority=host,
            blob_storage_scheme=scheme,
            dfs_storage_authority=host,
            dfs_storage_scheme=scheme,
        )
    name, _, port = place.authority.partition(":")
    replication = int(options.get("replication", "3"))
    try:
        return fs.HadoopFileSystem(name, int(port or 8020), user=options.get("user"), replication=replication)
    except (OSError, ValueError) as error:
        raise ExportError(
            f"{place} cannot be opened: {one_line(error)}; HDFS needs libhdfs, and HADOOP_HOME and CLASSPATH "
            "(`hadoop classpath --glob`)"
        ) from error


@contextmanager
def store_errors(what: str) -> Iterator[None]:
    """Turns errors of a store into ExportErrors. An error of a local disk, such as a full one, stays as it is."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            raise
        raise ExportError(f"{what} cannot be read or written: {one_line(error)}") from error


def remove_files(plan: FilesPlan, files: Iterable[DataFile]) -> None:
    """Removes files that are in no table. Files that cannot be removed now are removed with the table's old files."""
    filesystem, root = open_filesystem(plan.root, plan.options)
    for each in files:
        with suppress(OSError):
            filesystem.delete_file(f"{root}/{each.path}")


def sync_new(folder: Path, since_s: float) -> None:
    """Syncs the files below a folder that were written since a time, and all its folders.

    The libraries of tables sync nothing, so a power cut could lose a commit that was reported.
    """
    # A file system may have coarse times.
    since_s -= 2
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                if (path := Path(root, name)).stat().st_mtime >= since_s:
                    sync(path)
        sync(Path(root))


def one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:299]}…"


def take_lock(path: Path, flags: int = os.O_RDWR | os.O_CREAT, *, wait: bool = False) -> int:
    """Takes a lock until the descriptor is closed or the process ends. Raises BlockingIOError if it is taken."""
    descriptor = os.open(path, flags, 0o644)
    try:
        give_to_folder(descriptor, path.parent)
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def locked(path: Path, refusal: str = "") -> Iterator[None]:
    """Holds a lock. If another process has it, raises TableRefused with the text `refusal`; if this is empty, waits."""
    try:
        held = take_lock(path, wait=not refusal)
    except BlockingIOError as error:
        raise TableRefused(refusal) from error
    try:
        yield
    finally:
        os.close(held)
