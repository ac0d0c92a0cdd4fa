"""Plans the ranges that a query reads, once and on the driver. This module is pure: it asks neither a node nor Spark.

A range is fixed when it is planned, so that a repeated task reads the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

from spark_export.errors import OptionError
from spark_export.node_wire import StreamEnds
from spark_export.options import EARLIEST, LATEST, Offsets

Place: TypeAlias = tuple[str, int]
"""Stream and partition."""
CREATED = "created_us"
"""In the JSON of offsets, beside the numbers of partitions."""


@dataclass(frozen=True)
class Position:
    """The position of a query in a partition: the next index, and the time of the stream's creation.

    created_us: in microseconds since 1970; 0 if it is not known, as in checkpoints of older versions.
    """

    index: int
    created_us: int = 0

    def is_of_another(self, later: Position) -> bool:
        """Whether the stream was deleted and made anew between this position and a later one."""
        return 0 not in (self.created_us, later.created_us) and self.created_us != later.created_us


@dataclass(frozen=True)
class Range:
    """The indexes of one partition from `start` up to, but not including, `end`.

    created_us: the time of the stream's creation, by which a later stream with the same name is noticed; 0 if it is not
    known.
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
    """A lost part of a range; an empty range if its length is not known. reason: a text that says why the messages are
    lost.
    """

    range: Range
    reason: str

    def __str__(self) -> str:
        lost = self.range
        if not lost.count:
            return f"{lost.stream}/{lost.partition} from index {lost.start} on: {self.reason}"
        return f"{lost.stream}/{lost.partition} indexes {lost.start} to {lost.end - 1}: {self.reason}"


def by_place(ends: Iterable[StreamEnds]) -> dict[Place, StreamEnds]:
    """The key by which offsets are ordered: name, then number."""
    return {(each.stream, each.partition): each for each in sorted(ends, key=lambda end: (end.stream, end.partition))}


def resolve(offsets: int | Offsets, ends: Mapping[Place, StreamEnds], option: str) -> dict[Place, int]:
    """The index that each partition's offset means at this moment. Raises OptionError if a partition has no offset."""
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


def positions(indexes: Mapping[Place, int], ends: Mapping[Place, StreamEnds]) -> dict[Place, Position]:
    """The positions at these indexes, with the creation times of the present streams."""
    return {place: Position(index, ends[place].created_us) for place, index in indexes.items()}


def ranges_between(
    start: Mapping[Place, Position], end: Mapping[Place, Position], ends: Mapping[Place, StreamEnds]
) -> tuple[list[Range], list[Loss]]:
    """The ranges to be read, without empty ones, and the parts that are already lost.

    A partition that only `end` has was added later, and is read from index 0. A partition of a stream that was made
    anew is read from index 0, too; the unread rest of the earlier stream is a loss. Indexes before a partition's first
    message or beyond its end are a loss, and are left out of the ranges.
    """
    ranges, losses = [], []
    for place, stop in end.items():
        begin = start.get(place, Position(0))
        if begin.is_of_another(stop):
            reason = "the stream was deleted and made again; what else it had is lost"
            losses.append(Loss(Range(*place, begin.index, begin.index), reason))
            begin = Position(0)
        found, lost = _ranges_of(Range(*place, begin.index, stop.index, stop.created_us), ends.get(place))
        ranges += found
        losses += lost
    return ranges, losses


def _ranges_of(wanted: Range, now: StreamEnds | None) -> tuple[list[Range], list[Loss]]:
    """The existing part of a range and its lost parts, given the stream's present ends."""
    if now is None or wanted.created_us not in (0, now.created_us):
        reason = "the stream no longer exists" if now is None else "the stream was deleted and made again"
        return [], [Loss(wanted, reason)] if wanted.start < wanted.end else []
    wanted = replace(wanted, created_us=now.created_us)
    if wanted.start > now.next_index:
        reason = f"the stream ends at {now.next_index}: it was deleted and made again, or restored from a backup"
        return [], [Loss(replace(wanted, end=max(wanted.start, wanted.end)), reason)]
    losses = []
    if wanted.start < min(now.first_index, wanted.end):
        gone = replace(wanted, end=min(now.first_index, wanted.end))
        losses.append(Loss(gone, f"deleted by retention or truncation; the first is now {now.first_index}"))
        wanted = replace(wanted, start=gone.end)
    if wanted.end > now.next_index:
        losses.append(Loss(replace(wanted, start=now.next_index), f"the stream ends at {now.next_index}, before that"))
        wanted = replace(wanted, end=now.next_index)
    return [wanted] if wanted.start < wanted.end else [], losses


def split(ranges: Sequence[Range], records_max: int, pieces_min: int | None = None) -> list[Range]:
    """Cuts ranges into pieces of at most `records_max` indexes; at least `pieces_min` pieces if there are so many
    indexes."""
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


def limited(start: Mapping[Place, Position], end: Mapping[Place, Position], messages_max: int) -> dict[Place, Position]:
    """Limits the end to about `messages_max` messages, shared among partitions in proportion to their new messages.

    Every partition with new messages gets at least one, so that none starves. The sum exceeds `messages_max` only if
    more than `messages_max` partitions have new messages.
    """
    begins = {place: _first_wanted(start.get(place), stop) for place, stop in end.items()}
    sizes = {place: max(0, stop.index - begins[place]) for place, stop in end.items()}
    total = sum(sizes.values())
    if total <= messages_max:
        return dict(end)
    shares = {place: min(size, max(1, size * messages_max // total)) for place, size in sizes.items()}
    return {
        place: replace(stop, index=begins[place] + shares[place]) if sizes[place] else stop
        for place, stop in end.items()
    }


def _first_wanted(begin: Position | None, stop: Position) -> int:
    return 0 if begin is None or begin.is_of_another(stop) else begin.index


def to_offsets(reached: Mapping[Place, Position]) -> dict[str, dict[str, Any]]:
    """The offsets as Spark keeps them in a checkpoint: `{"orders": {"0": 7, "1": 3, "created_us": {"0": 1700…, "1":
    1700…}}}`.

    Spark compares offsets as JSON text, so the order of the keys is part of the value: streams by name, partitions by
    number ("10" behind "9").
    """
    offsets: dict[str, dict[str, Any]] = {}
    for stream, partition in sorted(reached):
        offsets.setdefault(stream, {})[str(partition)] = reached[stream, partition].index
    for stream, partition in sorted(reached):
        if created_us := reached[stream, partition].created_us:
            offsets[stream].setdefault(CREATED, {})[str(partition)] = created_us
    return offsets


def from_offsets(offsets: Mapping[str, Mapping[str, Any]]) -> dict[Place, Position]:
    """Reads offsets that `to_offsets` wrote, in this version or in an older one that kept indexes only."""
    return {
        (stream, int(partition)): Position(int(index), int(each.get(CREATED, {}).get(partition, 0)))
        for stream, each in offsets.items()
        for partition, index in each.items()
        if partition != CREATED
    }
