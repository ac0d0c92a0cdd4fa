"""Merges the deliveries of several partitions, the oldest first, so that no partition runs far ahead of the others. A
block consists of messages of many partitions, and stays in memory until the last of them arrives. This module reads no
partitions.

Reading one page of each partition in turn would not do, since blocks have different numbers of messages in different
partitions. The merge goes by the time at which a message was stored. A clock that jumped costs memory, never a message.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import Generic, TypeVar

from cardinal_streams.transports.transport import Delivery

K = TypeVar("K")
# Messages of one partition are taken together up to this time, in microseconds, after the oldest message of another
# one.
SLACK_US = 20_000


class PartitionCursor:
    """The state of one partition: its fetched deliveries and their times. The deliveries before `at` were taken.
    `at_end`: the partition had no more deliveries when it was last read, so the merge does not wait for it.
    """

    __slots__ = ("at", "at_end", "deliveries", "times_us")

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.times_us: list[int] = []
        self.at = 0
        self.at_end = False

    @property
    def left(self) -> int:
        return len(self.deliveries) - self.at


class PartitionMerge(Generic[K]):
    """Merges partitions, which are named by any keys.

    Invariant: no delivery is taken while some partition has no fetched delivery and may have older ones to come.
    """

    def __init__(self, keys: Collection[K], slack_us: int = SLACK_US) -> None:
        self._parts = {key: PartitionCursor() for key in keys}
        self._slack_us = slack_us

    def put(self, key: K, deliveries: Sequence[Delivery], times_us: Sequence[int], *, at_end: bool) -> None:
        """Adds the next deliveries of a partition, with the times at which they were stored, in microseconds."""
        part = self._parts[key]
        del part.deliveries[: part.at], part.times_us[: part.at]
        part.at = 0
        part.deliveries += deliveries
        # The times are made monotonic, so that a clock that was set back can neither hold the partition up nor let it
        # run ahead.
        latest = part.times_us[-1] if part.times_us else 0
        for time_us in times_us:
            latest = max(latest, time_us)
            part.times_us.append(latest)
        part.at_end = at_end

    def left(self, key: K) -> int:
        """The number of fetched deliveries of a partition that were not taken."""
        return self._parts[key].left

    def take(self, most: int) -> list[Delivery]:
        """Takes the oldest deliveries, at most `most`. Returns none while the merge waits for a partition, or when none
        are fetched."""
        found: list[Delivery] = []
        while len(found) < most:
            if any(not part.left and not part.at_end for part in self._parts.values()):
                break
            heads = sorted(
                ((part.times_us[part.at], index) for index, part in enumerate(self._parts.values()) if part.left)
            )
            if not heads:
                break
            part = list(self._parts.values())[heads[0][1]]
            end = len(part.deliveries)
            if len(heads) > 1:
                end = bisect_right(part.times_us, heads[1][0] + self._slack_us, part.at)
            end = min(end, part.at + most - len(found))
            found += part.deliveries[part.at : end]
            part.at = end
        return found
