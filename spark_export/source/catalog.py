"""Finds the existing streams and their first and last indexes, for the Spark driver.

`NodeCatalog` asks a node. `FileCatalog` reads the database file in the node's data directory, also while the node runs.
It opens the file read-only, and does not copy the write-ahead log (WAL) into it.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from bare.model import UINT_MAX
from spark_export.errors import OptionError, SourceError, StreamMissing
from spark_export.source.node import asked, list_partitions
from spark_export.source.options import ReadOptions, compile_pattern
from spark_export.source.plan import Ends, Offsets, Place, StreamEnds, by_place, for_each, resolve
from stream_client import FromTime

FILE_NAME = "streams.sqlite"
BUSY_TIMEOUT_S = 5.0
_OF_STREAM = "stream_id = (SELECT id FROM streams WHERE name = ? AND partition = ?)"
_ENDS = "SELECT name, partition, first_index, next_index, size_bytes, created_us FROM streams"


class NodeCatalog:
    """A catalog that asks a node. Each request opens its own client, because the driver sends few requests."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def list_partitions(self, stream: str | None = None) -> list[StreamEnds]:
        """Returns the partitions of one stream, or of all streams."""
        return asked(self._options, lambda client: list_partitions(client, stream))

    def index_at(self, end: StreamEnds, time_us: int) -> int:
        """Returns the first index from which on all messages were stored at `time_us` or later, else the next index."""
        # A time too large for a request, such as nanoseconds given as milliseconds, is later than any message.
        wanted = FromTime(min(max(0, time_us), UINT_MAX))
        return asked(
            self._options,
            lambda client: client.get_stream(end.stream).get_partition(end.partition).find_index(wanted),
        )


class FileCatalog:
    """A catalog that reads a data directory. Raises OptionError if the directory has no database."""

    def __init__(self, path: str) -> None:
        self._path = database_path(path)

    def list_partitions(self, stream: str | None = None) -> list[StreamEnds]:
        chosen, values = ("", ()) if stream is None else ("WHERE name = ?", (stream,))
        return [StreamEnds(*row) for row in self._rows(f"{_ENDS} {chosen} ORDER BY name, partition", values)]

    def index_at(self, end: StreamEnds, time_us: int) -> int:
        """Returns the index as `NodeCatalog.index_at` does, by the search of `stream_service.stored.first_index_at`."""
        # `time_falls` has the indexes where the times of a stream fall. Databases of older nodes may lack this table.
        has_falls = self._rows("SELECT 1 FROM sqlite_master WHERE name = 'time_falls'", ())
        falls = has_falls and self._rows(
            f"SELECT idx FROM time_falls WHERE idx > ? AND idx < ? AND {_OF_STREAM} ORDER BY idx DESC",
            (end.first_index, end.next_index, end.stream, end.partition),
        )

        def time_at(index: int) -> int:
            statement = f"SELECT time_us FROM messages WHERE idx = ? AND {_OF_STREAM}"
            rows = self._rows(statement, (index, end.stream, end.partition))
            return int(rows[0][0]) if rows else -1

        part_end = end.next_index
        for (start,) in (*falls, (end.first_index,)):
            found = bisect_left(range(part_end), max(0, time_us), start, part_end, key=time_at)
            if found > start:
                return found
            part_end = start
        return end.first_index

    def _rows(self, statement: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        try:
            address = f"file:{quote(self._path)}?mode=ro"
            with closing(sqlite3.connect(address, uri=True, timeout=BUSY_TIMEOUT_S)) as connection:
                return connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise SourceError(
                f"{self._path} cannot be read: {error}; is it a data directory of this version?"
            ) from error


Catalog: TypeAlias = NodeCatalog | FileCatalog


def find_catalog(options: ReadOptions) -> Catalog:
    return NodeCatalog(options) if options.path is None else FileCatalog(options.path)


def selected(options: ReadOptions, catalog: Catalog, *, must_exist: bool = True) -> dict[Place, StreamEnds]:
    """Returns the existing partitions of the chosen streams. must_exist: raises StreamMissing for a missing one."""
    if options.pattern is not None:
        pattern = compile_pattern(options.pattern)
        return by_place(each for each in catalog.list_partitions() if pattern.fullmatch(each.stream))
    found: list[StreamEnds] = []
    for stream in options.subscribe or options.assign or ():
        partitions = catalog.list_partitions(stream)
        if must_exist and not partitions:
            raise StreamMissing(f"the node has no stream {stream!r}; create it, or subscribe to another")
        if options.assign is not None:
            wanted = set(options.assign[stream])
            partitions = [each for each in partitions if each.partition in wanted]
            missing = wanted - {each.partition for each in partitions}
            if missing and must_exist:
                raise StreamMissing(f"assign: {stream!r} has no partition {', '.join(map(str, sorted(missing)))}")
        found += partitions
    return by_place(found)


def is_chosen(options: ReadOptions, place: Place) -> bool:
    """Returns whether the options choose this partition, which need not exist."""
    stream, partition = place
    if options.pattern is not None:
        return compile_pattern(options.pattern).fullmatch(stream) is not None
    if options.assign is not None:
        return partition in options.assign.get(stream, ())
    return stream in options.subscribe


def starting_indexes(
    options: ReadOptions, catalog: Catalog, ends: dict[Place, StreamEnds], default: int
) -> dict[Place, int]:
    """Returns the index where a new read of each partition begins. default: EARLIEST or LATEST. Raises OptionError."""
    starting = default if options.starting is None else options.starting
    found = resolved_indexes(catalog, ends, starting, options.starting_time_us, "startingOffsets")
    late = [place for place, index in found.items() if index >= ends[place].next_index]
    if options.starting_time_us is not None and late and options.late_start_is_error:
        stream, partition = late[0]
        name = "startingTimestamp" if isinstance(options.starting_time_us, int) else "startingOffsetsByTimestamp"
        raise OptionError(
            f"{name}: {stream}/{partition} has no message as late as that; "
            "set startingOffsetsByTimestampStrategy=latest to start such partitions at their end"
        )
    return found


def resolved_indexes(
    catalog: Catalog, ends: Ends, offsets: int | Offsets, time_us: int | Offsets | None, option: str
) -> dict[Place, int]:
    """Returns the index that an option gives for each partition, as an index or as a time. Raises OptionError."""
    if time_us is None:
        return resolve(offsets, ends, option)
    times = for_each(time_us, ends, f"{option}ByTimestamp")
    # The search may find a message that was stored after the listing. The index is then the listed end.
    return {place: min(catalog.index_at(end, times[place]), end.next_index) for place, end in ends.items()}


def database_path(path: str) -> str:
    """Returns the database file in a data directory. Raises OptionError without one, and SourceError if its write-ahead
    log (WAL) is damaged, so that confirmed messages may be lost."""
    found = Path(path) / FILE_NAME
    if not found.is_file():
        raise OptionError(f"path={path!r}: there is no {FILE_NAME}; name the data directory of a node on this machine")
    try:
        from stream_storage.errors import StorageError
        from stream_storage.sqlite.wal.check import refuse_damaged
    except ModuleNotFoundError:
        # Nothing is checked where the packages of the node (structlog) are not installed, as on executors.
        return str(found.absolute())
    try:
        refuse_damaged(found)
    except StorageError as error:
        raise SourceError(str(error)) from error
    return str(found.absolute())
