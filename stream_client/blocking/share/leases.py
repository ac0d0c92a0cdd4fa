# Generated from stream_client/share/leases.py by tools/generate_blocking.py; do not edit.
"""LeaseMember: a member of a consumer group, to which a node's index service leases partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from index_service.extensions import LEASE, SaveResponse, SaveStatus
from stream_client.blocking.positions import SavedIndexes
from stream_client.blocking.session import ClientSession, Connected
from stream_client.core.calls import answer_of
from stream_client.core.marks import KnownPosition, OnReset
from stream_client.core.service_route import INDEX_SERVICE
from stream_client.errors import RequestRefused
from stream_client.position_saves import check_keeps_positions, check_name, knows_no_marks
from stream_client.share.membership import LeaseMembership


class LeaseMember(LeaseMembership):
    """One member of a consumer group. The members of a group share the partitions of a stream under one client id.

    Each consumer needs its own LeaseMember. The member saves positions together with the fence of its lease, a number
    that is higher for each later holder of the partition. So the node can refuse a save by a member that has lost the
    lease. The blocking client renews leases only while the program is inside one of its calls.
    """

    _session: ClientSession
    _indexes: SavedIndexes

    def __init__(self, client: Connected, client_id: str, *, member_id: str | None = None) -> None:
        """client: a StreamClient.
        client_id: the name of the group.
        member_id: a name that no other member of the group has, which `stream-node index list` shows. None: the names
            of this host and process, and a random part.
        """
        super().__init__(client.session, SavedIndexes(client, client_id), member_id)

    def load(self, stream_name: str, partitions: Sequence[int]) -> Sequence[int]:
        """Returns the saved index of each of these partitions, in order; 0 for a partition without a saved index."""
        return self._indexes.load(stream_name, partitions)

    def resume(self, stream_name: str, partitions: Sequence[int], on_reset: OnReset) -> Sequence[KnownPosition]:
        """Returns the position of each of these partitions with its mark (`SavedIndexes.resume`)."""
        return self._indexes.resume(stream_name, partitions, on_reset)

    def begin(self, stream_name: str, partition: int, created_us: int) -> SaveResponse:
        """Does what `SavedIndexes.begin` does, if the lease is valid. Without a valid lease, nothing is saved."""
        fence = self.find_fence(partition)
        if fence is None:
            return SaveResponse(0, SaveStatus.FENCED, 0)
        return self._indexes.begin(stream_name, partition, created_us, fence)

    def save(self, stream_name: str, indexes: Mapping[int, int]) -> None:
        """Saves the index of each partition in `indexes`, except partitions whose lease has expired. When this method
        returns, the node has answered each save. A refused save ends the lease on the partition."""
        saves = self._saves(stream_name, indexes)
        # All saves are sent before the first wait, so that they take one round trip together.
        calls = [self._session.call(INDEX_SERVICE, protocol, request) for protocol, request in saves]
        try:
            for (protocol, request), call in zip(saves, calls, strict=True):
                self._saved(request, answer_of(self._session.answered(call), protocol))
        except RequestRefused as error:
            if not knows_no_marks(error):
                raise
            self._knows_marks = False
            self.save(stream_name, indexes)

    def leave(self) -> None:
        """Leaves the group: ends all leases and requests no more. Waits for the node's answer. Safe to repeat."""
        if self._machine is not None and not self._left:
            self._end()
            self._session.ask(INDEX_SERVICE, LEASE, self._machine.request(self._session.shell.now_s(), leave=True))


def to_member(client: Connected, membership: LeaseMember | str) -> LeaseMember:
    """Returns a new member of the group with this name, or the given LeaseMember unchanged. Raises InvalidArgument."""
    if isinstance(membership, str):
        return LeaseMember(client, check_name(membership))
    return check_keeps_positions(membership)
