"""Finds the existing streams and their first and last indexes, for the Spark driver."""

from __future__ import annotations

from typing import Protocol

from spark_export.errors import OptionError, StreamMissing
from spark_export.source.file_catalog import FileCatalog
from spark_export.source.node import asked, list_streams
from spark_export.source.option_values import LATEST
from spark_export.source.options import ReadOptions
from spark_export.source.patterns import compile_pattern
from spark_export.source.plan import Place, StreamEnds, by_place, for_each, resolve
from stream_client import FromTime


class Catalog(Protocol):
    """The interface of a catalog, which lists streams. `NodeCatalog` asks a node, `FileCatalog` reads its files."""

    def list_streams(self, prefix: str = "") -> list[StreamEnds]:
        """Returns the partitions of all streams whose name begins with `prefix`."""
        ...

    def index_at(self, end: StreamEnds, time_us: int) -> int:
        """Returns the index of the first message stored at `time_us` or later, else that after the last message."""
        ...


class NodeCatalog:
    """A catalog that asks a node. Each request opens its own client, because the driver sends few requests."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def list_streams(self, prefix: str = "") -> list[StreamEnds]:
        return asked(self._options, lambda client: list(list_streams(client, prefix)))

    def index_at(self, end: StreamEnds, time_us: int) -> int:
        return asked(
            self._options,
            lambda client: (
                client.get_stream(end.stream).get_partition(end.partition).find_index(FromTime(max(0, time_us)))
            ),
        )


def find_catalog(options: ReadOptions) -> Catalog:
    return NodeCatalog(options) if options.path is None else FileCatalog(options.path)


def selected(options: ReadOptions, catalog: Catalog, *, must_exist: bool = True) -> dict[Place, StreamEnds]:
    """Returns the existing partitions of the chosen streams. With `must_exist`, raises StreamMissing if the options
    name a missing one."""
    if options.pattern is not None:
        pattern = compile_pattern(options.pattern)
        return by_place(each for each in catalog.list_streams() if pattern.fullmatch(each.stream))
    found: list[StreamEnds] = []
    for stream in options.subscribe or options.assign or ():
        partitions = [each for each in catalog.list_streams(stream) if each.stream == stream]
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
    """Returns whether the options choose this partition, whether it exists or not."""
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
    if options.starting_time_us is None:
        return resolve(default if options.starting is None else options.starting, ends, "startingOffsets")
    times = for_each(options.starting_time_us, ends, "startingOffsetsByTimestamp")
    found = {place: catalog.index_at(end, times[place]) for place, end in ends.items()}
    late = [place for place, index in found.items() if index >= ends[place].next_index]
    if late and options.late_start_is_error:
        stream, partition = late[0]
        name = "startingTimestamp" if isinstance(options.starting_time_us, int) else "startingOffsetsByTimestamp"
        raise OptionError(
            f"{name}: {stream}/{partition} has no message as late as that; "
            "set startingOffsetsByTimestampStrategy=latest to start such partitions at their end"
        )
    # A message that came after the listing may be found. It is read after the end that was listed.
    return {place: min(index, ends[place].next_index) for place, index in found.items()}


def ending_indexes(options: ReadOptions, catalog: Catalog, ends: dict[Place, StreamEnds]) -> dict[Place, int]:
    """Returns the exclusive index where a batch read ends, for each partition."""
    if options.ending_time_us is None:
        return resolve(options.ending, ends, "endingOffsets")
    times = for_each(options.ending_time_us, ends, "endingOffsetsByTimestamp")
    return {place: min(catalog.index_at(end, times[place]), end.next_index) for place, end in ends.items()}


def is_latest(options: ReadOptions) -> bool:
    """Returns whether the option `startingOffsets` is `latest` for at least one partition."""
    starting = options.starting
    if isinstance(starting, dict):
        return any(LATEST in each.values() for each in starting.values())
    return starting == LATEST
