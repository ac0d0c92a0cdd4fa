"""Paths of files in stores. They have the methods of `pathlib.Path` that code for reading a table needs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import total_ordering
from pathlib import Path
from typing import Any, TypeAlias

from pyarrow import fs

from spark_export.store.data import DataFiles


@dataclass(frozen=True)
class FileStatus:
    st_size: int


@total_ordering
class StorePath:
    """The path of a file in a store. `str` returns the address. Paths with equal addresses are equal."""

    def __init__(self, data: DataFiles, name: str) -> None:
        self._data = data
        self._address = str(data.place / name)
        self._in_store = name

    @property
    def name(self) -> str:
        return self._in_store.rpartition("/")[2]

    @property
    def parents(self) -> tuple[Path, ...]:
        """Empty, because the file is in no local folder."""
        return ()

    def stat(self) -> FileStatus:
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
        assert mode == "rb"
        return self._data.filesystem.open_input_file(self._data.path(self._in_store))

    def read_bytes(self) -> bytes:
        with self.open() as file:
            return bytes(file.read())

    def resolve(self) -> StorePath:
        """Returns the path itself, because a store has no symbolic links."""
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
"""The path of a file of a table, in a local folder or in a store."""
