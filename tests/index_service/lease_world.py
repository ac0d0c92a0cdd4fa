"""A world around one lease machine: clients that keep to the rules, a network that does not, a disk, and restarts.

The clients do what `extensions.LeaseRequest` asks of them: they use what answers their latest request, until the time
to live after they sent it, and stop what they no longer name. Everything else may be late, lost or doubled.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from index_service.extensions import Lease, LeaseRequest, LeaseResponse
from index_service.lease_machine import LeaseMachine, StoredLease

TTL_S = 10.0


class Client(msgspec.Struct):
    """partitions: how many it knows. holding: fences by partition, usable before `deadline_s`."""

    member_id: str
    partitions: int
    request_id: int = 0
    sent_s: float = 0.0
    holding: dict[int, int] = {}
    asked_back: frozenset[int] = frozenset()
    deadline_s: float = 0.0


class Answer(msgspec.Struct, frozen=True):
    request: LeaseRequest
    terms: LeaseResponse


class Write(msgspec.Struct, frozen=True):
    """Rows on their way to disk, and the request that is answered behind them."""

    rows: list[StoredLease]
    request: LeaseRequest | None


class World:
    """What there is. `machine_type` is the machine under test, or one with a planted mistake."""

    def __init__(self, machine_type: type[LeaseMachine] = LeaseMachine) -> None:
        self._machine_type = machine_type
        self.now_s = 100.0
        self.disk: dict[int, StoredLease] = {}
        self.writes: list[Write] = []
        self.requests: list[LeaseRequest] = []
        self.answers: list[Answer] = []
        self.clients: dict[str, Client] = {}
        self.used: dict[tuple[int, int], str] = {}
        self.machine = self._start(self.now_s)

    def _start(self, old_until_s: float) -> LeaseMachine:
        return self._machine_type(self.disk.values(), old_until_s=old_until_s, ttl_s=TTL_S)

    def restart(self) -> None:
        """The node dies with what is not on disk, and starts again."""
        self.writes.clear()
        self.machine = self._start(self.now_s + TTL_S)

    def join(self, partitions: int) -> Client:
        client = Client(f"m{len(self.clients)}", partitions)
        self.clients[client.member_id] = client
        return client

    def valid(self, client: Client) -> dict[int, int]:
        """What this client may process now, by its own clock."""
        return client.holding if self.now_s < client.deadline_s else {}

    def send(self, client: Client, given_up: Sequence[int] = (), *, leave: bool = False) -> LeaseRequest:
        """Its next request; from now on it does not process what it does not name."""
        keeps = {} if leave else self.valid(client)
        client.holding = {each: fence for each, fence in keeps.items() if each not in given_up}
        client.request_id += 1
        client.sent_s = self.now_s
        holding = [Lease(*each) for each in client.holding.items() if each[0] < client.partitions]
        client.holding = {lease.partition: lease.fence for lease in holding}
        request = LeaseRequest(
            client.request_id, "client", "stream", client.member_id, client.partitions, holding, leave
        )
        self.requests.append(request)
        return request

    def serve(self, request: LeaseRequest) -> None:
        """What the node does with a request that arrives."""
        self.machine.request(request, self.now_s)
        rows = self.machine.take_changes()
        if rows or self.writes:
            self.writes.append(Write(rows, request))
        else:
            self._answer(request)

    def write(self, *, stored: bool = True, told: bool = True) -> None:
        """The oldest write is done, or fails. told: the node lives to hear of it."""
        write = self.writes.pop(0)
        for row in write.rows if stored else ():
            if row.partition not in self.disk or row.fence >= self.disk[row.partition].fence:
                self.disk[row.partition] = row
        if told:
            self.machine.written(write.rows, stored=stored)
            if stored and write.request is not None:
                self._answer(write.request)

    def _answer(self, request: LeaseRequest) -> None:
        self.answers.append(Answer(request, self.machine.answer(request, self.now_s)))

    def hear(self, answer: Answer) -> None:
        """A client gets an answer, and uses it if it answers its latest request."""
        client = self.clients[answer.request.member_id]
        if answer.request.request_id != client.request_id:
            return
        client.deadline_s = client.sent_s + TTL_S
        client.holding = {lease.partition: lease.fence for lease in answer.terms.leases}
        client.asked_back = frozenset(answer.terms.release)
        for partition, fence in self.valid(client).items():
            self.used.setdefault((partition, fence), client.member_id)

    def set_position(self, partition: int) -> bool:
        """The operator's: False where a member holds the partition."""
        if self.machine.find_holder(partition, self.now_s) is not None:
            return False
        self.machine.raise_fence(partition)
        rows = self.machine.take_changes()
        if rows:
            self.writes.append(Write(rows, None))
        return True

    def renew_all(self) -> None:
        """Every client renews and gives up what it is asked for, and nothing is late or lost."""
        for client in self.clients.values():
            self.requests.clear()
            self.serve(self.send(client, sorted(client.asked_back)))
            while self.writes:
                self.write()
            self.hear(self.answers.pop())

    def settle(self, duration_s: float = 2 * TTL_S) -> None:
        """That much time, in which every client renews four times per time to live."""
        self.answers.clear()
        ends_s = self.now_s + duration_s
        while self.now_s < ends_s:
            self.renew_all()
            self.now_s += TTL_S / 4
        self.renew_all()

    def owners(self) -> dict[int, tuple[str, int]]:
        """Who may process which partition now, under which fence. Asserts that it is one at most."""
        owners: dict[int, tuple[str, int]] = {}
        for client in self.clients.values():
            for partition, fence in self.valid(client).items():
                assert partition not in owners, f"partition {partition}: {client.member_id} and {owners[partition]}"
                owners[partition] = (client.member_id, fence)
        return owners

    def check(self) -> None:
        """One holder at a time and for ever one per fence; a fence that is used is on disk; the machine agrees."""
        self.machine.check()
        for partition, (member_id, fence) in self.owners().items():
            assert self.used.setdefault((partition, fence), member_id) == member_id, f"fence {fence} was another's"
            row = self.disk.get(partition)
            assert row is not None, f"partition {partition} is not on disk"
            assert row.fence == fence
            assert self.machine.find_holder(partition, self.now_s) == member_id
