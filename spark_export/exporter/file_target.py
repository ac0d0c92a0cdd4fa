"""Where a task's files go: into a folder, or straight into a store. Executors load this module; they need pyarrow only.

Files on a store get their final names at once, which no other attempt at the task uses. A file is there when it is
completed, and not before.
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
    """A file that is being written."""

    def write(self, data: Any) -> int:
        """Appends bytes. Returns how many."""
        ...

    def complete(self, size_bytes: int) -> None:
        """Ends the file, which has this size. The file is durable when this returns."""
        ...

    def abandon(self) -> None:
        """Ends the file without completing it."""
        ...


class Target(Protocol):
    """A place for files."""

    def open(self, name: str) -> TargetFile: ...


class FolderTarget:
    """Files in an existing folder. The caller removes abandoned files together with the folder."""

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
    """Files in a store, below one address. An abandoned file is removed on best efforts; the exporter sweeps what is
    left."""

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
        # The stream has no other end. What it makes lacks a footer, and no manifest names it.
        with suppress(OSError):
            self._file.close()
        self._data.remove(self._name)


def open_target(folder: Path, store: str, options: Mapping[str, str]) -> Target:
    """The target of a task: the store's address, or the folder if the address is empty."""
    return StoreTarget(store, options) if store else FolderTarget(folder)
