"""LeaseGroups: keeps one LeaseMachine for each group of consumers, and stores the leases in the database.

A group is the members of one client id on one stream. LeaseGroups also limits the number of groups, members and
partitions. LeaseGroups survives crashes of the index worker, so such a crash loses no lease.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import msgspec
import structlog

from index_service.accesses import PositionRow
from index_service.extensions import LeaseRequest, LeaseResponse, PositionKey
from index_service.lease_machine import GroupMember, LeaseCounters, LeaseMachine, StoredLease
from index_service.lease_storage import StoredLeases, WriteLeases, forget_leases, load_leases
from index_service.limits import LeaseLimits, LeaseStatistics
from index_service.storage import SetPosition
from ockam.quotas.limits import share_of
from stream_storage.contract import Do, DoLittle
from stream_storage.errors import StorageBusy, StorageClosed, StorageError
from stream_storage.runner import Runner

logger = structlog.get_logger(__name__)

GroupKey: TypeAlias = tuple[str, str]

WAITING_MAX = 1_000
"""The largest number of requests of one group that wait while its rows are read. Further requests are refused."""
SWEEP_S_MIN = 1.0
"""The shortest time between two removals of expired members (sweeps) while the limits are reached, in seconds."""


class Refusal(msgspec.Struct, frozen=True):
    """The reason why a request was refused, and the storage error that caused the refusal, if any."""

    reason: str
    error: StorageError | None = None
    is_passing: bool = False  # whether the same request can succeed later, although no storage error is the cause


class Group(msgspec.Struct):
    """A group of members in memory."""

    machine: LeaseMachine | None  # None until the rows of the group have been read
    waiting: list[Callable[[LeaseMachine | Refusal], None]]  # the callbacks of the requests that wait for these rows
    party: str  # the party for which the group counts, see `LeaseGroups.lease`
    used_s: float  # the time of the last request
    writing: int = 0  # the number of its database writes that are under way
    moves: int = 0  # the `LeaseMachine.moves` that was last reported
    entries: int = 0  # the group's part of `LeaseGroups._entries`


class LeaseGroups:
    """Serves lease requests of members, and changes of positions by an operator.

    Each `on_done` callback is called exactly once: at once, or after a database read or write. It must not raise.

    on_move: called with the key of a group when its members may have something new to do.
    """

    def __init__(
        self,
        storage: Runner,
        limits: LeaseLimits,
        *,
        now_us: Callable[[], int],
        monotonic_s: Callable[[], float],
        served_since_s: Callable[[str], float] | None = None,
    ) -> None:
        """served_since_s: returns for a stream name the time (of `monotonic_s`) at which this node began to serve the
        consumers of the stream. None: this node serves all consumers, from now on."""
        self.limits = limits
        self.on_move: Callable[[GroupKey], None] = lambda key: None
        self._storage = storage
        self._now_us = now_us
        self._monotonic_s = monotonic_s
        started_s = monotonic_s()
        self._served_since_s = (lambda stream_name: started_s) if served_since_s is None else served_since_s
        # Another node can take the stream over unnoticed, and waits only for leases that were renewed before. So each
        # renewal is written: the write fails if this node is not the owner any more.
        self._writes_renewals = served_since_s is not None
        self._counters = LeaseCounters()
        self._groups: dict[GroupKey, Group] = {}
        self._entries = 0
        # The groups and the entries of each party.
        self._groups_of: Counter[str] = Counter()
        self._entries_of: Counter[str] = Counter()
        self._swept_s = float("-inf")
        self._ttl_ms = round(limits.ttl_s * 1000)

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def keys(self) -> list[GroupKey]:
        return list(self._groups)

    def lease(self, request: LeaseRequest, on_done: Callable[[LeaseResponse | Refusal], None], party: str = "") -> None:
        """Serves a member's request to join a group, to renew its leases or to leave the group.

        party: the party (a host or an identity) that sends the request; empty for the node itself, which has no share.
            A group counts for the party whose request brings it into memory.
        """
        key = request.client_id, request.stream_name

        def go(machine: LeaseMachine) -> None:
            refusal = self._refusal(machine, request)
            if refusal is None:
                machine.request(request, self._monotonic_s())
                self._give(key, machine, request, on_done)
            else:
                on_done(refusal)

        self._use(key, party, go, on_done)

    def offer(self, request: LeaseRequest, on_done: Callable[[LeaseResponse | Refusal], None], party: str = "") -> None:
        """Answers a request that has waited: gives free partitions to its member, and renews no lease."""
        key = request.client_id, request.stream_name

        def go(machine: LeaseMachine) -> None:
            machine.offer(request, self._monotonic_s())
            self._give(key, machine, request, on_done)

        self._use(key, party, go, on_done)

    def has_news(self, request: LeaseRequest) -> bool:
        """Whether a waiting request should be answered now; also true if its group is no longer in memory."""
        group = self._groups.get((request.client_id, request.stream_name))
        return group is None or group.machine is None or group.machine.has_news(request)

    def leave(self, key: GroupKey, member_id: str) -> None:
        """Ends the leases of a member whose connection has ended, as if the member had left the group."""
        member = self.find_member(key, member_id)
        if member is not None and member.latest is not None:
            self.lease(msgspec.structs.replace(member.latest, holding=[], leave=True), lambda result: None)

    def find_member(self, key: GroupKey, member_id: str) -> GroupMember | None:
        group = self._groups.get(key)
        return None if group is None or group.machine is None else group.machine.find_member(member_id)

    def set_position(
        self, key: PositionKey, index: int | None, on_done: Callable[[SetPosition | Refusal], None], party: str = ""
    ) -> None:
        """Sets a position, or deletes it (None). Refused while a member has the lease of the partition."""
        group_key = key.client_id, key.stream_name

        def go(machine: LeaseMachine) -> None:
            holder = machine.find_holder(key.partition, self._monotonic_s())
            if holder is not None:
                on_done(Refusal(f"the member {holder!r} holds partition {key.partition}; stop it, then set the index"))
                return
            # An earlier holder may still try to save with its lease. With a higher fence, its save is refused.
            machine.raise_fence(key.partition)
            changes = machine.take_changes()
            written = self._written(group_key, machine, on_done)
            position = (*group_key, key.partition)
            self._submit(group_key, SetPosition(position, index, self._now_us(), changes, self._ttl_ms, written))

        self._use(group_key, party, go, on_done)

    def find_holder(self, row: PositionRow) -> str | None:
        """Returns the member that has the lease of this position's partition now, or None if no member has it."""
        group = self._groups.get((row.client_id, row.stream_name))
        now_s = self._monotonic_s()
        if group is not None and group.machine is not None:
            return group.machine.find_holder(row.partition, now_s)
        # The group is not in memory. The stored holder counts as long as its lease can still be valid: until its time
        # to live has passed since the start of the node.
        is_old = row.ttl_ms is not None and now_s < self._served_since_s(row.stream_name) + row.ttl_ms / 1000
        return row.holder if is_old else None

    def sweep(self, keys: Iterable[GroupKey], spared: GroupKey | None = None, *, for_room: bool = False) -> None:
        """Removes members of these groups that have not renewed their leases in time. Removes groups without members,
        except `spared`, for which a request is being served.

        for_room: whether such groups are removed at once. Otherwise a group stays for the time to live after its last
            request: a member that is being connected again may still save with the leases that it had.
        """
        now_s = self._monotonic_s()
        for key in keys:
            group = self._groups.get(key)
            if group is not None and group.machine is not None:
                group.machine.expire(now_s)
                changes = group.machine.take_changes()
                self._report_moves(key, group.machine)
                self._count(group, group.machine.size)
                # A group with rows to write leaves the memory after the write.
                if changes:
                    self._write(key, group.machine, changes, partial(self._swept, key, for_room))
                elif key != spared:
                    self._forget_idle(key, for_room)

    def _swept(self, key: GroupKey, for_room: bool, result: WriteLeases | Refusal) -> None:
        """Logs a failed write of a sweep, and removes the group if it has no members. After a failure, the ended leases
        are still on disk, and expire after the next start of the node."""
        _log_failure(None if isinstance(result, WriteLeases) else result.error)
        self._forget_idle(key, for_room)

    def _forget_idle(self, key: GroupKey, for_room: bool) -> None:
        """Removes a group from memory and from the database, if it has no members and no database write of the group is
        under way. Without this, a client that invents names would fill the disk. `sweep` explains `for_room`."""
        group = self._groups.get(key)
        if group is None or not (for_room or self._monotonic_s() >= group.used_s + self.limits.ttl_s):
            return
        if group.machine is not None and not group.machine.members and not group.writing:
            self._remove(key)
            if group.machine.size:
                # Fences rise more slowly than time, so a fence above the present time comes from elsewhere.
                work = partial(forget_leases, client_id=key[0], stream_name=key[1], fence_max=self._now_us())
                # A node that stops leaves the rows for its next start.
                with suppress(StorageClosed):
                    self._storage.submit_write(DoLittle(work, lambda operation: _log_failure(operation.error)))

    def forget(self, is_meant: Callable[[str], bool]) -> None:
        """Removes the groups of some streams from memory, because their rows are no longer those that this object
        wrote: another node serves the streams from now on, or the fences were raised in the database. The next request
        for such a group reads its rows, here or at the other node.

        is_meant: chooses streams by their names.
        """
        # Groups that are being read or written are removed, too. A group that stayed because of a write would go on to
        # give fences below the raised ones, and every save with such a fence is refused. The write itself ends as
        # usual. The other node honours the lease in the written row, unless the fence of the lease is too low. In that
        # case the member's first save is refused, and the member asks for leases again.
        for key in [key for key in self._groups if is_meant(key[1])]:
            group = self._remove(key)
            # The rows read for waiting requests may be from before the change. The error says that a request can
            # succeed later.
            for work in group.waiting:
                work(Refusal("the leases were forgotten", StorageBusy("the leases are read anew; ask again")))

    def statistics(self) -> LeaseStatistics:
        machines = [group.machine for group in self._groups.values() if group.machine is not None]
        members, held = sum(each.members for each in machines), sum(each.held for each in machines)
        return LeaseStatistics(len(self._groups), members, held, *msgspec.structs.astuple(self._counters))

    def _use(
        self,
        key: GroupKey,
        party: str,
        work: Callable[[LeaseMachine], None],
        on_refused: Callable[[Refusal], None],
    ) -> None:
        """Calls `work` with the LeaseMachine of the group, after reading its rows if necessary, or `on_refused`."""

        def go(found: LeaseMachine | Refusal) -> None:
            on_refused(found) if isinstance(found, Refusal) else work(found)

        group, now_s = self._groups.get(key), self._monotonic_s()
        if group is not None:
            group.used_s = now_s
        if group is not None and group.machine is not None:
            work(group.machine)
        elif group is not None and len(group.waiting) < WAITING_MAX:
            group.waiting.append(go)
        elif group is not None:
            reason = f"{WAITING_MAX} requests wait for this group to be read; ask again later"
            on_refused(Refusal(reason, is_passing=True))
        elif self._has_room(party, groups=1, entries=0):
            self._groups[key] = group = Group(None, [go], party, now_s)
            self._groups_of[party] += 1
            load = partial(load_leases, client_id=key[0], stream_name=key[1])
            self._storage.submit_read(Do(load, partial(self._loaded, key, group)))
        else:
            count, own = len(self._groups), self._groups_of[party]
            reason = f"{count} groups share streams already, {own} of them of this client; ask again later"
            on_refused(Refusal(reason, is_passing=True))

    def _loaded(self, key: GroupKey, group: Group, operation: Do[StoredLeases]) -> None:
        if self._groups.get(key) is not group:
            # The group was forgotten meanwhile.
            return
        found: LeaseMachine | Refusal
        if operation.error is None:
            rows, floor, ttl_ms_max = operation.result
            found = group.machine = LeaseMachine(
                rows,
                old_until_s=self._served_since_s(key[1]) + ttl_ms_max / 1000,
                ttl_s=self.limits.ttl_s,
                fence_floor=floor,
                counters=self._counters,
            )
            self._count(group, found.size)
        else:
            found = Refusal("the leases cannot be read", operation.error)
            self._remove(key)
        waiting, group.waiting = group.waiting, []
        for work in waiting:
            work(found)

    def _refusal(self, machine: LeaseMachine, request: LeaseRequest) -> Refusal | None:
        """Returns a Refusal if the request would add members or partitions beyond the limits. Otherwise counts its new
        members and partitions, and returns None."""
        machine.expire(self._monotonic_s())
        member = machine.find_member(request.member_id)
        if request.leave or (member is not None and request.partitions <= member.partitions):
            return None
        if member is None and machine.members >= self.limits.members_max:
            return Refusal(f"the group has {machine.members} members; end one, or ask again later", is_passing=True)
        key = request.client_id, request.stream_name
        group, entries = self._groups[key], 1 + max(0, request.partitions - machine.partitions)
        if not self._has_room(group.party, groups=0, entries=entries, spared=key):
            count, own = self._entries, self._entries_of[group.party]
            reason = f"the groups have too many members and partitions: {count}, {own} of them of this client"
            return Refusal(f"{reason}; ask again later", is_passing=True)
        self._count(group, group.entries + entries)
        return None

    def _count(self, group: Group, entries: int) -> None:
        self._entries += entries - group.entries
        self._entries_of[group.party] += entries - group.entries
        group.entries = entries

    def _remove(self, key: GroupKey) -> Group:
        group = self._groups.pop(key)
        self._count(group, 0)
        self._groups_of[group.party] -= 1
        # Anybody can come from many addresses, so parties without groups are forgotten.
        if not self._groups_of[group.party]:
            del self._groups_of[group.party], self._entries_of[group.party]
        return group

    def _has_room(self, party: str, *, groups: int, entries: int, spared: GroupKey | None = None) -> bool:
        """Whether the limits allow a party this many more groups and entries (members or partitions). `sweep` explains
        `spared`."""
        # If there is no room, the first pass removes expired members, and the second pass checks again.
        for _ in range(2):
            if self._fits(party, groups, entries):
                return True
            if self._monotonic_s() < self._swept_s + SWEEP_S_MIN:
                return False
            self._swept_s = self._monotonic_s()
            # A party at its own share gets room by its own groups only. To sweep all would stop the node for long, each
            # time that a client asks again.
            own = [key for key, group in self._groups.items() if group.party == party]
            self.sweep(own if self._fits("", groups, entries) else self.keys, spared, for_room=True)
        return False

    def _fits(self, party: str, groups: int, entries: int) -> bool:
        groups_max, entries_max = self.limits.groups_max, self.limits.entries_max
        few = len(self._groups) + groups <= groups_max and self._entries + entries <= entries_max
        # Without shares, one party could keep the groups of all others out of memory.
        own_groups, own_entries = self._groups_of[party] + groups, self._entries_of[party] + entries
        return few and (not party or (own_groups <= share_of(groups_max) and own_entries <= share_of(entries_max)))

    def _give(
        self,
        key: GroupKey,
        machine: LeaseMachine,
        request: LeaseRequest,
        on_done: Callable[[LeaseResponse | Refusal], None],
    ) -> None:
        """Writes the rows that the machine has changed for a request, and answers the request."""
        changes = machine.take_changes()
        self._report_moves(key, machine)

        def answer(operation: WriteLeases | Refusal) -> None:
            on_done(operation if isinstance(operation, Refusal) else machine.answer(request, self._monotonic_s()))

        # An answer must not overtake a write of the same group. Otherwise a restart could forget leases that a member
        # already uses.
        if changes or self._groups[key].writing or self._writes_renewals:
            self._write(key, machine, changes, answer)
        else:
            on_done(machine.answer(request, self._monotonic_s()))

    def _report_moves(self, key: GroupKey, machine: LeaseMachine) -> None:
        group = self._groups.get(key)
        if group is not None and group.moves != machine.moves:
            group.moves = machine.moves
            self.on_move(key)

    def _write(
        self,
        key: GroupKey,
        machine: LeaseMachine,
        changes: list[StoredLease],
        on_done: Callable[[WriteLeases | Refusal], None],
    ) -> None:
        self._submit(key, WriteLeases(*key, changes, self._ttl_ms, self._written(key, machine, on_done)))

    def _submit(self, key: GroupKey, operation: WriteLeases) -> None:
        self._groups[key].writing += 1
        self._storage.submit_write(operation)

    def _written(
        self, key: GroupKey, machine: LeaseMachine, on_done: Callable[[Any], None]
    ) -> Callable[[WriteLeases], None]:
        """Returns the callback of a database write, which reports the result to the machine and then calls
        `on_done`."""

        group = self._groups[key]

        def written(operation: WriteLeases) -> None:
            group.writing -= 1
            machine.written(operation.changes, stored=operation.error is None)
            # Otherwise the machine would go on to give fences below those in the database, and every save with such a
            # fence would be refused.
            if operation.error is None:
                machine.raise_fences(operation.raised)
            refusal = None if operation.error is None else Refusal("leases cannot be written", operation.error)
            on_done(operation if refusal is None else refusal)

        return written


def _log_failure(error: StorageError | None) -> None:
    if error is not None:
        logger.warning("lease_sweep_failed", reason=str(error))
