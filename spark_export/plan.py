"""Which ranges of which partitions are read, decided on the driver once. Pure: it asks no node and no Spark.

A range is fixed when it is planned, so that a task that is tried again reads the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

from spark_export.errors import OptionError
from spark_export.node_wire import StreamEnds
from spark_export.options import EARLIEST, LATEST, Offsets

Place: TypeAlias = tuple[str, int]
"""Stream and partition."""


@dataclass(frozen=True)
class Range:
    """Indexes from `start` up to, not including, `end` of one stream-partition.

    created_us: of the stream that was planned for, so that another one made later under its name is noticed;
    0 where that is not known.
    """

    stream: str
    partition: int
    start: int
    end: int
    created_us: int = 0

    @property
    def count(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Loss:
    """A part of a range that is no longer there. reason: what happened to it, in words."""

    range: Range
    reason: str

    def __str__(self) -> str:
        lost = self.range
        return f"{lost.stream}/{lost.partition} indexes {lost.start} to {lost.end - 1}: {self.reason}"


def by_place(ends: Iterable[StreamEnds]) -> dict[Place, StreamEnds]:
    """In the order in which offsets are written: by name, then by number."""
    return {(each.stream, each.partition): each for each in sorted(ends, key=lambda end: (end.stream, end.partition))}


def resolve(offsets: int | Offsets, ends: Mapping[Place, StreamEnds], option: str) -> dict[Place, int]:
    """The index that each partition's offset means just now. Raises OptionError where one is not mentioned."""
    if isinstance(offsets, int):
        return {place: _marked(offsets, end) for place, end in ends.items()}
    mentioned = {(stream, partition) for stream, each in offsets.items() for partition in each}
    missing, unknown = sorted(ends.keys() - mentioned), sorted(mentioned - ends.keys())
    if missing or unknown:
        wrong = f"has no offset for {_listed(missing)}" if missing else f"names {_listed(unknown)}, which is not read"
        raise OptionError(f"{option} {wrong}; name every partition that is read, and no other")
    return {place: _marked(offsets[place[0]][place[1]], end) for place, end in ends.items()}


def _marked(index: int, end: StreamEnds) -> int:
    return {EARLIEST: end.first_index, LATEST: end.next_index}.get(index, index)


def _listed(places: Sequence[Place]) -> str:
    return ", ".join(f"{stream}/{partition}" for stream, partition in places)


def ranges_between(
    start: Mapping[Place, int], end: Mapping[Place, int], ends: Mapping[Place, StreamEnds]
) -> tuple[list[Range], list[Loss]]:
    """The ranges to read, without empty ones, and what of them is lost already.

    A partition that only `end` has came later, and is read from index 0. What lies before a partition's first message
    or beyond its end is a loss, and is left out of the ranges.
    """
    ranges, losses = [], []
    for place, stop in end.items():
        now = ends.get(place)
        begin = start.get(place, 0)
        if now is None:
            if begin < stop:
                losses.append(Loss(Range(*place, begin, stop), "the stream no longer exists"))
            continue
        wanted = Range(*place, begin, stop, now.created_us)
        if begin > now.next_index:
            reason = f"the stream ends at {now.next_index}: it was deleted and made again, or restored from a backup"
            losses.append(Loss(replace(wanted, end=max(begin, stop)), reason))
            continue
        if wanted.start < min(now.first_index, wanted.end):
            gone = replace(wanted, end=min(now.first_index, wanted.end))
            losses.append(Loss(gone, f"deleted by retention or truncation; the first is now {now.first_index}"))
            wanted = replace(wanted, start=gone.end)
        if wanted.end > now.next_index:
            losses.append(
                Loss(replace(wanted, start=now.next_index), f"the stream ends at {now.next_index}, before that")
            )
            wanted = replace(wanted, end=now.next_index)
        if wanted.start < wanted.end:
            ranges.append(wanted)
    return ranges, losses


def split(ranges: Sequence[Range], records_max: int, pieces_min: int | None = None) -> list[Range]:
    """The same indexes in pieces of at most `records_max`, at least `pieces_min` of them where there are so many."""
    total = sum(each.count for each in ranges)
    piece_max = records_max
    if pieces_min is not None and total:
        piece_max = max(1, min(records_max, total // pieces_min))
    pieces = []
    for each in ranges:
        if not each.count:
            continue
        count = -(-each.count // piece_max)
        cuts = [each.start + each.count * number // count for number in range(count + 1)]
        pieces += [replace(each, start=low, end=high) for low, high in pairwise(cuts)]
    return pieces


def limited(start: Mapping[Place, int], end: Mapping[Place, int], messages_max: int) -> dict[Place, int]:
    """The end cut to about so many messages, shared over partitions in proportion to what each has.

    Every partition that has any gets at least one, so that none starves; the sum is above `messages_max` only where
    there are more partitions with messages than that.
    """
    sizes = {place: max(0, stop - start.get(place, 0)) for place, stop in end.items()}
    total = sum(sizes.values())
    if total <= messages_max:
        return dict(end)
    return {
        place: start.get(place, 0) + min(sizes[place], max(1, sizes[place] * messages_max // total))
        if sizes[place]
        else stop
        for place, stop in end.items()
    }


def to_offsets(indexes: Mapping[Place, int]) -> dict[str, dict[str, int]]:
    """As Spark keeps them in a checkpoint.

    Spark compares offsets as JSON text, so the order of the keys is part of the value: streams by name, partitions by
    number ("10" behind "9").
    """
    offsets: dict[str, dict[str, int]] = {}
    for stream, partition in sorted(indexes):
        offsets.setdefault(stream, {})[str(partition)] = indexes[stream, partition]
    return offsets


def from_offsets(offsets: Mapping[str, Mapping[str, int]]) -> dict[Place, int]:
    """What `to_offsets` wrote."""
    return {
        (stream, int(partition)): int(index) for stream, each in offsets.items() for partition, index in each.items()
    }
