"""The catalog of streams, for the driver: the existing streams, and where they begin and end. It reads no messages."""

from __future__ import annotations

from typing import Protocol

from spark_export.errors import OptionError, StreamMissing
from spark_export.file_catalog import FileCatalog
from spark_export.node_client import NodeConnection, require_partitions
from spark_export.node_wire import StreamEnds
from spark_export.options import LATEST, ReadOptions
from spark_export.patterns import compile_pattern
from spark_export.plan import Place, by_place, resolve


class Catalog(Protocol):
    """The interface of a catalog: a node, or its data directory."""

    def list_streams(self, prefix: str = "") -> list[StreamEnds]:
        """The partitions of all streams whose name begins with this prefix."""
        ...

    def index_at(self, end: StreamEnds, time_us: int) -> int:
        """The index of the first message that was stored at that time or later; the stream's end if there is none."""
        ...


class NodeCatalog:
    """The catalog of a node. Each request makes a connection of its own, since the driver asks seldom."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def list_streams(self, prefix: str = "") -> list[StreamEnds]:
        with NodeConnection(self._options.endpoint, self._options.request_timeout_s) as node:
            return list(node.list_streams(prefix))

    def index_at(self, end: StreamEnds, time_us: int) -> int:
        with NodeConnection(self._options.endpoint, self._options.request_timeout_s) as node:
            return node.index_at(end.stream, end.partition, time_us)


def find_catalog(options: ReadOptions) -> Catalog:
    """The catalog that the options name."""
    return NodeCatalog(options) if options.path is None else FileCatalog(options.path)


def selected(options: ReadOptions, catalog: Catalog, *, must_exist: bool = True) -> dict[Place, StreamEnds]:
    """The present partitions of the streams that the options choose.

    must_exist: whether a stream given by name must exist; a query that already runs goes on without the stream. Raises
    StreamMissing.
    """
    if options.pattern is not None:
        pattern = compile_pattern(options.pattern)
        return by_place(each for each in catalog.list_streams() if pattern.fullmatch(each.stream))
    found: list[StreamEnds] = []
    for stream in options.subscribe or options.assign or ():
        partitions = [each for each in catalog.list_streams(stream) if each.stream == stream]
        if must_exist:
            require_partitions(partitions, stream)
        if options.assign is not None:
            wanted = set(options.assign[stream])
            partitions = [each for each in partitions if each.partition in wanted]
            missing = wanted - {each.partition for each in partitions}
            if missing and must_exist:
                raise StreamMissing(f"assign: {stream!r} has no partition {', '.join(map(str, sorted(missing)))}")
        found += partitions
    return by_place(found)


def starting_indexes(
    options: ReadOptions, catalog: Catalog, ends: dict[Place, StreamEnds], default: int
) -> dict[Place, int]:
    """The indexes where a new read begins. default: EARLIEST or LATEST, for options that do not say. Raises
    OptionError."""
    if options.starting_time_us is None:
        return resolve(default if options.starting is None else options.starting, ends, "startingOffsets")
    found = {place: catalog.index_at(end, options.starting_time_us) for place, end in ends.items()}
    late = [place for place, index in found.items() if index >= ends[place].next_index]
    if late and options.late_start_is_error:
        stream, partition = late[0]
        raise OptionError(
            f"startingTimestamp: {stream}/{partition} has no message as late as that; "
            "set startingOffsetsByTimestampStrategy=latest to start such partitions at their end"
        )
    return found


def ending_indexes(options: ReadOptions, catalog: Catalog, ends: dict[Place, StreamEnds]) -> dict[Place, int]:
    """The indexes where a batch read ends; exclusive."""
    if options.ending_time_us is not None:
        return {place: catalog.index_at(end, options.ending_time_us) for place, end in ends.items()}
    return resolve(options.ending, ends, "endingOffsets")


def is_latest(options: ReadOptions) -> bool:
    """Whether the read starts at the end of some partition."""
    starting = options.starting
    if isinstance(starting, dict):
        return any(LATEST in each.values() for each in starting.values())
    return starting == LATEST
