"""Plans the index ranges that a query reads. Each range is planned once, so that a repeated task reads the same rows.

The Spark driver plans the ranges. This module is pure: it asks neither a node nor Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

from spark_export.errors import OptionError

EARLIEST, LATEST = -2, -1
"""The numbers that mean the earliest index and the latest index in JSON with offsets, as in Spark's Kafka source."""
Offsets: TypeAlias = dict[str, dict[int, int]]
"""A mapping with one number for each partition: stream name -> partition -> index or time."""
Place: TypeAlias = tuple[str, int]
"""The name of a stream and the number of a partition."""
CREATED, DELETED = BESIDE_PARTITIONS = "created_us", "deleted"
"""The keys in the JSON of offsets for the creation times, and for the numbers of the deleted partitions."""
GONE = "the stream or the partition no longer exists"
MADE_AGAIN = "the stream was deleted and made again"
UNKNOWN_NUMBER = "nobody can say how many messages after this index it had"


@dataclass(frozen=True)
class StreamEnds:
    """A partition of a stream (see `stream_service.extensions.StreamInfo`). Times are in microseconds since 1970.

    A stream that is deleted and created again under the same name has another created_us.
    """

    stream: str
    partition: int
    first_index: int
    next_index: int
    size_bytes: int
    created_us: int


@dataclass(frozen=True)
class QueryPosition:
    """The next index that a query reads in a partition, and when the stream was created (0 in checkpoints without it).

    is_deleted: whether the query found the partition deleted, and has reported this.
    """

    index: int
    created_us: int = 0
    is_deleted: bool = False

    def is_of_another(self, later: QueryPosition) -> bool:
        """Returns whether the stream was deleted and created again between this position and `later`."""
        # With an unknown creation time, only a deletion that `later` does not know counts.
        if 0 in (self.created_us, later.created_us):
            return self.is_deleted and not later.is_deleted
        return self.created_us != later.created_us


Positions: TypeAlias = Mapping[Place, QueryPosition]
Ends: TypeAlias = Mapping[Place, StreamEnds]


@dataclass(frozen=True)
class ReadRange:
    """The indexes of one partition; `end` is exclusive. `created_us` is 0 if unknown."""

    stream: str
    partition: int
    start: int
    end: int
    created_us: int = 0

    @property
    def count(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class LostRange:
    """Lost messages of a range, and why they are lost. An empty range means an unknown number."""

    range: ReadRange
    reason: str

    def __str__(self) -> str:
        lost = self.range
        if not lost.count:
            return f"{lost.stream}/{lost.partition} from index {lost.start} on: {self.reason}"
        return f"{lost.stream}/{lost.partition} indexes {lost.start} to {lost.end - 1}: {self.reason}"


def deleted_below(first_index: int) -> str:
    return f"deleted by retention or truncation; the first is now {first_index}"


def ends_at(next_index: int) -> str:
    return f"the stream ends at {next_index}, before that"


def by_place(ends: Iterable[StreamEnds]) -> dict[Place, StreamEnds]:
    return {(each.stream, each.partition): each for each in sorted(ends, key=lambda end: (end.stream, end.partition))}


def resolve(offsets: int | Offsets, ends: Ends, option: str) -> dict[Place, int]:
    """Returns an index for each partition, with EARLIEST and LATEST resolved. Raises OptionError as `for_each` does."""
    marks = {place: {EARLIEST: each.first_index, LATEST: each.next_index} for place, each in ends.items()}
    return {place: marks[place].get(index, index) for place, index in for_each(offsets, ends, option).items()}


def for_each(offsets: int | Offsets, ends: Ends, option: str) -> dict[Place, int]:
    """Returns the number that an option gives for each partition. Raises OptionError unless the option names exactly
    the partitions in `ends`."""
    if isinstance(offsets, int):
        return dict.fromkeys(ends, offsets)
    mentioned = {(stream, partition) for stream, each in offsets.items() for partition in each}
    missing, unknown = ends.keys() - mentioned, mentioned - ends.keys()
    if missing or unknown:
        listed = ", ".join(f"{stream}/{partition}" for stream, partition in sorted(missing or unknown))
        wrong = f"has no offset for {listed}" if missing else f"names {listed}, which is not read"
        raise OptionError(f"{option} {wrong}; name every partition that is read, and no other")
    return {place: offsets[place[0]][place[1]] for place in ends}


def positions(indexes: Mapping[Place, int], ends: Ends) -> dict[Place, QueryPosition]:
    return {place: QueryPosition(index, ends[place].created_us) for place, index in indexes.items()}


def nearest_existing(start: Positions, ends: Ends) -> tuple[dict[Place, QueryPosition], list[LostRange]]:
    """Returns `start` with each missing index moved to the nearest existing one, and a `LostRange` for each move."""
    moved, losses = dict(start), []
    for place, begin in start.items():
        now = ends[place]
        if begin.index < now.first_index:
            gone = ReadRange(*place, begin.index, now.first_index)
            losses.append(LostRange(gone, deleted_below(now.first_index)))
        elif begin.index > now.next_index:
            beyond = ReadRange(*place, begin.index, begin.index)
            losses.append(LostRange(beyond, f"the query would start there, but the partition ends at {now.next_index}"))
        moved[place] = replace(begin, index=min(max(begin.index, now.first_index), now.next_index))
    return moved, losses


def reached_positions(
    begin: Positions, now: Positions, is_chosen: Callable[[Place], bool]
) -> dict[Place, QueryPosition]:
    """Returns the positions where the next micro-batch ends, if no option limits the micro-batch."""
    # An absent partition keeps its index. It was deleted, unless the user has changed the options that chose it.
    absent = {place: at for place, at in begin.items() if place not in now}
    return {**{place: replace(at, is_deleted=at.is_deleted or is_chosen(place)) for place, at in absent.items()}, **now}


def ranges_between(start: Positions, end: Positions, ends: Ends) -> tuple[list[ReadRange], list[LostRange]]:
    """Returns the non-empty ranges to read between two sets of positions, and the parts that can no longer be read.

    ends: the partitions that exist now.
    """
    ranges, losses = [], []
    for place, stop in end.items():
        # A partition without a start was added later.
        begin = start.get(place, QueryPosition(0))
        if stop.is_deleted or begin.is_of_another(stop):
            # Nobody knows whether the deleted partition had unread messages. A new one is read from index 0.
            if not begin.is_deleted:
                reason = GONE if stop.is_deleted else MADE_AGAIN
                losses.append(LostRange(ReadRange(*place, begin.index, begin.index), f"{reason}; {UNKNOWN_NUMBER}"))
            if stop.is_deleted:
                continue
            begin = QueryPosition(0)
        found, lost = _ranges_of(ReadRange(*place, begin.index, stop.index, stop.created_us), ends.get(place))
        ranges += found
        losses += lost
    return ranges, losses


def _ranges_of(wanted: ReadRange, now: StreamEnds | None) -> tuple[list[ReadRange], list[LostRange]]:
    """Splits a range into the part that can be read and the lost parts."""
    if now is None or wanted.created_us not in (0, now.created_us):
        reason = GONE if now is None else MADE_AGAIN
        return [], [LostRange(wanted, reason)] if wanted.start < wanted.end else []
    wanted = replace(wanted, created_us=now.created_us)
    if wanted.start > now.next_index:
        reason = f"the stream ends at {now.next_index}: it was deleted and made again, or restored from a backup"
        return [], [LostRange(replace(wanted, end=max(wanted.start, wanted.end)), reason)]
    losses = []
    if wanted.start < min(now.first_index, wanted.end):
        gone = replace(wanted, end=min(now.first_index, wanted.end))
        losses.append(LostRange(gone, deleted_below(now.first_index)))
        wanted = replace(wanted, start=gone.end)
    if wanted.end > now.next_index:
        losses.append(LostRange(replace(wanted, start=now.next_index), ends_at(now.next_index)))
        wanted = replace(wanted, end=now.next_index)
    return [wanted] if wanted.start < wanted.end else [], losses


def split(ranges: Sequence[ReadRange], records_max: int, pieces_min: int | None = None) -> list[ReadRange]:
    """Cuts ranges into at least `pieces_min` pieces (if there are enough indexes) of at most `records_max` indexes."""
    total = sum(each.count for each in ranges)
    piece_max = max(1, min(records_max, total // (pieces_min or 1)))
    pieces = []
    for each in filter(lambda each: each.count, ranges):
        count = -(-each.count // piece_max)
        cuts = [each.start + each.count * number // count for number in range(count + 1)]
        pieces += [replace(each, start=low, end=high) for low, high in pairwise(cuts)]
    return pieces


def count_between(start: Positions, end: Positions) -> int:
    """Returns the number of messages between two sets of positions."""
    return sum(max(0, stop.index - _first_wanted(start.get(place), stop)) for place, stop in end.items())


def is_loss(start: Positions, end: Positions) -> bool:
    """Returns whether a stream was deleted, or created again, or ends at a smaller index than before."""
    both = [(begin, end.get(place, begin)) for place, begin in start.items()]
    return any(
        stop.is_deleted != begin.is_deleted or begin.is_of_another(stop) or stop.index < begin.index
        for begin, stop in both
    )


def limited(start: Positions, end: Positions, messages_max: int) -> dict[Place, QueryPosition]:
    """Returns earlier end positions, so that about `messages_max` messages lie between `start` and the end."""
    # Each partition gets a share in proportion to its new messages, and at least one message if it has any.
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


def _first_wanted(begin: QueryPosition | None, stop: QueryPosition) -> int:
    return 0 if begin is None or begin.is_of_another(stop) else begin.index


def to_offsets(reached: Positions) -> dict[str, dict[str, Any]]:
    """Encodes positions as the offsets that Spark stores in a checkpoint.

        {"orders": {"0": 7, "1": 3, "created_us": {"0": 1700…, "1": 1700…}, "deleted": [1]}}

    Only a stream with deleted partitions has `deleted`, a list of their numbers. Spark compares offsets as JSON text,
    so the keys must have a fixed order: streams by name, partitions by number ("9" before "10").
    """
    offsets: dict[str, dict[str, Any]] = {}
    for stream, partition in sorted(reached):
        offsets.setdefault(stream, {})[str(partition)] = reached[stream, partition].index
    for stream, partition in sorted(reached):
        if created_us := reached[stream, partition].created_us:
            offsets[stream].setdefault(CREATED, {})[str(partition)] = created_us
    for stream, partition in sorted(place for place, at in reached.items() if at.is_deleted):
        offsets[stream].setdefault(DELETED, []).append(partition)
    return offsets


def from_offsets(offsets: Mapping[str, Mapping[str, Any]]) -> dict[Place, QueryPosition]:
    """Decodes offsets of `to_offsets`. Offsets of older versions have no creation times, and give created_us 0."""
    return {
        (stream, int(partition)): QueryPosition(
            int(index), int(each.get(CREATED, {}).get(partition, 0)), int(partition) in each.get(DELETED, ())
        )
        for stream, each in offsets.items()
        for partition, index in each.items()
        if partition not in BESIDE_PARTITIONS
    }
