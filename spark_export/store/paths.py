"""Paths of files in stores, with the part of the interface of `pathlib.Path` that reading a table needs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import total_ordering
from pathlib import Path
from typing import Any, TypeAlias

from pyarrow import fs

from spark_export.store.data import DataFiles


@dataclass(frozen=True)
class FileStatus:
    """What `StorePath.stat` knows of a file."""

    st_size: int


@total_ordering
class StorePath:
    """A file in a store. Its text is its address. Two paths are equal if their addresses are."""

    def __init__(self, data: DataFiles, name: str) -> None:
        """name: relative to the place of `data`."""
        self._data = data
        self._address = str(data.place / name)
        self._in_store = name

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self._in_store.rpartition("/")[2]

    @property
    def parents(self) -> tuple[Path, ...]:
        """Empty: no folder of this machine has the file."""
        return ()

    def stat(self) -> FileStatus:
        """Raises FileNotFoundError, OSError."""
        info = self._data.filesystem.get_file_info(self._data.path(self._in_store))
        if info.type is not fs.FileType.File:
            raise FileNotFoundError(str(self))
        return FileStatus(info.size)

    def is_file(self) -> bool:
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    exists = is_file

    def open(self, mode: str = "rb") -> Any:
        """The file, opened for reading. Raises FileNotFoundError, OSError."""
        assert mode == "rb"
        return self._data.filesystem.open_input_file(self._data.path(self._in_store))

    def read_bytes(self) -> bytes:
        """Raises FileNotFoundError, OSError."""
        with self.open() as file:
            return bytes(file.read())

    def resolve(self) -> StorePath:
        """The path itself: a store has no links."""
        return self

    def __str__(self) -> str:
        return self._address

    def __repr__(self) -> str:
        return f"StorePath({self._address!r})"

    def __hash__(self) -> int:
        return hash(self._address)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorePath) and self._address == other._address

    def __lt__(self, other: StorePath) -> bool:
        return self._address < other._address


FilePath: TypeAlias = Path | StorePath
"""A file of a table, in a folder or in a store."""
