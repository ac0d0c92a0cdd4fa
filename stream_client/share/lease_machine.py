"""Decides which partitions one member of a consumer group may process, and until when. Pure: time is an argument.

A lease holds for the node's time to live, counted from the moment before the request was sent. So the member stops no
later than the node gives its partitions to others, however long the answer took and however long the process stood
still. Only the answer to the latest request counts.

    event                              a partition held          one not held
    answer names it, same fence        still held                -
    answer names it, another fence     lost, and got anew        got
    answer does not name it            lost                      -
    answer asks it back                held, asked back          -
    given back                         not named any more        -
    the time is over                   lost                      -
"""

from __future__ import annotations

import math

from index_service.extensions import Lease, LeaseRequest, LeaseResponse

RETRY_S = 1.0
"""How long to wait for the first answer before asking again."""
RENEWALS_PER_TTL = 3


class LeaseClientMachine:
    """The leases of one member of a consumer group, for one stream. A lease is the right to process one partition.

    Every `now_s` is a time in seconds on a clock that neither jumps back nor stands still. request_id: one less than
    the id of the first request. The node ignores a request whose id is lower than an earlier one of the same member. So
    a member that keeps its member id over a restart must begin with a higher request id.

    Invariant: partitions asked back are held; all held partitions may be processed until `_deadline_s`.
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

    def request(self, now_s: float, *, leave: bool = False) -> LeaseRequest:
        """Return the next request to send: to join the group, to renew the leases, or to leave the group.

        Send it at once, since the leases count from `now_s`. From now on, answers to earlier requests are ignored.
        """
        self._expire(now_s)
        self._request_id += 1
        self._sent_s = now_s
        self._given_back.clear()
        holding = [] if leave else [Lease(partition, fence) for partition, fence in sorted(self._held.items())]
        if leave:
            self._lose_all()
        return LeaseRequest(
            self._request_id, self._client_id, self._stream_name, self._member_id, self._partitions, holding, leave
        )

    def answer(self, response: LeaseResponse, now_s: float) -> bool:
        """Apply the answer to the latest request; ignore an answer to an earlier request.

        Returns whether the partitions held, or those asked back, have changed.
        """
        if response.request_id != self._request_id:
            return False
        before = dict(self._held), set(self._asked_back)
        self._ttl_s = max(response.ttl_ms / 1000, 0.001)
        self._deadline_s = self._sent_s + self._ttl_s
        self.members = response.members
        leases = {lease.partition: lease.fence for lease in response.leases if lease.partition not in self._given_back}
        self._held = {partition: fence for partition, fence in leases.items() if partition < self._partitions}
        self._asked_back = set(response.release) & self._held.keys()
        self._expire(now_s)
        return before != (self._held, self._asked_back)

    def find_fence(self, partition: int, now_s: float) -> int | None:
        """Return the fence of the lease on this partition, or None if the partition may not be processed now."""
        return self._held.get(partition) if now_s < self._deadline_s else None

    def held(self, now_s: float) -> set[int]:
        """Return the partitions that may be processed now."""
        return set(self._held) if now_s < self._deadline_s else set()

    def asked_back(self, now_s: float) -> set[int]:
        """Return the held partitions that the node wants back for other members."""
        return set(self._asked_back) if now_s < self._deadline_s else set()

    def give_back(self, partition: int) -> None:
        """Stop holding the partition, so that the next request no longer names it. Safe to repeat."""
        if self._held.pop(partition, None) is not None:
            self._asked_back.discard(partition)
            self._given_back.add(partition)

    def lose(self, partition: int) -> None:
        """Stop holding a partition that another member has got: the node has refused a save under our fence."""
        self.give_back(partition)

    def next_due_s(self) -> float:
        """Return the time when the next request is due or the leases expire, whichever comes first."""
        renewal_s = self._sent_s + self._ttl_s / RENEWALS_PER_TTL
        return min(renewal_s, self._deadline_s) if self._held else renewal_s

    def has_run_out(self, now_s: float) -> bool:
        """Whether the leases of held partitions have expired."""
        return bool(self._held) and now_s >= self._deadline_s

    def check(self) -> None:
        """Assert the first part of the invariant, and that no partition is both held and given back."""
        assert self._asked_back <= self._held.keys()
        assert not self._given_back & self._held.keys()

    def _expire(self, now_s: float) -> None:
        if now_s >= self._deadline_s:
            self._lose_all()

    def _lose_all(self) -> None:
        self._given_back |= self._held.keys()
        self._held.clear()
        self._asked_back.clear()
