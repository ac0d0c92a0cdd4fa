"""Lists the streams of a data directory by reading the node's database file, without a request to the node.

The node can run at the same time. This module opens the database read-only: it neither changes the file nor copies the
write-ahead log (WAL) into it.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from spark_export.errors import OptionError, SourceError
from spark_export.source.plan import StreamEnds

FILE_NAME = "streams.sqlite"
BUSY_TIMEOUT_S = 5.0


def database_path(path: str) -> str:
    """Returns the path of the database file in the data directory `path`. Raises OptionError, SourceError."""
    found = Path(path) / FILE_NAME
    if not found.is_file():
        raise OptionError(f"path={path!r}: there is no {FILE_NAME}; name the data directory of a node on this machine")
    _refuse_damaged(found)
    return str(found.absolute())


def _refuse_damaged(database: Path) -> None:
    """Raises SourceError if the write-ahead log (WAL) is damaged, so that confirmed messages are perhaps lost.

    Nothing is checked where the packages of the node (structlog) are not installed, as on executors.
    """
    try:
        from stream_storage.errors import StorageError
        from stream_storage.sqlite.wal.check import refuse_damaged
    except ModuleNotFoundError:
        return
    try:
        refuse_damaged(database)
    except StorageError as error:
        raise SourceError(str(error)) from error


class FileCatalog:
    """A catalog that reads a data directory (see `spark_export.source.catalog.Catalog`).

    Raises OptionError if the directory has no database.
    """

    def __init__(self, path: str) -> None:
        self._path = database_path(path)

    def list_streams(self, prefix: str = "") -> list[StreamEnds]:
        rows = self._rows(
            "SELECT name, partition, first_index, next_index, size_bytes, created_us FROM streams "
            "WHERE substr(name, 1, ?) = ? ORDER BY name, partition",
            (len(prefix), prefix),
        )
        return [StreamEnds(*row) for row in rows]

    def index_at(self, end: StreamEnds, time_us: int) -> int:
        """Returns the index as `Catalog.index_at` does, by a binary search, since times never decrease."""
        low, high = end.first_index, end.next_index
        while low < high:
            middle = (low + high) // 2
            rows = self._rows(
                "SELECT time_us FROM messages WHERE idx = ? AND stream_id = "
                "(SELECT id FROM streams WHERE name = ? AND partition = ?)",
                (middle, end.stream, end.partition),
            )
            if not rows or rows[0][0] < time_us:
                low = middle + 1
            else:
                high = middle
        return low

    def _rows(self, statement: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        try:
            address = f"file:{quote(self._path)}?mode=ro"
            with closing(sqlite3.connect(address, uri=True, timeout=BUSY_TIMEOUT_S)) as connection:
                return connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise SourceError(
                f"{self._path} cannot be read: {error}; is it a data directory of this version?"
            ) from error
