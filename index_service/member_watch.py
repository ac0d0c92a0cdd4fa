"""MemberWatch: notices when a member of a group can ask no more, so that the others get its partitions at once.

It ends no lease itself. The connection of a member whose request another node has passed on is watched by that node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from index_service.extensions import LeaseRequest
from ockam.actors.message import Message, Origin

DIRECT_HOPS = 2
"""The length of the return route of a client of this node: its connection or secure channel, and its address."""
MEMBERS_MAX = 10_000
"""The number of members that are watched. The leases of further ones run out."""

MemberKey: TypeAlias = tuple[str, str, str]


class WatchedMember(NamedTuple):
    """origin: the connection of the last request. number: the id of that request. asked_s: when it came."""

    origin: Origin
    number: int
    asked_s: float


class MemberWatch:
    """The connections by which the members of groups have asked for leases last.

    is_stopping: whether the node stops. It closes all connections then, and its members go on at its next start.

    Invariant: each member in `_members` is watched at exactly that connection. They are in the order of `asked_s`.
    """

    def __init__(
        self, on_end: Callable[[Message, LeaseRequest], None], ttl_s: float, monotonic_s: Callable[[], float]
    ) -> None:
        """on_end: called with the last request of a member that can ask no more."""
        self._on_end = on_end
        self._ttl_s = ttl_s
        self._monotonic_s = monotonic_s
        self._members: dict[MemberKey, WatchedMember] = {}
        self.is_stopping = False

    def watch(self, message: Message, request: LeaseRequest) -> None:
        """Watches the connection by which a request has come, and no longer that of the member's earlier request."""
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

        # A killed process closes its sending side, as a peer does that still takes answers. Neither can renew its
        # leases. That side may have been closed before this request was served.
        if origin.holdings.asks_no_more:
            tell()
        else:
            origin.holdings.watch_requests(("member", key), tell)

    def _forget_silent(self, now_s: float) -> None:
        """Forgets the members whose leases have run out. Else members that end without a word, while their connection
        goes on, would take the places of other members."""
        while self._members:
            key, watched = next(iter(self._members.items()))
            if watched.asked_s + self._ttl_s >= now_s:
                return
            del self._members[key]
            watched.origin.holdings.unwatch(("member", key))
