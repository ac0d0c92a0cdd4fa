"""LeaseWaits: the lease requests whose answer waits until there is something to do for their member."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import trio

from index_service.extensions import LeaseRequest, LeaseResponse, WaitingLeaseRequest
from index_service.lease_groups import GroupKey, LeaseGroups
from ockam.actors.message import Message

MOVES_GATHER_S = 0.1
"""How long the moves of a group are gathered before its waiting requests are answered, in seconds. If a hundred members
join one after another, each member gets a few answers instead of a hundred."""
WAITS_PER_TTL = 3


class LeaseWaits:
    """The waiting requests of all groups: at most one for each member.

    The requests are only in the memory of the worker. After a crash of the worker, the members renew their leases, and
    wait again.
    """

    def __init__(
        self,
        groups: LeaseGroups,
        answer: Callable[[Message, LeaseRequest], None],
        call_later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        """answer: called with each request whose wait ends. call_later: calls a function after some seconds."""
        self._groups = groups
        self._answer = answer
        self._call_later = call_later
        self._waiting: dict[GroupKey, dict[str, tuple[Message, WaitingLeaseRequest, float]]] = {}
        self._moved: set[GroupKey] = set()
        # The time of each member's next timer. A timer cannot be cancelled; if it comes too early, it is set again.
        self._timer_at_s: dict[tuple[GroupKey, str], float] = {}

    def wait(self, message: Message, request: WaitingLeaseRequest, response: LeaseResponse) -> bool:
        """Keeps a served request if its answer can wait, and returns whether the answer waits. The request also ends
        the wait of its member's earlier request.

        response: the answer that the request would get now."""
        key = request.client_id, request.stream_name
        members = self._waiting.setdefault(key, {})
        known = members.pop(request.member_id, None)
        # A request that was overtaken by a later one of its member must not take the place of the later one.
        if known is not None and known[1].request_id > request.request_id:
            members[request.member_id] = known
            return False
        has_news = response.release or set(response.leases) != set(request.holding)
        waits_s = min(request.wait_ms, response.ttl_ms // WAITS_PER_TTL) / 1000
        if has_news or request.leave or not waits_s:
            return False
        until_s = trio.current_time() + waits_s
        members[request.member_id] = message, request, until_s
        self._ensure_timer(key, request.member_id, until_s)
        # The group may have moved between this request and the end of the write of its leases.
        if self._groups.has_news(request):
            self.moved(key)
        return True

    def moved(self, key: GroupKey) -> None:
        """Answers the waiting requests of a group soon, if there is something to do for their members."""
        if self._waiting.get(key) and key not in self._moved:
            self._moved.add(key)
            self._call_later(MOVES_GATHER_S, partial(self._look, key))

    def sweep(self) -> None:
        """Forgets the requests of members that are no longer in their group."""
        for key, members in list(self._waiting.items()):
            for member_id in [each for each in members if self._groups.find_member(key, each) is None]:
                del members[member_id]
            if not members:
                del self._waiting[key]

    def _look(self, key: GroupKey) -> None:
        self._moved.discard(key)
        for _, request, _ in list(self._waiting.get(key, {}).values()):
            if self._groups.has_news(request):
                self._end(request)

    def _end(self, request: WaitingLeaseRequest) -> None:
        """Answers a request, unless its wait has ended before."""
        members = self._waiting.get((request.client_id, request.stream_name), {})
        known = members.get(request.member_id)
        if known is not None and known[1] is request:
            del members[request.member_id]
            self._answer(known[0], known[1])

    def _ensure_timer(self, key: GroupKey, member_id: str, until_s: float) -> None:
        if until_s < self._timer_at_s.get((key, member_id), math.inf):
            self._timer_at_s[key, member_id] = until_s
            self._call_later(until_s - trio.current_time(), partial(self._end_late, key, member_id, until_s))

    def _end_late(self, key: GroupKey, member_id: str, timer_at_s: float) -> None:
        # An outdated timer does nothing, because another timer was set for an earlier time.
        if timer_at_s != self._timer_at_s.get((key, member_id)):
            return
        del self._timer_at_s[key, member_id]
        known = self._waiting.get(key, {}).get(member_id)
        if known is not None and known[2] <= timer_at_s:
            self._end(known[1])
        elif known is not None:
            self._ensure_timer(key, member_id, known[2])
