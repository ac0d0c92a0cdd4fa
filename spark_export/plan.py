"""Which ranges of which partitions are read, decided on the driver once. Pure: it asks no node and no Spark.

A range is fixed when it is planned, so that a task that is tried again reads the same rows.
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
    """How far a stream-partition is read: the next index, and when the stream was made, in microseconds since 1970.

    created_us: 0 where it is not known, as in checkpoints of versions that did not keep it.
    """

    index: int
    created_us: int = 0

    def is_of_another(self, later: Position) -> bool:
        """Whether the stream was deleted and made again under its name between this and the later position."""
        return 0 not in (self.created_us, later.created_us) and self.created_us != later.created_us


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
    """A part of a range that is no longer there; an empty range where nobody knows how long it was.

    reason: what happened to it, in words.
    """

    range: Range
    reason: str

    def __str__(self) -> str:
        lost = self.range
        if not lost.count:
            return f"{lost.stream}/{lost.partition} from index {lost.start} on: {self.reason}"
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


def positions(indexes: Mapping[Place, int], ends: Mapping[Place, StreamEnds]) -> dict[Place, Position]:
    """These indexes of the streams that are there now."""
    return {place: Position(index, ends[place].created_us) for place, index in indexes.items()}


def ranges_between(
    start: Mapping[Place, Position], end: Mapping[Place, Position], ends: Mapping[Place, StreamEnds]
) -> tuple[list[Range], list[Loss]]:
    """The ranges to read, without empty ones, and what of them is lost already.

    A partition that only `end` has came later, and is read from index 0; so is one that `end` has of a stream made
    anew, whose earlier rest is a loss. What lies before a partition's first message or beyond its end is a loss, and is
    left out of the ranges.
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
    """What of a range is there in a stream as it is now, and what is lost."""
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


def limited(start: Mapping[Place, Position], end: Mapping[Place, Position], messages_max: int) -> dict[Place, Position]:
    """The end cut to about so many messages, shared over partitions in proportion to what each has.

    Every partition that has any gets at least one, so that none starves; the sum is above `messages_max` only where
    there are more partitions with messages than that.
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
    """As Spark keeps them in a checkpoint: `{"orders": {"0": 7, "1": 3, "created_us": {"0": 1700…, "1": 1700…}}}`.

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
    """What `to_offsets` wrote, in this version or in one that kept indexes only."""
    return {
        (stream, int(partition)): Position(int(index), int(each.get(CREATED, {}).get(partition, 0)))
        for stream, each in offsets.items()
        for partition, index in each.items()
        if partition != CREATED
    }
