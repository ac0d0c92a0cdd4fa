"""Computes which member of a group of consumers should process which partition of a stream. It grants no leases.

The members get equal shares as far as possible, and as few partitions as possible change from one member to another.
While a stream grows, members can know different numbers of partitions. A member gets only partitions that it knows.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Container, Mapping, Sequence


def assign(
    candidates: Mapping[str, int], owners: Mapping[int, str], settled: Container[int] = frozenset()
) -> dict[int, str]:
    """Returns the member that should have each partition. Partitions that no candidate knows are left out.

    candidates: the members that want partitions. A member knows the partitions below its number.
    owners: for each partition, the member that has the partition now; if no member has it, the member to which it was
        last assigned. Members that are not candidates are ignored.
    settled: the partitions that are now with the member to which they were last assigned. If a member has too many
        partitions, it keeps its settled ones and loses others first.

    If all candidates know the same partitions, these rules hold. Otherwise they hold as far as possible.

    - The shares of two members differ by at most one partition.
    - A new member takes at most its own share from the other members.
    - When a member leaves, only the partitions of that member move.
    """
    # For each candidate, collect the partitions that the candidate had so far and still knows.
    partitions = max(candidates.values(), default=0)
    had: dict[str, list[int]] = {member_id: [] for member_id in candidates}
    for partition, owner in owners.items():
        if partition < candidates.get(owner, 0):
            had[owner].append(partition)
    # Each candidate keeps as many of its partitions as its share allows.
    shares = _shares(partitions, candidates, {member_id: len(owned) for member_id, owned in had.items()})
    assigned: dict[int, str] = {}
    for member_id, owned in had.items():
        # A candidate keeps settled partitions first, then those with high numbers, because fewer members know these.
        owned.sort(key=lambda partition: (partition in settled, partition), reverse=True)
        assigned.update(dict.fromkeys(owned[: shares[member_id]], member_id))
    # The other partitions are free. They go to the candidates that are furthest below their share.
    kept = _counts(assigned, candidates)
    free = [partition for partition in reversed(range(partitions)) if partition not in assigned]
    room = {member_id: kept[member_id] - share for member_id, share in shares.items()}
    assigned.update(_deal(free, candidates, {member_id: (load, 0) for member_id, load in room.items()}))
    return assigned


def _shares(partitions: int, candidates: Mapping[str, int], had: Mapping[str, int]) -> dict[str, int]:
    """Returns how many partitions each candidate should have. Candidates that `had` more get the larger shares."""
    ranks = {member_id: (0, -count) for member_id, count in had.items()}
    return _counts(_deal(list(reversed(range(partitions))), candidates, ranks), candidates)


def _counts(assigned: Mapping[int, str], candidates: Mapping[str, int]) -> dict[str, int]:
    return dict.fromkeys(candidates, 0) | Counter(assigned.values())


def _deal(
    partitions: Sequence[int], candidates: Mapping[str, int], ranks: Mapping[str, tuple[int, int]]
) -> dict[int, str]:
    """Assigns each partition to the candidate with the lowest load among those that know it. If loads
    are equal, the lowest rank decides, and then the earliest place in `candidates`.

    partitions: in descending order. ranks: for each member, its load at the start and its rank. Each assigned partition
    raises the load by 1.
    """
    waiting = sorted(enumerate(candidates), key=lambda pair: candidates[pair[1]])
    heap: list[tuple[int, int, int, str]] = []
    dealt: dict[int, str] = {}
    for partition in partitions:
        # Partitions come in descending order. So a candidate that knows this one knows all that follow, and stays in
        # the heap.
        while waiting and candidates[waiting[-1][1]] > partition:
            place, member_id = waiting.pop()
            load, rank = ranks[member_id]
            heapq.heappush(heap, (load, rank, place, member_id))
        load, rank, place, member_id = heap[0]
        heapq.heapreplace(heap, (load + 1, rank, place, member_id))
        dealt[partition] = member_id
    return dealt
