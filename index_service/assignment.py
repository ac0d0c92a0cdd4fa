"""Computes which member should have which partition: equal shares, with as few changes as possible. It grants no
leases.

While a stream grows, members may know different numbers of partitions. A member gets only partitions that it knows.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Mapping, Sequence

import msgspec


class Candidate(msgspec.Struct, frozen=True):
    """A member that wants partitions. partitions: how many partitions it knows; it can get only those with lower
    numbers."""

    member_id: str
    partitions: int


def assign(
    candidates: Sequence[Candidate], owners: Mapping[int, str], settled: Container[int] = frozenset()
) -> dict[int, str]:
    """Returns the member that should have each partition. Partitions that no candidate knows are left out.

    owners: for each partition, the member that has it now or was assigned it before. Members that are not candidates do
    not count. settled: the partitions whose owner has them and was assigned them. A member with too many partitions
    loses others first.

    If all candidates know the same partitions, their shares differ by at most one, a new member takes away at most its
    own share, and a member that leaves moves only its own partitions. Otherwise this holds as far as possible.
    """
    # Find the partitions that each candidate had and knows.
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
        # It keeps settled partitions first, then partitions with high numbers, because fewer other members know them.
        owned.sort(key=lambda partition: (partition in settled, partition), reverse=True)
        assigned.update(dict.fromkeys(owned[: shares[member_id]], member_id))
    # The other partitions are free. They go to the candidates that are furthest below their share.
    kept = _counts(assigned, candidates)
    free = [partition for partition in reversed(range(partitions)) if partition not in assigned]
    room = {member_id: kept[member_id] - share for member_id, share in shares.items()}
    assigned.update(_deal(free, candidates, {member_id: (load, 0) for member_id, load in room.items()}))
    return assigned


def _shares(partitions: int, candidates: Sequence[Candidate], had: Mapping[str, int]) -> dict[str, int]:
    """Returns how many partitions each candidate should have. Of unequal shares, the candidates that had most get the
    larger."""
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
    """Gives each partition to the candidate that knows it and has the lowest (load, rank, place). Returns the
    assignment.

    partitions: in descending order. ranks: for each member, its load at the start and its rank. The load grows by 1
    with each partition. place: the position in `candidates`.
    """
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
