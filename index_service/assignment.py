"""Computes which member should have which partition: equal shares, with as few changes as possible. It gives no leases.

While a stream grows, members may know different numbers of partitions. A member gets only partitions that it knows.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Mapping, Sequence

import msgspec


class Candidate(msgspec.Struct, frozen=True):
    """A member that wants partitions. partitions: how many it knows, so it can have those with lower numbers."""

    member_id: str
    partitions: int


def assign(
    candidates: Sequence[Candidate], owners: Mapping[int, str], settled: Container[int] = frozenset()
) -> dict[int, str]:
    """The member that should have each partition. Partitions that no candidate knows are left out.

    owners: the member that has each partition now, or should have had it; members that are no candidates do not count.
    settled: partitions that their owner should have had anyway; an owner with too many loses others first.

    If all candidates know the same partitions, their shares differ by at most one, a new member takes away at most its
    own share, and a member that leaves moves only its own partitions. Otherwise this holds as far as possible.
    """
    # The partitions that each candidate had and knows.
    partitions = max((each.partitions for each in candidates), default=0)
    had: dict[str, list[int]] = {each.member_id: [] for each in candidates}
    known = {each.member_id: each.partitions for each in candidates}
    for partition, owner in owners.items():
        if partition < known.get(owner, 0):
            had[owner].append(partition)
    # Each candidate keeps as many of these as its share allows.
    shares = _shares(partitions, candidates, {member_id: len(owned) for member_id, owned in had.items()})
    assigned: dict[int, str] = {}
    for member_id, owned in had.items():
        # Settled ones first, then those with high numbers, which fewer others know.
        owned.sort(key=lambda partition: (partition in settled, partition), reverse=True)
        assigned.update(dict.fromkeys(owned[: shares[member_id]], member_id))
    # The others are free, and go to the candidates that are furthest below their share.
    kept = _counts(assigned, candidates)
    free = [partition for partition in reversed(range(partitions)) if partition not in assigned]
    room = {member_id: kept[member_id] - share for member_id, share in shares.items()}
    assigned.update(_deal(free, candidates, {member_id: (load, 0) for member_id, load in room.items()}))
    return assigned


def _shares(partitions: int, candidates: Sequence[Candidate], had: Mapping[str, int]) -> dict[str, int]:
    """How many partitions each candidate should have. If they cannot be equal, those that had most get one more."""
    ranks = {member_id: (0, -count) for member_id, count in had.items()}
    return _counts(_deal(list(reversed(range(partitions))), candidates, ranks), candidates)


def _counts(assigned: Mapping[int, str], candidates: Sequence[Candidate]) -> dict[str, int]:
    counts = {each.member_id: 0 for each in candidates}
    for member_id in assigned.values():
        counts[member_id] += 1
    return counts


def _deal(
    partitions: Sequence[int], candidates: Sequence[Candidate], ranks: Mapping[str, tuple[int, int]]
) -> dict[int, str]:
    """Give each partition, highest first, to the candidate that knows it and has the lowest (load, rank, place)."""
    waiting = sorted(enumerate(candidates), key=lambda pair: pair[1].partitions)
    heap: list[tuple[int, int, int, str]] = []
    dealt: dict[int, str] = {}
    for partition in partitions:
        while waiting and waiting[-1][1].partitions > partition:
            place, candidate = waiting.pop()
            load, rank = ranks[candidate.member_id]
            heapq.heappush(heap, (load, rank, place, candidate.member_id))
        load, rank, place, member_id = heap[0]
        heapq.heapreplace(heap, (load + 1, rank, place, member_id))
        dealt[partition] = member_id
    return dealt
