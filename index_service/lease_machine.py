"""LeaseMachine: decides which member may process which partition, for one client id on one stream. It reads no clock.

A member gets a lease only in the answer to its own request. The lease has a fence that is higher than every fence
before it, and the fence is on disk before the answer is sent. A lease ends when a later request of its member does not
name it, when the member leaves, or when the member has sent no request for as long as the time to live. So a client may
use the leases in the answer to its latest request, for the time to live after it sent that request, and no other
leases.

Requests may come late or twice. A request with a lower id than the member's latest one changes nothing. The latest
request may come again: leases that were given since then do not end, although the request does not name them. After a
restart, the node does not know the ids of earlier requests. So a lease from before the restart goes on if its member
names it. It ends if the member names it and leaves, or when its time to live is certainly over.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import msgspec

from index_service.assignment import Candidate, assign
from index_service.extensions import Lease, LeaseRequest


class State(enum.Enum):
    """The state of one partition.

    FREE: no member has it. WRITING: its lease is given, but the fence is not on disk yet. HELD: a member has its lease.
    OLD: its lease is from before the start of the node.
    """

    FREE = enum.auto()
    WRITING = enum.auto()
    HELD = enum.auto()
    OLD = enum.auto()


class Event(enum.Enum):
    """An event of one partition.

    GIVEN: a member gets the lease. WRITTEN, NOT_WRITTEN: the fence is on disk, or could not be written. NAMED,
    NOT_NAMED: a request of the holder names the lease, or does not. ENDED: the holder left, or its time to live ran
    out. LAPSED: the time for leases from before the start is over.
    """

    GIVEN = enum.auto()
    WRITTEN = enum.auto()
    NOT_WRITTEN = enum.auto()
    NAMED = enum.auto()
    NOT_NAMED = enum.auto()
    ENDED = enum.auto()
    LAPSED = enum.auto()


TRANSITIONS = {
    (State.FREE, Event.GIVEN): State.WRITING,
    (State.WRITING, Event.WRITTEN): State.HELD,
    (State.WRITING, Event.NOT_WRITTEN): State.FREE,
    (State.WRITING, Event.NOT_NAMED): State.WRITING,
    (State.WRITING, Event.ENDED): State.FREE,
    (State.HELD, Event.NAMED): State.HELD,
    (State.HELD, Event.NOT_NAMED): State.FREE,
    (State.HELD, Event.ENDED): State.FREE,
    (State.OLD, Event.NAMED): State.HELD,
    (State.OLD, Event.NOT_NAMED): State.OLD,
    (State.OLD, Event.ENDED): State.FREE,
    (State.OLD, Event.LAPSED): State.FREE,
}
"""The state after each event. If an event is missing for a state and happens all the same, our code has a mistake."""


class StoredLease(msgspec.Struct, frozen=True):
    """The row of a partition on disk. fence: the highest fence ever given. holder: the member with the lease, or
    None."""

    partition: int
    fence: int
    holder: str | None


class LeaseCounters(msgspec.Struct):
    """Counters since the start of the node.

    given: new leases. lost: leases that a member named and no longer had. expired: members whose time to live ran out.
    late: requests that came after a later request of the same member.
    """

    given: int = 0
    lost: int = 0
    expired: int = 0
    late: int = 0


class Slot(msgspec.Struct):
    """A partition that has been leased at least once. holder: the member that has the lease, None if it is FREE."""

    state: State
    fence: int
    holder: str | None


class Member(msgspec.Struct):
    """A member of the group.

    latest: its latest request; None if it has sent none since the start of the node. leases: the partitions that it
    holds, in any state but FREE. target: the partitions that it should hold.
    """

    member_id: str
    partitions: int
    latest: LeaseRequest | None
    expires_s: float
    leases: set[int]
    target: set[int]


class Terms(msgspec.Struct, frozen=True):
    """The answer to a member, as `extensions.LeaseResponse` describes it."""

    leases: list[Lease]
    release: list[int]
    members: int


class LeaseMachine:
    """The members of one group, with the partitions that each of them holds and should hold.

    Invariant: a partition that is not FREE is among the leases of exactly one member, its holder; a FREE one is among
    nobody's. The targets of all members are disjoint and together have every partition that a member knows.
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
        """old_until_s: the time when all leases from before the start have certainly run out. ttl_s: the time to live
        of new leases. fence_floor: every new fence is higher than this.
        """
        self.counters = LeaseCounters() if counters is None else counters
        self._ttl_s = ttl_s
        self._fence_floor = fence_floor
        self._old_until_s = old_until_s
        self._slots: dict[int, Slot] = {}
        self._members: dict[str, Member] = {}
        self._changes: dict[int, StoredLease] = {}
        for row in stored:
            state = State.FREE if row.holder is None else State.OLD
            self._slots[row.partition] = Slot(state, max(row.fence, fence_floor), row.holder)
            if row.holder is not None:
                member = self._members.setdefault(row.holder, Member(row.holder, 0, None, old_until_s, set(), set()))
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
        """The number of members and partitions that the machine keeps in memory."""
        return len(self._members) + max(len(self._slots), sum(len(each.target) for each in self._members.values()))

    @property
    def partitions(self) -> int:
        """The number of partitions of the stream: the highest number that a member has named."""
        return max((each.partitions for each in self._members.values()), default=0)

    def find_member(self, member_id: str) -> Member | None:
        return self._members.get(member_id)

    def find_holder(self, partition: int, now_s: float) -> str | None:
        """Returns the member that has the partition now, or None. Its lease may not be on disk yet."""
        self.expire(now_s)
        slot = self._slots.get(partition)
        return None if slot is None else slot.holder

    def request(self, request: LeaseRequest, now_s: float) -> None:
        """Takes in a request. Afterwards the caller writes `take_changes` to disk, and then sends `answer`."""
        self.expire(now_s)
        member = self._members.get(request.member_id)
        latest = None if member is None else member.latest
        if latest is not None and request.request_id < latest.request_id:
            self.counters.late += 1
        elif request.leave:
            self._leave(member, request)
        elif member is not None and request == latest:
            member.expires_s = now_s + self._ttl_s
            self._give(member)
        else:
            self._hear(member, request, now_s)

    def answer(self, request: LeaseRequest, now_s: float) -> Terms:
        """Returns the leases that the sender of this request may use now.

        Only the answer to the latest request of a member has new leases. The answer to an earlier request has only
        leases that the request named.
        """
        self.expire(now_s)
        member = self._members.get(request.member_id)
        if member is None or request.leave:
            return Terms([], [], len(self._members))
        held = [Lease(each, self._slots[each].fence) for each in sorted(member.leases) if self._is_held(each)]
        if request != member.latest:
            named = set(request.holding)
            held = [lease for lease in held if lease in named]
        release = [lease.partition for lease in held if lease.partition not in member.target]
        return Terms(held, release, len(self._members))

    def raise_fence(self, partition: int) -> None:
        """Raises the fence of a free partition, so that a member that held it before cannot save a position any
        more."""
        slot = self._slots.get(partition)
        if slot is not None:
            assert slot.state is State.FREE, f"partition {partition} is held"
            slot.fence += 1
            self._note(partition, slot)

    def expire(self, now_s: float) -> None:
        """Removes the members whose time to live is over, and ends OLD leases that have certainly run out."""
        expired = [each for each in self._members.values() if now_s >= each.expires_s]
        self.counters.expired += len(expired)
        self._remove(expired)
        if now_s >= self._old_until_s:
            self._old_until_s = float("inf")
            for partition, slot in self._slots.items():
                if slot.state is State.OLD:
                    self._apply(partition, Event.LAPSED)

    def take_changes(self) -> list[StoredLease]:
        """Returns the rows to write, one for each changed partition. They must be written before the rows of a later
        call."""
        changes = list(self._changes.values())
        self._changes.clear()
        return changes

    def written(self, changes: Sequence[StoredLease], *, stored: bool) -> None:
        """Takes in that these rows are on disk (`stored`), or could not be written; then their new leases are taken
        back."""
        for row in changes:
            slot = self._slots[row.partition]
            if slot.state is State.WRITING and slot.fence == row.fence:
                self._apply(row.partition, Event.WRITTEN if stored else Event.NOT_WRITTEN)

    def check(self) -> None:
        """Asserts the invariant, for tests."""
        leased = [(partition, each.member_id) for each in self._members.values() for partition in each.leases]
        holders = {partition: slot.holder for partition, slot in self._slots.items() if slot.state is not State.FREE}
        assert sorted(leased) == sorted(holders.items())
        assert all(slot.holder is None for slot in self._slots.values() if slot.state is State.FREE)
        targets = [partition for each in self._members.values() for partition in each.target]
        assert sorted(targets) == list(range(self.partitions))

    def _hear(self, member: Member | None, request: LeaseRequest, now_s: float) -> None:
        """Takes in a new request: the sender joins, or keeps the leases that it names and loses its others."""
        # A new member, or a member that knows another number of partitions, changes the shares of all members.
        joins = member is None
        if member is None:
            member = Member(request.member_id, request.partitions, None, 0.0, set(), set())
            self._members[request.member_id] = member
        changed = joins or member.partitions != request.partitions
        member.partitions = request.partitions
        member.latest = request
        member.expires_s = now_s + self._ttl_s
        # A lease goes on only if the member names it with its present fence. A lease that is still being written cannot
        # be named by anyone, and goes on.
        named = {lease.partition: lease.fence for lease in request.holding}
        self.counters.lost += len(named)
        for partition in list(member.leases):
            slot = self._slots[partition]
            names = slot.state is not State.WRITING and named.get(partition) == slot.fence
            self.counters.lost -= names
            self._apply(partition, Event.NAMED if names else Event.NOT_NAMED)
        # The shares must be right before the member gets the free partitions of its share.
        if changed:
            self._rebalance()
        self._give(member)

    def _leave(self, member: Member | None, request: LeaseRequest) -> None:
        """Ends the leases of a member that leaves. An OLD lease ends only if the request names it, because the request
        may be older than that lease."""
        if member is None:
            return
        named = set(request.holding)
        old = {partition for partition in member.leases if self._slots[partition].state is State.OLD}
        kept = {partition for partition in old if Lease(partition, self._slots[partition].fence) not in named}
        if not kept:
            self._remove([member])
        for partition in member.leases - kept:
            self._apply(partition, Event.ENDED)

    def _give(self, member: Member) -> None:
        """Gives the member a lease for each free partition of its target."""
        for partition in sorted(member.target - member.leases):
            slot = self._slots.setdefault(partition, Slot(State.FREE, self._fence_floor, None))
            if slot.state is State.FREE:
                slot.fence += 1
                slot.holder = member.member_id
                member.leases.add(partition)
                self.counters.given += 1
                self._apply(partition, Event.GIVEN)

    def _remove(self, members: Sequence[Member]) -> None:
        for member in members:
            for partition in list(member.leases):
                self._apply(partition, Event.ENDED)
            del self._members[member.member_id]
        if members:
            self._rebalance()

    def _rebalance(self) -> None:
        """Computes the targets of all members again."""
        # A partition belongs to the member that holds it, else to the one whose target it was.
        members = self._members.values()
        owners = {partition: each.member_id for each in members for partition in each.target}
        owners.update({partition: each.member_id for each in members for partition in each.leases})
        settled = {partition for each in members for partition in each.target & each.leases}
        for each in members:
            each.target = set()
        candidates = [Candidate(each.member_id, each.partitions) for each in members]
        for partition, member_id in assign(candidates, owners, settled).items():
            self._members[member_id].target.add(partition)

    def _apply(self, partition: int, event: Event) -> None:
        """Applies an event to one partition, as the table says, and records its changed row."""
        slot = self._slots[partition]
        before, slot.state = slot.state, TRANSITIONS[slot.state, event]
        if slot.state is State.FREE:
            assert slot.holder is not None, "only what was held becomes free"
            self._members[slot.holder].leases.discard(partition)
            slot.holder = None
        # An OLD lease that its member names is written again, because its time to live may be another one now.
        if slot.state is not before and event is not Event.WRITTEN:
            self._note(partition, slot)

    def _note(self, partition: int, slot: Slot) -> None:
        self._changes[partition] = StoredLease(partition, slot.fence, slot.holder)

    def _is_held(self, partition: int) -> bool:
        return self._slots[partition].state is State.HELD
