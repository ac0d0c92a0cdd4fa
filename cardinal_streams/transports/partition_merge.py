"""Deals out what several partitions hold, the oldest first, so that no partition is read far ahead of the others: a
block is put together from messages of many, and one whose messages are far apart is held for long. It reads nothing.

Partitions differ in how many messages a block has in them, so pages in turn are not enough. What counts is when a
message was stored. A clock that jumped costs memory, never a message.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import Generic, TypeVar

from cardinal_streams.transports.transport import Delivery

K = TypeVar("K")
# Messages of one partition are dealt together up to so long after the oldest of another, in microseconds.
SLACK_US = 20_000


class PartitionCursor:
    """One partition: the deliveries at hand, of which those before `at` were dealt out, and their times.

    `at_end`: the partition had no more when it was last read; then nobody waits for it.
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
    """The parts by any key of their owner.

    Invariant: nothing is dealt out while a part has nothing at hand and may have something older to come.
    """

    def __init__(self, keys: Collection[K], slack_us: int = SLACK_US) -> None:
        self._parts = {key: PartitionCursor() for key in keys}
        self._slack_us = slack_us

    def put(self, key: K, deliveries: Sequence[Delivery], times_us: Sequence[int], *, at_end: bool) -> None:
        """The next deliveries of a part, with the times at which they were stored, in microseconds."""
        part = self._parts[key]
        del part.deliveries[: part.at], part.times_us[: part.at]
        part.at = 0
        part.deliveries += deliveries
        # Made monotonic, so that a clock that was set back cannot hold the part up or let it run ahead.
        latest = part.times_us[-1] if part.times_us else 0
        for time_us in times_us:
            latest = max(latest, time_us)
            part.times_us.append(latest)
        part.at_end = at_end

    def left(self, key: K) -> int:
        """How many deliveries of a part are at hand."""
        return self._parts[key].left

    def take(self, most: int) -> list[Delivery]:
        """The oldest deliveries, up to `most`; none where a part has to be waited for, or nothing is at hand."""
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
