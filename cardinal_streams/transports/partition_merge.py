"""Merges the messages of several partitions, the oldest first, so that no partition runs far ahead of the others.

A block consists of messages in many partitions, and stays in memory until the last of them arrives. Reading one page of
each partition in turn would need more memory, since blocks have different numbers of messages in each. The merge uses
the time at which each message was stored. A clock that jumped costs memory, but loses no message."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import Generic, TypeVar

import msgspec

from cardinal_streams.transports.transport import Delivery

K = TypeVar("K")
# Messages of one partition are taken together if they were stored at most this time, in microseconds, after the oldest
# message of every other partition.
SLACK_US = 20_000


class PartitionCursor(msgspec.Struct, eq=False):
    """The deliveries of one partition that were fetched for a merge, oldest first."""

    deliveries: list[Delivery] = []
    times_us: list[int] = []  # when each delivery was stored, in microseconds since 1970
    at: int = 0  # the position of the first delivery that was not taken yet
    # Whether the partition had no more deliveries when it was last read: then the merge does not wait for it.
    at_end: bool = False

    @property
    def left(self) -> int:
        return len(self.deliveries) - self.at


class PartitionMerge(Generic[K]):
    """Merges the deliveries of partitions, the oldest first. Deliveries of one partition are taken together if they are
    at most `slack_us` microseconds newer than the oldest one of the others. Invariant: nothing is taken while a
    partition that may have more deliveries has none fetched."""

    def __init__(self, keys: Collection[K], slack_us: int = SLACK_US) -> None:
        self._parts = {key: PartitionCursor() for key in keys}
        self._slack_us = slack_us

    def add(self, key: K) -> None:
        self._parts[key] = PartitionCursor()

    def put(self, key: K, deliveries: Sequence[Delivery], times_us: Sequence[int], *, at_end: bool) -> None:
        """Adds the next deliveries of a partition, with the times in microseconds at which they were stored. `at_end`:
        whether the partition has no more deliveries at present."""
        part = self._parts[key]
        del part.deliveries[: part.at], part.times_us[: part.at]
        part.at = 0
        part.deliveries += deliveries
        # The times are made monotonic. Otherwise a clock that was set back could delay the partition or let it run
        # ahead.
        latest = part.times_us[-1] if part.times_us else 0
        for time_us in times_us:
            latest = max(latest, time_us)
            part.times_us.append(latest)
        part.at_end = at_end

    def left(self, key: K) -> int:
        return self._parts[key].left

    def take(self, most: int) -> list[Delivery]:
        """Takes the oldest deliveries, at most `most`; none while the merge waits for a partition."""
        found: list[Delivery] = []
        while len(found) < most:
            # A partition whose next message is unknown could have the oldest message.
            if any(not part.left and not part.at_end for part in self._parts.values()):
                break
            heads = sorted(
                ((part.times_us[part.at], index) for index, part in enumerate(self._parts.values()) if part.left)
            )
            if not heads:
                break
            # Take a run of the partition with the oldest message, up to the second oldest head plus the slack.
            part = list(self._parts.values())[heads[0][1]]
            end = len(part.deliveries)
            if len(heads) > 1:
                end = bisect_right(part.times_us, heads[1][0] + self._slack_us, part.at)
            end = min(end, part.at + most - len(found))
            found += part.deliveries[part.at : end]
            part.at = end
        return found
