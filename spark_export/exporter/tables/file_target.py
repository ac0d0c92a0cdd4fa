"""The places into which a task writes its files: a folder (`FolderTarget`), or an address on a store (`StoreTarget`).

Spark executors load this module, so it imports no library except pyarrow. A file on a store has its final name from the
beginning, and exists there only after it was completed. The name is unique: if a task is repeated, it writes a file of
another name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from spark_export.store.data import DataFiles, one_line
from spark_export.store.errors import StoreError
from spark_export.store.place import parse_place


class TargetFile(Protocol):
    """A file that a task is writing."""

    def write(self, data: Any) -> int: ...

    def complete(self, size_bytes: int) -> None:
        """Completes the file and makes it durable. size_bytes: the size of the whole file."""
        ...

    def abandon(self) -> None:
        """Closes the file without completing it."""
        ...


class FileTarget(Protocol):
    def open(self, name: str) -> TargetFile: ...


class FolderTarget:
    """A `FileTarget` that is an existing folder. The caller removes abandoned files together with the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, name: str) -> TargetFile:
        return _FolderFile(self._folder / name)


class _FolderFile:
    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)

    def write(self, data: Any) -> int:
        return self._file.write(data)

    def complete(self, size_bytes: int) -> None:
        try:
            os.fsync(self._file.fileno())
        finally:
            # Close the file even when the disk is full: a removed file uses disk space until it is closed.
            self._file.close()

    def abandon(self) -> None:
        self._file.close()


class StoreTarget:
    """A `FileTarget` that is an address on a store. An abandoned file is deleted, here or by `Table.find_leftovers`."""

    def __init__(self, address: str, options: Mapping[str, str]) -> None:
        self._data = DataFiles(parse_place(address), options)

    def open(self, name: str) -> TargetFile:
        return _StoreFile(self._data, name)


class _StoreFile:
    def __init__(self, data: DataFiles, name: str) -> None:
        self._data = data
        self._name = name
        self._file = data.open_output(name)

    def write(self, data: Any) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            raise StoreError(f"{self._data.place / self._name} cannot be written: {one_line(error)}") from error
        return len(data)

    def complete(self, size_bytes: int) -> None:
        self._data.close_output(self._file, self._name, size_bytes)

    def abandon(self) -> None:
        # A stream to a store can only be closed. The resulting file has no Parquet footer and is not part of the table.
        with suppress(OSError):
            self._file.close()
        self._data.remove(self._name)


def open_target(folder: Path, store: str, options: Mapping[str, str]) -> FileTarget:
    return StoreTarget(store, options) if store else FolderTarget(folder)
