"""MemberWatch: notices when a member of a group can send no more requests, so that others get its partitions at once.

MemberWatch ends no lease itself. If another node has passed on a member's request, that node watches the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from index_service.extensions import LeaseRequest
from ockam.actors.message import Message, Origin

DIRECT_HOPS = 2
"""The length of the return route of a client of this node: its connection or secure channel, and its address."""
MEMBERS_MAX = 10_000
"""The largest number of members that are watched. The leases of further members run out."""

MemberKey: TypeAlias = tuple[str, str, str]


class WatchedMember(NamedTuple):
    """The last lease request of a member: the connection, the id of the request, and when it came, in seconds."""

    origin: Origin
    number: int
    asked_s: float


class MemberWatch:
    """The connections by which the members of groups have asked for leases last.

    is_stopping: whether the node stops. A stopping node closes all connections, but its members keep their leases.

    Invariant: each member in `_members` is watched at its `origin` and nowhere else. `_members` is sorted by `asked_s`.
    """

    def __init__(
        self, on_end: Callable[[Message, LeaseRequest], None], ttl_s: float, monotonic_s: Callable[[], float]
    ) -> None:
        """on_end: called with the last request of a member that can send no more requests."""
        self._on_end = on_end
        self._ttl_s = ttl_s
        self._monotonic_s = monotonic_s
        self._members: dict[MemberKey, WatchedMember] = {}
        self.is_stopping = False

    def watch(self, message: Message, request: LeaseRequest) -> None:
        """Watches the connection of a request, and no longer the connection of the member's earlier request."""
        key = request.client_id, request.stream_name, request.member_id
        origin, now_s = message.origin, self._monotonic_s()
        self._forget_silent(now_s)
        before = self._members.get(key)
        if before is not None:
            # A request that was overtaken changes nothing, see `LeaseRequest.request_id`.
            if request.request_id < before.number:
                return
            del self._members[key]
            if before.origin is not origin:
                before.origin.holdings.unwatch(("member", key))
        is_direct = origin.kind in ("tcp", "channel") and len(message.return_route) + origin.hops <= DIRECT_HOPS
        # Only a client's own connection says that the client has ended. That of a node on the route says nothing.
        if request.leave or not is_direct or len(self._members) >= MEMBERS_MAX:
            origin.holdings.unwatch(("member", key))
            return
        watched = self._members[key] = WatchedMember(origin, request.request_id, now_s)

        def tell() -> None:
            if not self.is_stopping and self._members.get(key) is watched:
                del self._members[key]
                self._on_end(message, request)

        # A process that is killed closes its sending side. So does a peer that only waits for answers. Neither can
        # renew its leases. The sending side may have been closed before this request was served.
        if origin.holdings.asks_no_more:
            tell()
        else:
            origin.holdings.watch_requests(("member", key), tell)

    def _forget_silent(self, now_s: float) -> None:
        """Forgets the members whose leases have run out. Otherwise, members that stop asking while their connection
        stays open would take the places of other members."""
        while self._members:
            key, watched = next(iter(self._members.items()))
            if watched.asked_s + self._ttl_s >= now_s:
                return
            del self._members[key]
            watched.origin.holdings.unwatch(("member", key))
