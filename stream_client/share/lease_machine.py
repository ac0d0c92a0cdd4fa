"""What one member of a shared stream may process, and until when. Pure: no I/O, no clock; time is an argument.

The node's word holds for its time to live, counted from before the request was sent; so the member stops no later than
the node gives its partitions to others, however long the answer took and however long the process stood still. Only
the answer to the latest request counts.

    what happens                       a partition held          one not held
    answer names it, same fence        held on                   -
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
    """One member's leases of one stream. now_s: seconds on a clock that does not jump back nor stand still.

    request_id: one below that of the first request. The node ignores a member's requests with lower ids than it has
    seen, so it must be higher in every later life of a member that keeps its id.
    Invariant: `asked_back` is part of what is held; what is held is valid until `_deadline_s`.
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
        """The next request: join, go on, or leave. It counts from now, so send it at once; it ends the one before."""
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
        """Take in the answer to the latest request, and no other; whether it changed anything for the consumer."""
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
        """The fence under which the partition may be processed now; None where it may not."""
        return self._held.get(partition) if now_s < self._deadline_s else None

    def held(self, now_s: float) -> set[int]:
        """The partitions that may be processed now."""
        return set(self._held) if now_s < self._deadline_s else set()

    def asked_back(self, now_s: float) -> set[int]:
        """Those of them that others are to have."""
        return set(self._asked_back) if now_s < self._deadline_s else set()

    def give_back(self, partition: int) -> None:
        """It is processed no more: the next request does not name it. Safe to repeat."""
        if self._held.pop(partition, None) is not None:
            self._asked_back.discard(partition)
            self._given_back.add(partition)

    def lose(self, partition: int) -> None:
        """The node has said by other means that somebody else has it (a save was fenced off)."""
        self.give_back(partition)

    def next_due_s(self) -> float:
        """When the next request is to be sent, or the leases run out, whichever comes first."""
        renewal_s = self._sent_s + self._ttl_s / RENEWALS_PER_TTL
        return min(renewal_s, self._deadline_s) if self._held else renewal_s

    def has_run_out(self, now_s: float) -> bool:
        """Whether there are leases that are over and that the next request will no longer name."""
        return bool(self._held) and now_s >= self._deadline_s

    def check(self) -> None:
        """Assert the invariant."""
        assert self._asked_back <= self._held.keys()
        assert not self._given_back & self._held.keys()

    def _expire(self, now_s: float) -> None:
        if now_s >= self._deadline_s:
            self._lose_all()

    def _lose_all(self) -> None:
        self._given_back |= self._held.keys()
        self._held.clear()
        self._asked_back.clear()
