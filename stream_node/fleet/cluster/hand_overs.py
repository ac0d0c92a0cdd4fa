"""HandOvers: the last changes of owners, as one member has seen them. It reads no clock and no database.
A member compares each view with the one before, so it sees the changes of all members, also those that it has no part
in. Of two changes of one shard between two reads, it sees their sum."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Final, Literal, get_args

import msgspec

from stream_node.fleet.cluster.view import UNOWNED, ClusterView, StoredMember

KEPT_MAX = 50
"""The number of retained hand-overs: those of some twenty members that join and leave."""

Reason = Literal["free", "joined", "left", "fenced"]
"""Why shards have a new owner.

free: nobody owned them. joined: the new owner has joined, or takes shards again after it was drained.
left: the owner before stops, or is drained. fenced: the owner before was silent, so another member has fenced it.
"""
REASONS: Final[tuple[Reason, ...]] = get_args(Reason)


class HandOver(msgspec.Struct, frozen=True):
    """Shards that went from one owner to another one at the same time."""

    time_us: int  # when this member has seen it, in microseconds since 1970
    shards: tuple[int, ...]  # ascending
    before: str  # the name of the owner before; UNOWNED for none
    after: str
    reason: Reason


class HandOvers:
    """The changes of owners since the start of a member. moved: by reason, the number of shards that got a new owner.
    Invariant: `_unowned` has exactly the shards without an owner in the last view."""

    def __init__(self) -> None:
        self.moved: Counter[Reason] = Counter()
        self._kept: deque[HandOver] = deque(maxlen=KEPT_MAX)
        self._view: ClusterView | None = None
        # The shards without an owner, and since when.
        self._unowned: dict[int, float] = {}

    def note(self, view: ClusterView, now_s: float, time_us: int) -> None:
        """Compares the view that was read with the one before.
        now_s: the time of a clock that is never set back, in seconds. time_us: microseconds since 1970."""
        before, self._view = self._view, view
        # A shard that stays without an owner keeps the time at which it lost its owner.
        self._unowned = {
            number: self._unowned.get(number, now_s)
            for number, shard in enumerate(view.shards)
            if shard.owner == UNOWNED
        }
        if before is None:
            # Who owned the shards earlier is not known.
            return
        # Shards that moved between the same two members are one hand-over.
        moves: dict[tuple[str, str], list[int]] = {}
        for number, (old, new) in enumerate(zip(before.shards, view.shards, strict=True)):
            if old.owner != new.owner:
                moves.setdefault((old.owner, new.owner), []).append(number)
        for (old_owner, new_owner), shards in moves.items():
            reason = _reason(before.members, view.members, old_owner, new_owner)
            self.moved[reason] += len(shards)
            self._kept.append(HandOver(time_us, tuple(shards), old_owner, new_owner, reason))

    def latest(self) -> tuple[HandOver, ...]:
        return tuple(reversed(self._kept))

    def unowned_s(self, now_s: float) -> dict[int, float]:
        return {number: now_s - since_s for number, since_s in self._unowned.items()}

    def check(self) -> None:
        shards = () if self._view is None else self._view.shards
        assert list(self._unowned) == [number for number, shard in enumerate(shards) if shard.owner == UNOWNED]
        assert len(self._kept) <= KEPT_MAX


def _reason(
    before: Mapping[str, StoredMember], now: Mapping[str, StoredMember], old_owner: str, new_owner: str
) -> Reason:
    if old_owner == UNOWNED:
        return "free"
    was, gave = before.get(old_owner), now.get(old_owner)
    if gave is not None and not gave.token:
        return "fenced"
    # A member that stops says first that it leaves, and its row goes last.
    if was is None or gave is None or was.leaves or gave.leaves:
        return "left"
    if was.token != gave.token and _process(before, new_owner) == _process(now, new_owner):
        # The owner was fenced, and has started again since the earlier view. A new process of a member keeps the shards
        # of the former process, and gives them away only to a member that joins.
        return "fenced"
    return "joined"


def _process(members: Mapping[str, StoredMember], name: str) -> str | None:
    found = members.get(name)
    return None if found is None else found.token
