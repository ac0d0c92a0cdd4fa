"""Reads and writes the files of a table with pyarrow, in every kind of store.

Spark executors load this module, and need no library except pyarrow. A new file on an object store exists only after
the writer has closed it. This module never renames or links a file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from pyarrow import fs

from spark_export.store.errors import ObjectMissing, StoreError
from spark_export.store.options import azure_names, is_set
from spark_export.store.place import FILE, StoreLocation

CONNECT_S = 5.0
"""The longest time to open a connection, in seconds."""


class DataFiles:
    """The files under one address; names are relative to it. Several threads can use this object at the same time."""

    def __init__(self, place: StoreLocation, options: Mapping[str, str]) -> None:
        self.place = place
        self.filesystem, base = open_filesystem(place, options)
        self._base = base.rstrip("/")
        # An object store has no folders, so a request to create one would only cost time.
        self._has_folders = place.scheme in (FILE, "hdfs")

    def path(self, name: str) -> str:
        return f"{self._base}/{name}" if name else self._base

    def open_input(self, name: str) -> Any:
        """Opens a file for reading at any position. Raises ObjectMissing, StoreError."""
        try:
            return self.filesystem.open_input_file(self.path(name))
        except FileNotFoundError as error:
            raise ObjectMissing(f"{self.place / name} is not there") from error
        except OSError as error:
            raise StoreError(f"{self.place / name} cannot be read: {one_line(error)}") from error

    def open_output(self, name: str) -> Any:
        """Opens a new file for writing, as a file object. Creates missing folders. Raises StoreError."""
        try:
            if self._has_folders:
                self.filesystem.create_dir(self.path(name).rpartition("/")[0], recursive=True)
            return self.filesystem.open_output_stream(self.path(name))
        except OSError as error:
            raise StoreError(f"{self.place / name} cannot be written: {one_line(error)}") from error

    def close_output(self, file: Any, name: str, size_bytes: int) -> None:
        """Closes the file object of a new file. Only then the file exists. Raises StoreError.

        If closing fails but the store has a file of this size, the upload succeeded and only its answer was lost. The
        file is not from another writer, because names of data files are unique.
        """
        try:
            file.close()
        except OSError as error:
            with suppress(OSError):
                if self.filesystem.get_file_info(self.path(name)).size == size_bytes:
                    return
            raise StoreError(f"{self.place / name} cannot be written: {one_line(error)}") from error

    def remove(self, name: str) -> None:
        """Removes a file if it exists. Ignores errors, because a file of a failed write belongs to no table."""
        with suppress(OSError):
            self.filesystem.delete_file(self.path(name))


def open_filesystem(place: StoreLocation, options: Mapping[str, str]) -> tuple[fs.FileSystem, str]:
    """Returns the pyarrow filesystem of a place, and the path of the place in it. Raises StoreError."""
    if place.scheme == FILE:
        return fs.LocalFileSystem(), place.path
    path = f"{place.authority}/{place.path}"
    if place.scheme == "s3":
        return _s3(options), path
    if place.scheme == "gs":
        return _gs(options), path
    if place.scheme == "abfs":
        return _azure(place, options), f"{azure_names(place, options)[1]}/{place.path}"
    return _hdfs(place, options), f"/{place.path}"


def _s3(options: Mapping[str, str]) -> fs.FileSystem:
    endpoint = urlsplit(options["endpoint"]) if "endpoint" in options else None
    return fs.S3FileSystem(
        anonymous=is_set(options, "anonymous"),
        region=options.get("region", "us-east-1" if endpoint else None),
        scheme=endpoint.scheme if endpoint else None,
        endpoint_override=endpoint.netloc if endpoint else None,
        force_virtual_addressing=is_set(options, "virtual_hosted"),
        request_timeout=float(options["timeout_s"]),
        connect_timeout=CONNECT_S,
        # With this setting, a file of less than 5 MB is sent in one request.
        allow_delayed_open=True,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=int(options["tries"])),
    )


def _gs(options: Mapping[str, str]) -> fs.FileSystem:
    endpoint = urlsplit(options["endpoint"]) if "endpoint" in options else None
    return fs.GcsFileSystem(
        anonymous=is_set(options, "anonymous"),
        scheme=endpoint.scheme if endpoint else None,
        endpoint_override=endpoint.netloc if endpoint else None,
        project_id=options.get("project"),
    )


def _azure(place: StoreLocation, options: Mapping[str, str]) -> fs.FileSystem:
    endpoint = urlsplit(options["endpoint"]) if "endpoint" in options else None
    account, _ = azure_names(place, options)
    return fs.AzureFileSystem(
        account,
        account_key=os.environ.get("AZURE_STORAGE_ACCOUNT_KEY"),
        sas_token=os.environ.get("AZURE_STORAGE_SAS_TOKEN"),
        blob_storage_authority=endpoint.netloc if endpoint else None,
        blob_storage_scheme=endpoint.scheme if endpoint else None,
        dfs_storage_authority=endpoint.netloc if endpoint else None,
        dfs_storage_scheme=endpoint.scheme if endpoint else None,
    )


def _hdfs(place: StoreLocation, options: Mapping[str, str]) -> fs.FileSystem:
    host, _, port = place.authority.partition(":")
    try:
        return fs.HadoopFileSystem(
            host, int(port or 8020), user=options.get("user"), replication=int(options.get("replication", "3"))
        )
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{place} cannot be opened: {one_line(error)}; HDFS needs libhdfs, and HADOOP_HOME and CLASSPATH "
            "(`hadoop classpath --glob`)"
        ) from error


def one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:299]}…"
