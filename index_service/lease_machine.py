"""LeaseMachine: decides which member processes which partition, for one client id on one stream. It reads no clock.

A member gets a lease only in the answer to its own request. Each lease has a fence: a number that is higher than the
fences of all earlier leases of the partition. The fence is on disk before the answer is sent. A lease ends if a later
request of the member does not name it, if the member leaves the group, or if the member has sent no request for the
time to live. So a client must use only the leases in the answer to its latest request, for the time to live after it
sent that request.

Requests can arrive late or twice. A request with a lower id than the member's latest request changes nothing. If the
latest request arrives a second time, it ends no lease: it cannot name the leases that its first arrival brought.

After a restart, the node does not know the ids of earlier requests. A lease from before the restart continues if its
member names it. Such a lease ends if the member leaves with a request that names it, or when its time to live is
certainly over.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from index_service.assignment import assign
from index_service.extensions import Lease, LeaseRequest, LeaseResponse


class LeaseState(enum.Enum):
    """The state of one partition."""

    FREE = "no member has the lease"
    WRITING = "a member will get the lease as soon as its fence is on disk"
    HELD = "a member has the lease"
    OLD = "a member had the lease before the start of the node, and has not named it since"


class LeaseEvent(enum.Enum):
    """An event that changes the state of one partition."""

    GIVEN = "a member is given the lease"
    WRITTEN = "the fence is on disk"
    NOT_WRITTEN = "the fence could not be written"
    NAMED = "a request of the member that has the lease names the lease"
    NOT_NAMED = "a request of the member that has the lease does not name it"
    ENDED = "the member that has the lease left the group, or its time to live ran out"
    LAPSED = "the time to live of leases from before the start of the node is over"


TRANSITIONS = {
    (LeaseState.FREE, LeaseEvent.GIVEN): LeaseState.WRITING,
    (LeaseState.WRITING, LeaseEvent.WRITTEN): LeaseState.HELD,
    (LeaseState.WRITING, LeaseEvent.NOT_WRITTEN): LeaseState.FREE,
    (LeaseState.WRITING, LeaseEvent.NOT_NAMED): LeaseState.WRITING,
    (LeaseState.WRITING, LeaseEvent.ENDED): LeaseState.FREE,
    (LeaseState.HELD, LeaseEvent.NAMED): LeaseState.HELD,
    (LeaseState.HELD, LeaseEvent.NOT_NAMED): LeaseState.FREE,
    (LeaseState.HELD, LeaseEvent.ENDED): LeaseState.FREE,
    (LeaseState.OLD, LeaseEvent.NAMED): LeaseState.HELD,
    (LeaseState.OLD, LeaseEvent.NOT_NAMED): LeaseState.OLD,
    (LeaseState.OLD, LeaseEvent.ENDED): LeaseState.FREE,
    (LeaseState.OLD, LeaseEvent.LAPSED): LeaseState.FREE,
}
"""The next state, by state and event. A pair that is missing here can only be caused by a mistake in this program."""


class StoredLease(msgspec.Struct, frozen=True):
    """The database row of one partition: the highest fence given so far, and the member that has the lease, if any."""

    partition: int
    fence: int
    holder: str | None


class LeaseCounters(msgspec.Struct):
    """The counters of leases since the start of the node."""

    given: int = 0  # new leases
    lost: int = 0  # leases that a member named in a request but no longer had
    expired: int = 0  # members whose time to live ran out
    late: int = 0  # requests that arrived after a later request of the same member


class Slot(msgspec.Struct):
    """The lease of one partition, in memory. Partitions that were never leased have no Slot."""

    state: LeaseState
    fence: int
    holder: str | None


class GroupMember(msgspec.Struct):
    """A member of the group."""

    member_id: str
    partitions: int  # the number of partitions of the stream, as the member's latest request names it
    latest: LeaseRequest | None  # the member's latest request; None if it has sent none since the start of the node
    expires_s: float  # when the member is removed if it sends no further request
    leases: set[int]  # the partitions that the member has, in any state except FREE
    target: set[int]  # the partitions that the member should have


class LeaseMachine:
    """The members of one client id on one stream (a group), and the partitions that each member has and should have.

    Invariant: a partition that is not FREE is in `leases` of exactly one member, its holder. A FREE partition is in
    `leases` of no member. The sets `target` of the members do not overlap. Together they contain every partition that a
    member knows.

    moves: counts the changes that can give a member something to do: shares that were computed anew, and partitions
        that became free.
    """

    def __init__(
        self,
        stored: Iterable[StoredLease],
        *,
        old_until_s: float,
        ttl_s: float,
        fence_floor: int = 0,
        counters: LeaseCounters | None = None,
    ) -> None:
        """All times are in seconds.

        old_until_s: the time at which all leases from before the start of the node have certainly expired.
        ttl_s: the time to live of new leases.
        fence_floor: each new fence is higher than this number.
        """
        self.counters = LeaseCounters() if counters is None else counters
        self.moves = 0
        self._ttl_s = ttl_s
        self._fence_floor = fence_floor
        self._old_until_s = old_until_s
        self._expires_first_s = -math.inf
        self._slots: dict[int, Slot] = {}
        self._members: dict[str, GroupMember] = {}
        self._changes: dict[int, StoredLease] = {}
        # Each stored holder comes back as a member without a request, so that its leases can continue when it names
        # them.
        for row in stored:
            state = LeaseState.FREE if row.holder is None else LeaseState.OLD
            self._slots[row.partition] = Slot(state, row.fence, row.holder)
            if row.holder is not None:
                member = self._members.setdefault(
                    row.holder, GroupMember(row.holder, 0, None, old_until_s, set(), set())
                )
                member.partitions = max(member.partitions, row.partition + 1)
                member.leases.add(row.partition)
                member.target.add(row.partition)
        self._rebalance()

    @property
    def members(self) -> int:
        return len(self._members)

    @property
    def held(self) -> int:
        return sum(len(member.leases) for member in self._members.values())

    @property
    def size(self) -> int:
        return len(self._members) + max(len(self._slots), sum(len(each.target) for each in self._members.values()))

    @property
    def partitions(self) -> int:
        """The number of partitions of the stream: the highest that a member knows; 0 without members."""
        return max((each.partitions for each in self._members.values()), default=0)

    def find_member(self, member_id: str) -> GroupMember | None:
        return self._members.get(member_id)

    def find_holder(self, partition: int, now_s: float) -> str | None:
        """Returns the member that has the partition, even if the lease is not on disk yet; None if no member has it."""
        self.expire(now_s)
        slot = self._slots.get(partition)
        return None if slot is None else slot.holder

    def request(self, request: LeaseRequest, now_s: float) -> None:
        """Processes a member's request. The caller then writes the result of `take_changes` to disk, and after that
        sends the result of `answer`."""
        self.expire(now_s)
        member = self._members.get(request.member_id)
        latest = None if member is None else member.latest
        # Four cases: an overtaken request, a leave, the latest request once more, and a new request.
        if latest is not None and request.request_id < latest.request_id:
            self.counters.late += 1
        elif request.leave:
            self._leave(member, request)
        elif member is not None and request == latest:
            # The answer to the first copy was perhaps lost. The second copy must not end the leases that it could not
            # name.
            member.expires_s = now_s + self._ttl_s
            self._give(member)
        else:
            self._hear(member, request, now_s)

    def offer(self, request: LeaseRequest, now_s: float) -> None:
        """Gives free partitions to the member whose latest request waits. Nothing has come from the member, so this
        renews no lease."""
        self.expire(now_s)
        member = self._members.get(request.member_id)
        if member is not None and member.latest == request:
            self._give(member)

    def has_news(self, request: LeaseRequest) -> bool:
        """Whether the member of a waiting request has lost its leases, can get others, or should give some up."""
        member = self._members.get(request.member_id)
        if member is None or member.leases - member.target:
            return True
        slots = map(self._slots.get, member.target - member.leases)
        return any(slot is None or slot.state is LeaseState.FREE for slot in slots)

    def answer(self, request: LeaseRequest, now_s: float) -> LeaseResponse:
        self.expire(now_s)
        member = self._members.get(request.member_id)
        held: list[Lease] = []
        if member is not None and not request.leave:
            slots = [(each, self._slots[each]) for each in sorted(member.leases)]
            held = [Lease(each, slot.fence) for each, slot in slots if slot.state is LeaseState.HELD]
            # Only the answer to the latest request has new leases. An earlier one gets only the leases that it named.
            if request != member.latest:
                named = set(request.holding)
                held = [lease for lease in held if lease in named]
        release = [each.partition for each in held if member is not None and each.partition not in member.target]
        return LeaseResponse(request.request_id, held, release, round(self._ttl_s * 1000), len(self._members))

    def raise_fence(self, partition: int) -> None:
        """Raises the fence of a free partition, so that no earlier holder can save a position with its lease."""
        slot = self._slots.get(partition)
        if slot is not None:
            assert slot.state is LeaseState.FREE, f"partition {partition} is held"
            slot.fence += 1
            self._note(partition, slot)

    def expire(self, now_s: float) -> None:
        """Removes the members whose time to live is over, and ends OLD leases when they have certainly expired."""
        # Every request calls this, so the times of all members are not compared each time. A member that has joined or
        # renewed since the last comparison expires later than the time that was found.
        if now_s < self._expires_first_s:
            return
        expired = [each for each in self._members.values() if now_s >= each.expires_s]
        self.counters.expired += len(expired)
        self._remove(expired)
        if now_s >= self._old_until_s:
            self._old_until_s = math.inf
            for partition, slot in self._slots.items():
                if slot.state is LeaseState.OLD:
                    self._apply(partition, LeaseEvent.LAPSED)
        expiries = (each.expires_s for each in self._members.values())
        self._expires_first_s = min(now_s + self._ttl_s, self._old_until_s, *expiries)

    def take_changes(self) -> list[StoredLease]:
        """Returns the changed rows since the last call. The caller must write them before the rows of a later call."""
        changes = list(self._changes.values())
        self._changes.clear()
        return changes

    def written(self, changes: Sequence[StoredLease], *, stored: bool) -> None:
        """Records whether rows from `take_changes` are `stored`. If not, their new leases are withdrawn."""
        for row in changes:
            # If the partition has changed again since then, the row of the later change decides.
            slot = self._slots[row.partition]
            if slot.state is LeaseState.WRITING and slot.fence == row.fence:
                self._apply(row.partition, LeaseEvent.WRITTEN if stored else LeaseEvent.NOT_WRITTEN)

    def raise_fences(self, fences: Mapping[int, int]) -> None:
        """Takes over fences that something else has raised on disk, by partition. It ends the leases with lower fences,
        because no save with such a lease is accepted."""
        for partition, fence in fences.items():
            slot = self._slots[partition]
            # A lease with a higher fence was given since then.
            if slot.fence < fence:
                slot.fence = fence
                if slot.state is not LeaseState.FREE:
                    self._apply(partition, LeaseEvent.ENDED)

    def check(self) -> None:
        leased = [(partition, each.member_id) for each in self._members.values() for partition in each.leases]
        holders = {
            partition: slot.holder for partition, slot in self._slots.items() if slot.state is not LeaseState.FREE
        }
        assert sorted(leased) == sorted(holders.items())
        assert all(slot.holder is None for slot in self._slots.values() if slot.state is LeaseState.FREE)
        targets = [partition for each in self._members.values() for partition in each.target]
        assert sorted(targets) == list(range(self.partitions))

    def _hear(self, member: GroupMember | None, request: LeaseRequest, now_s: float) -> None:
        """Processes a new request of a member that joins the group or renews its leases."""
        # A new member, or a member that knows another number of partitions, changes the shares of all members.
        joins = member is None
        if member is None:
            member = GroupMember(request.member_id, request.partitions, None, 0.0, set(), set())
            self._members[request.member_id] = member
        changed = joins or member.partitions != request.partitions
        member.partitions = request.partitions
        member.latest = request
        member.expires_s = now_s + self._ttl_s
        # A lease continues if the request names it with its current fence. A lease that is still being written also
        # continues, because no member can name it yet.
        named = {lease.partition: lease.fence for lease in request.holding}
        # Every named lease counts as lost until it turns out to continue.
        self.counters.lost += len(named)
        for partition in list(member.leases):
            slot = self._slots[partition]
            names = slot.state is not LeaseState.WRITING and named.get(partition) == slot.fence
            self.counters.lost -= names
            self._apply(partition, LeaseEvent.NAMED if names else LeaseEvent.NOT_NAMED)
        # The shares must be right before the member gets the free partitions of its share.
        if changed:
            self._rebalance()
        self._give(member)

    def _leave(self, member: GroupMember | None, request: LeaseRequest) -> None:
        if member is None:
            return
        # A lease from before the start of the node ends only if the request names it. A request that does not name it
        # is perhaps late: sent before the member got the lease.
        named = set(request.holding)
        old = {partition for partition in member.leases if self._slots[partition].state is LeaseState.OLD}
        kept = {partition for partition in old if Lease(partition, self._slots[partition].fence) not in named}
        if not kept:
            self._remove([member])
        for partition in member.leases - kept:
            self._apply(partition, LeaseEvent.ENDED)

    def _give(self, member: GroupMember) -> None:
        for partition in sorted(member.target - member.leases):
            slot = self._slots.setdefault(partition, Slot(LeaseState.FREE, self._fence_floor, None))
            # A partition that another member still has becomes free when that member gives it up. It is then given at
            # this member's next request.
            if slot.state is LeaseState.FREE:
                # The floor is no bound of leases from before the start: other groups may have raised it since then.
                slot.fence = max(slot.fence, self._fence_floor) + 1
                slot.holder = member.member_id
                member.leases.add(partition)
                self.counters.given += 1
                self._apply(partition, LeaseEvent.GIVEN)

    def _remove(self, members: Sequence[GroupMember]) -> None:
        for member in members:
            for partition in list(member.leases):
                self._apply(partition, LeaseEvent.ENDED)
            del self._members[member.member_id]
        if members:
            self._rebalance()

    def _rebalance(self) -> None:
        """Computes again which partitions each member should have (`target`)."""
        # The owner of a partition is the member that has its lease, or else the member whose target contained it.
        # `assign` moves as few partitions as possible away from their owners.
        self.moves += 1
        members = self._members.values()
        owners = {partition: each.member_id for each in members for partition in each.target}
        owners.update({partition: each.member_id for each in members for partition in each.leases})
        settled = {partition for each in members for partition in each.target & each.leases}
        for each in members:
            each.target = set()
        candidates = {each.member_id: each.partitions for each in members}
        for partition, member_id in assign(candidates, owners, settled).items():
            self._members[member_id].target.add(partition)

    def _apply(self, partition: int, event: LeaseEvent) -> None:
        """Applies an event to one partition, and records its row for writing if it changed."""
        slot = self._slots[partition]
        before, slot.state = slot.state, TRANSITIONS[slot.state, event]
        # The member loses the partition in the same step, as the invariant demands.
        if slot.state is LeaseState.FREE:
            assert slot.holder is not None, "only what was held becomes free"
            self._members[slot.holder].leases.discard(partition)
            slot.holder = None
            self.moves += 1
        # When a member names its OLD lease, the row is written again, because the time to live may have changed.
        if slot.state is not before and event is not LeaseEvent.WRITTEN:
            self._note(partition, slot)

    def _note(self, partition: int, slot: Slot) -> None:
        self._changes[partition] = StoredLease(partition, slot.fence, slot.holder)
