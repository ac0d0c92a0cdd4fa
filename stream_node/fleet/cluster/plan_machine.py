"""PlanMachine: decides which members live, and which shards this member takes or gives away.
There is no leader: each member decides for itself, from the same tables. A wrong decision costs time, never a message:
a member that is fenced in error starts again, and the database lets only the owner write."""

from __future__ import annotations

from typing import NamedTuple

from stream_node.fleet.cluster.view import UNOWNED, ClusterView, choose_owner

LIVES_S = 5.0
"""A member whose beats have not risen for this long counts as dead."""
GAP_S = 2.5
"""If this member has read nothing for this long, it begins to count the silence of the others anew."""
SETTLE_S = 1.5
"""The time after joining in which a member takes no free shard, so that members that start together share them."""


class MemberPlan(NamedTuple):
    """The next steps of this member."""

    take: list[tuple[int, str]]  # the shards that it takes, each with its owner before
    fences: dict[str, str]  # by name, the tokens of the dead ones among the owners before
    give: dict[str, list[int]]  # the shards that it gives away, by the name of the member that gets them


class _Seen(NamedTuple):
    token: str
    beats: int
    since_s: float


class PlanMachine:
    """Decides the next steps of one member, from the beats of the other members that it has seen.
    Invariant: `_seen` has an entry for each member of the last view."""

    def __init__(self, name: str, now_s: float) -> None:
        self._name = name
        self._joined_s = self._read_s = now_s
        self._seen: dict[str, _Seen] = {}
        self._now_s = now_s

    def note(self, view: ClusterView, now_s: float) -> None:
        # After a gap of its own, this member does not know whether the others were silent.
        gap = now_s - self._read_s > GAP_S
        self._read_s = self._now_s = now_s
        seen = {}
        for name, member in view.members.items():
            before = self._seen.get(name)
            is_same = before is not None and (before.token, before.beats) == (member.token, member.beats)
            since_s = before.since_s if before is not None and is_same and not gap else now_s
            seen[name] = _Seen(member.token, member.beats, since_s)
        self._seen = seen

    def lives(self, view: ClusterView, name: str) -> bool:
        member = view.members.get(name)
        if name == self._name:
            return True
        return member is not None and bool(member.token) and self._now_s - self._seen[name].since_s < LIVES_S

    def silent_s(self, name: str) -> float:
        """Returns for how long a member has not written, in seconds; 0 for this member, and for unknown ones."""
        seen = self._seen.get(name)
        return 0.0 if seen is None or name == self._name else self._now_s - seen.since_s

    def plan(self, view: ClusterView) -> MemberPlan:
        """Decides the next steps. view: the one that was noted last."""
        living = [name for name in view.members if self.lives(view, name)]
        # If all members that live are to give their shards away, they keep the shards.
        members = [name for name in living if not view.members[name].leaves] or living
        plan = MemberPlan([], {}, {})
        for number, shard in enumerate(view.shards):
            wanted = choose_owner(number, members)
            if shard.owner == self._name:
                if wanted is not None and wanted != self._name:
                    plan.give.setdefault(wanted, []).append(number)
            elif wanted == self._name and not self.lives(view, shard.owner):
                # The shard has no owner, or a dead one, which is fenced in the same step.
                if shard.owner in view.members:
                    plan.fences[shard.owner] = view.members[shard.owner].token
                elif shard.owner == UNOWNED and self._now_s - self._joined_s < SETTLE_S:
                    continue
                plan.take.append((number, shard.owner))
        return plan

    def check(self) -> None:
        assert all(seen.since_s <= self._now_s for seen in self._seen.values())
