"""The comparison at the end of the demo: confirmed, stored and consumed messages. It is pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

import msgspec

Confirmed: TypeAlias = Sequence[tuple[int, bytes]]
"""Index and data of each push of one partition, in the order in which they were pushed."""


class Proof(msgspec.Struct, frozen=True):
    """confirmed, stored, consumed: messages. stored_again: pushes that were sent again because their confirm was lost.

    consumed_again: messages that a consumer got twice, around its kill. broken: promises that were not kept.
    """

    confirmed: int
    stored: int
    stored_again: int
    consumed: int
    consumed_again: int
    broken: tuple[str, ...]


def prove(
    confirmed: Mapping[int, Confirmed],
    stored: Mapping[int, Mapping[int, bytes]],
    consumed: Iterable[tuple[int, int, bytes]],
    under_way: int,
) -> Proof:
    """Compare the messages of each partition.

    stored: index to data. consumed: partition, index and data as they were read. under_way: the number of pushes
    without a confirm when the store was killed; no more than these may be stored again.
    """
    broken: list[str] = []
    for partition, pushes in confirmed.items():
        broken += _check_confirmed(partition, pushes, stored[partition])
    read: dict[tuple[int, int], bytes] = {}
    total = 0
    for partition, index, data in consumed:
        total += 1
        if stored[partition].get(index) != data:
            broken.append(f"partition {partition} index {index}: what was consumed is not what is stored")
        read[partition, index] = data
    missing = [
        (partition, index) for partition, kept in stored.items() for index in kept if (partition, index) not in read
    ]
    if missing:
        broken.append(f"{len(missing)} stored messages were not consumed, the first at {missing[0]}")
    count = sum(map(len, confirmed.values()))
    kept = sum(map(len, stored.values()))
    if kept - count > under_way:
        broken.append(f"{kept - count} messages are stored again, and {under_way} were on their way at the kill")
    return Proof(count, kept, kept - count, len(read), total - len(read), tuple(broken))


def _check_confirmed(partition: int, pushes: Confirmed, stored: Mapping[int, bytes]) -> list[str]:
    """Each confirmed push is at its index with its bytes, indexes rise as pushed, and nothing else is stored."""
    broken = []
    for index, data in pushes:
        if stored.get(index) != data:
            broken.append(f"partition {partition} index {index}: confirmed, but not stored as pushed")
    indexes = [index for index, _ in pushes]
    if any(later <= earlier for earlier, later in pairwise(indexes)):
        broken.append(f"partition {partition}: confirmed out of order")
    pushed = {data for _, data in pushes}
    strangers = [index for index in stored.keys() - set(indexes) if stored[index] not in pushed]
    if strangers:
        broken.append(f"partition {partition}: {len(strangers)} stored messages that nobody pushed")
    if stored and sorted(stored) != list(range(min(stored), max(stored) + 1)):
        broken.append(f"partition {partition}: holes between the stored indexes")
    return broken
