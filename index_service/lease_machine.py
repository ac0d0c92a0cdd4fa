"""Who may process which partition: the leases of one client id on one stream. No I/O, no clock: time is an argument.

A lease is given only in answer to its member's own request, under a fence above all before it, and not before that
fence is on disk. It ends when a later request of the member does not name it, when the member leaves, or when the
member has not been heard for the time to live. That is why a client may use what the answer to its latest request
says, until that time after it sent the request, and nothing else.

Requests may come late or twice. One with a lower id than the member's latest changes nothing; the same again does not
end what it did not know of. A restart forgets the ids, so what was leased before it goes on when it is named, and ends
only when the member leaves and names it, or when its time must have run out.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import msgspec

from index_service.assignment import Candidate, assign
from index_service.extensions import Lease, LeaseRequest


class State(enum.Enum):
    """Of one partition. WRITING: given, the fence not yet on disk. OLD: from before the start of the node."""

    FREE = enum.auto()
    WRITING = enum.auto()
    HELD = enum.auto()
    OLD = enum.auto()


class Event(enum.Enum):
    """NAMED, NOT_NAMED: by the holder's own request. ENDED: the holder left or was not heard. LAPSED: the time for
    what was leased before the start is over."""

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
"""What may happen to a partition; anything else is a mistake of ours."""


class StoredLease(msgspec.Struct, frozen=True):
    """A partition's row on disk. fence: the highest ever given. holder: who has it, None where nobody does."""

    partition: int
    fence: int
    holder: str | None


class LeaseCounters(msgspec.Struct):
    """given: new leases; lost: named by a member that no longer had them; expired: members not heard in time; late:
    requests overtaken by a later one."""

    given: int = 0
    lost: int = 0
    expired: int = 0
    late: int = 0


class Slot(msgspec.Struct):
    """A partition that was ever leased. holder is None where it is FREE."""

    state: State
    fence: int
    holder: str | None


class Member(msgspec.Struct):
    """latest: its latest request, None for one from before the start. leases: the partitions it holds, in any state
    but FREE; target: those it should have."""

    member_id: str
    partitions: int
    latest: LeaseRequest | None
    expires_s: float
    leases: set[int]
    target: set[int]


class Terms(msgspec.Struct, frozen=True):
    """What a member is answered: see `extensions.LeaseResponse`."""

    leases: list[Lease]
    release: list[int]
    members: int


class LeaseMachine:
    """The members, what each has and should have.

    Invariant: a slot that is not FREE is among the leases of exactly one member, its holder, and no other is; the
    targets of all members are disjoint and, together, every partition that a member knows.
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
        """old_until_s: when the leases that are stored as held must have run out; ttl_s: of those given from now on.

        fence_floor: fences given from now on are above it.
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
        """What the machine keeps in memory: members and partitions."""
        return len(self._members) + max(len(self._slots), sum(len(each.target) for each in self._members.values()))

    @property
    def partitions(self) -> int:
        """How many the stream has, as far as any member knows."""
        return max((each.partitions for each in self._members.values()), default=0)

    def find_member(self, member_id: str) -> Member | None:
        return self._members.get(member_id)

    def find_holder(self, partition: int, now_s: float) -> str | None:
        """Who has the partition now, though its lease may still be on its way to disk."""
        self.expire(now_s)
        slot = self._slots.get(partition)
        return None if slot is None else slot.holder

    def request(self, request: LeaseRequest, now_s: float) -> None:
        """Take a request in. What must be on disk before the answer is in `take_changes`; the answer in `answer`."""
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
        """What the sender of this request may use now.

        Only its latest request tells a member of leases that are new to it; an overtaken one is told what it named.
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
        """Shut out whoever had this partition, which must be free, so that an operator's word stands."""
        slot = self._slots.get(partition)
        if slot is not None:
            assert slot.state is State.FREE, f"partition {partition} is held"
            slot.fence += 1
            self._note(partition, slot)

    def expire(self, now_s: float) -> None:
        """End what has run out."""
        expired = [each for each in self._members.values() if now_s >= each.expires_s]
        self.counters.expired += len(expired)
        self._remove(expired)
        if now_s >= self._old_until_s:
            self._old_until_s = float("inf")
            for partition, slot in self._slots.items():
                if slot.state is State.OLD:
                    self._apply(partition, Event.LAPSED)

    def take_changes(self) -> list[StoredLease]:
        """The rows to be written, each partition once, and before those taken later."""
        changes = list(self._changes.values())
        self._changes.clear()
        return changes

    def written(self, changes: Sequence[StoredLease], *, stored: bool) -> None:
        """These are on disk, or, not stored, could not be written: then their leases were never given."""
        for row in changes:
            slot = self._slots[row.partition]
            if slot.state is State.WRITING and slot.fence == row.fence:
                self._apply(row.partition, Event.WRITTEN if stored else Event.NOT_WRITTEN)

    def check(self) -> None:
        """Assert the invariant."""
        leased = [(partition, each.member_id) for each in self._members.values() for partition in each.leases]
        holders = {partition: slot.holder for partition, slot in self._slots.items() if slot.state is not State.FREE}
        assert sorted(leased) == sorted(holders.items())
        assert all(slot.holder is None for slot in self._slots.values() if slot.state is State.FREE)
        targets = [partition for each in self._members.values() for partition in each.target]
        assert sorted(targets) == list(range(self.partitions))

    def _hear(self, member: Member | None, request: LeaseRequest, now_s: float) -> None:
        """A new request of a member, or of one to be: what it names goes on, what it does not name ends."""
        joins = member is None
        if member is None:
            member = Member(request.member_id, request.partitions, None, 0.0, set(), set())
            self._members[request.member_id] = member
        changed = joins or member.partitions != request.partitions
        member.partitions = request.partitions
        member.latest = request
        member.expires_s = now_s + self._ttl_s
        named = {lease.partition: lease.fence for lease in request.holding}
        self.counters.lost += len(named)
        for partition in list(member.leases):
            slot = self._slots[partition]
            names = slot.state is not State.WRITING and named.get(partition) == slot.fence
            self.counters.lost -= names
            self._apply(partition, Event.NAMED if names else Event.NOT_NAMED)
        if changed:
            self._rebalance()
        self._give(member)

    def _leave(self, member: Member | None, request: LeaseRequest) -> None:
        """It has stopped. What is from before the start ends only where it is named: the request may be an old one."""
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
        """Lease it what it should have and nobody has."""
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
        """Move one partition through the table, and note what the disk must know of it."""
        slot = self._slots[partition]
        before, slot.state = slot.state, TRANSITIONS[slot.state, event]
        if slot.state is State.FREE:
            assert slot.holder is not None, "only what was held becomes free"
            self._members[slot.holder].leases.discard(partition)
            slot.holder = None
        # An old lease is written again, since it now runs for today's time to live.
        if slot.state is not before and event is not Event.WRITTEN:
            self._note(partition, slot)

    def _note(self, partition: int, slot: Slot) -> None:
        self._changes[partition] = StoredLease(partition, slot.fence, slot.holder)

    def _is_held(self, partition: int) -> bool:
        return self._slots[partition].state is State.HELD
