"""Compares the confirmed, stored and consumed messages at the end of the demo. It does no input or output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

import msgspec


class DemoFailed(Exception):
    """A promise was broken, or a step of the demo did not end in time. The text says which."""


Confirmed: TypeAlias = Sequence[tuple[int, bytes]]
"""The index and the data of each confirmed push to one partition, in the order of the pushes."""


class DemoProof(msgspec.Struct, frozen=True):
    """The result of the comparison. broken: one text for each broken promise. stored_again: pushed again after a lost
    confirm. consumed_again: read twice by a consumer that was killed."""

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
) -> DemoProof:
    """Compares the messages of each partition. stored: the data by partition and index. consumed: in the order of
    reading. under_way: the number of unconfirmed pushes at the kill; only these may be stored twice."""
    broken: list[str] = []
    for partition, pushes in confirmed.items():
        broken += _check_confirmed(partition, pushes, stored[partition])
    # Each consumed message is equal to the stored one; a consumer that was killed may read some messages twice.
    read: dict[tuple[int, int], bytes] = {}
    total = 0
    for partition, index, data in consumed:
        total += 1
        if stored[partition].get(index) != data:
            broken.append(f"partition {partition} index {index}: what was consumed is not what is stored")
        read[partition, index] = data
    # Each stored message was consumed.
    missing = [
        (partition, index) for partition, kept in stored.items() for index in kept if (partition, index) not in read
    ]
    if missing:
        broken.append(f"{len(missing)} stored messages were not consumed, the first at {missing[0]}")
    # Only pushes that were under way at the kill may be stored twice.
    count = sum(map(len, confirmed.values()))
    kept = sum(map(len, stored.values()))
    if kept - count > under_way:
        broken.append(f"{kept - count} messages are stored again, and {under_way} were on their way at the kill")
    return DemoProof(count, kept, kept - count, len(read), total - len(read), tuple(broken))


def _check_confirmed(partition: int, pushes: Confirmed, stored: Mapping[int, bytes]) -> list[str]:
    """Returns a text for each broken promise of one partition: each confirmed push is stored at its index, the
    indexes rise without gaps, and nothing else is stored."""
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
