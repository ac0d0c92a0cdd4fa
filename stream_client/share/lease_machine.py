"""Decides which partitions one member of a consumer group may process, and until when. Does no I/O, reads no clock.

A lease is the right to process one partition. It lasts for the time that the node states, counted from the moment
before the member sent its request. So the member stops before the node gives the partition to another member, however
slow the answer or the process was. Each lease has a fence: a number that is higher than those of all earlier leases of
the partition. Only the answer to the latest request counts.

    event                                     partition with a lease    partition without one
    the answer names it, with the same fence  keeps its lease           -
    the answer names it, with another fence   lost, then leased anew    leased
    the answer does not name it               lost                      -
    the answer asks for it back               keeps its lease           -
    the member gives it back                  not leased                -
    the lease time is over                    lost                      -
"""

from __future__ import annotations

import math

from index_service.extensions import Lease, LeaseRequest, LeaseResponse

RETRY_S = 1.0
"""The seconds after which a member sends another request if it has never had an answer."""
RENEWALS_PER_TTL = 3
WAITS_PER_TTL = 4
"""The node may delay an answer for the time to live divided by this, so that it comes before a renewal is due."""


class LeaseClientMachine:
    """The leases of one member of a consumer group, for one stream.

    Every `now_s` is a time in seconds on a monotonic clock that also runs while the computer sleeps. The first request
    has the number after `request_id`. The node ignores a request with a lower id than an earlier one of the same
    member, so a member that keeps its member id over a restart must pass a higher `request_id`. `members` is the number
    of members of the group; 0 before the first answer.

    Invariant: every partition that the node wants back has a lease; all leases end at `_deadline_s`.
    """

    def __init__(
        self, client_id: str, stream_name: str, member_id: str, partitions: int, *, request_id: int = 0
    ) -> None:
        self._client_id = client_id
        self._stream_name = stream_name
        self._member_id = member_id
        self._partitions = partitions
        self._request_id = request_id
        self._sent_s = -math.inf
        self._ttl_s = RETRY_S * RENEWALS_PER_TTL
        self._deadline_s = -math.inf
        self._held: dict[int, int] = {}
        self._asked_back: set[int] = set()
        self._given_back: set[int] = set()
        self.members = 0

    def grow(self, partitions: int) -> None:
        """Records that the stream has more partitions by now. The next request says so."""
        self._partitions = max(self._partitions, partitions)

    def request(self, now_s: float, *, leave: bool = False) -> LeaseRequest:
        """Returns the next request: to join the group, to renew the leases, or, if `leave` is true, to leave the group.
        It is sent at once, because the leases in its answer end a fixed time after `now_s`."""
        # A lease that is over must not be renewed: another member may have the partition already.
        self._expire(now_s)
        self._request_id += 1
        self._sent_s = now_s
        # An answer to an earlier request is ignored from now on. So the partitions given back can be leased again.
        self._given_back.clear()
        holding = [] if leave else [Lease(partition, fence) for partition, fence in sorted(self._held.items())]
        if leave:
            self._lose_all()
        return LeaseRequest(
            self._request_id, self._client_id, self._stream_name, self._member_id, self._partitions, holding, leave
        )

    def answer(self, response: LeaseResponse, now_s: float) -> bool:
        """Applies the answer to the latest request, and ignores any other. Returns whether the leases, or the
        partitions that the node wants back, have changed."""
        if response.request_id != self._request_id:
            return False
        before = dict(self._held), set(self._asked_back)
        self._ttl_s = max(response.ttl_ms / 1000, 0.001)
        # The node counts the time from the receipt of the request, which is later. So the leases end here first.
        self._deadline_s = self._sent_s + self._ttl_s
        self.members = response.members
        # The node may have leased a partition again before it knew that the member gives it back.
        leases = {lease.partition: lease.fence for lease in response.leases if lease.partition not in self._given_back}
        self._held = {partition: fence for partition, fence in leases.items() if partition < self._partitions}
        self._asked_back = set(response.release) & self._held.keys()
        self._expire(now_s)
        return before != (self._held, self._asked_back)

    def find_fence(self, partition: int, now_s: float) -> int | None:
        """Returns the fence of the lease on this partition, or None if the member has no valid lease on it."""
        return self._held.get(partition) if now_s < self._deadline_s else None

    def held(self, now_s: float) -> set[int]:
        """Returns the partitions that the member has a valid lease on, so that it is allowed to process them now."""
        return set(self._held) if now_s < self._deadline_s else set()

    def asked_back(self, now_s: float) -> set[int]:
        """Returns those partitions leased by this member that the node wants back for other members."""
        return set(self._asked_back) if now_s < self._deadline_s else set()

    def give_back(self, partition: int) -> None:
        """Ends the lease on this partition: later requests do not ask to renew it. Also called when the node has
        refused a save, because another member has the partition. Safe to repeat."""
        if self._held.pop(partition, None) is not None:
            self._asked_back.discard(partition)
            self._given_back.add(partition)

    def wait_s(self, now_s: float) -> float:
        """Returns for how many seconds the node may delay its answer while nothing changes: 0 before the first answer,
        and while the member has partitions that the node wants back."""
        return 0.0 if self._deadline_s == -math.inf or self.asked_back(now_s) else self._ttl_s / WAITS_PER_TTL

    def next_due_s(self) -> float:
        renewal_s = self._sent_s + self._ttl_s / RENEWALS_PER_TTL
        return min(renewal_s, self._deadline_s) if self._held else renewal_s

    def has_run_out(self, now_s: float) -> bool:
        return bool(self._held) and now_s >= self._deadline_s

    def check(self) -> None:
        assert self._asked_back <= self._held.keys()
        assert not self._given_back & self._held.keys()

    def _expire(self, now_s: float) -> None:
        if now_s >= self._deadline_s:
            self._lose_all()

    def _lose_all(self) -> None:
        self._given_back |= self._held.keys()
        self._held.clear()
        self._asked_back.clear()
