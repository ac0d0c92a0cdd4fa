"""MemberWatch: notices when a member of a group can ask no more, so that the others get its partitions at once.

It ends no lease itself. The connection of a member whose request another node has passed on is watched by that node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from index_service.extensions import LeaseRequest
from ockam.actors.message import Message, Origin

DIRECT_HOPS = 2
"""The length of the return route of a client on a connection to this node: the connection, and the client's address."""
MEMBERS_MAX = 10_000
"""The number of members that are watched. The leases of further ones run out."""

MemberKey: TypeAlias = tuple[str, str, str]


class MemberWatch:
    """The connections by which the members of groups have asked for leases last.

    is_stopping: whether the node stops. It closes all connections then, and its members go on at its next start.

    Invariant: each member in `_members` is watched at exactly that connection.
    """

    def __init__(self, on_end: Callable[[Message, LeaseRequest], None]) -> None:
        """on_end: called with the last request of a member that can ask no more."""
        self._on_end = on_end
        self._members: dict[MemberKey, tuple[Origin, int]] = {}
        self.is_stopping = False

    def watch(self, message: Message, request: LeaseRequest) -> None:
        """Watches the connection by which a request has come, and no longer that of the member's request before."""
        key = request.client_id, request.stream_name, request.member_id
        origin = message.origin
        before, number = self._members.get(key, (None, 0))
        # A request that was overtaken changes nothing, see `LeaseRequest.request_id`.
        if request.request_id < number:
            return
        if before is not None:
            del self._members[key]
            if before is not origin:
                before.holdings.unwatch(("member", key))
        is_direct = origin.kind == "tcp" and len(message.return_route) <= DIRECT_HOPS
        # Only a client's own connection says that the client has ended. That of a node on the route says nothing.
        if request.leave or not is_direct or len(self._members) >= MEMBERS_MAX:
            origin.holdings.unwatch(("member", key))
            return
        self._members[key] = origin, request.request_id

        def tell() -> None:
            if not self.is_stopping and self._members.get(key, (None, 0))[0] is origin:
                del self._members[key]
                self._on_end(message, request)

        # A killed process closes its sending side, as a peer does that still takes answers. Neither can renew its
        # leases. That side may have been closed before this request was served.
        if origin.holdings.asks_no_more:
            tell()
        else:
            origin.holdings.watch_requests(("member", key), tell)

    def forget(self, is_gone: Callable[[MemberKey], bool]) -> None:
        for key in list(filter(is_gone, self._members)):
            self._members.pop(key)[0].holdings.unwatch(("member", key))
