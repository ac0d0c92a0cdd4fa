"""Goal: two members never process a partition at the same time, whatever is late, lost or paused. Method: cases, then
several members' machines against the node's own machine in virtual time.
"""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from index_service.extensions import Lease, LeaseRequest, LeaseResponse
from index_service.lease_machine import LeaseMachine, StoredLease
from stream_client.share.lease_machine import RETRY_S, LeaseClientMachine
from tests.support.examples import examples

TTL_S = 10.0
PARTITIONS = 3


def member(request_id: int = 0) -> LeaseClientMachine:
    return LeaseClientMachine("c", "s", "m", PARTITIONS, request_id=request_id)


def response(request: LeaseRequest, *leases: tuple[int, int], release: tuple[int, ...] = ()) -> LeaseResponse:
    named = [Lease(partition, fence) for partition, fence in leases]
    return LeaseResponse(request.request_id, named, list(release), int(TTL_S * 1000), 2)


def test_the_time_counts_from_before_the_request_was_sent() -> None:
    machine = member()
    request = machine.request(100.0)
    assert request == LeaseRequest(1, "c", "s", "m", PARTITIONS, [], False)
    assert machine.next_due_s() == 100.0 + RETRY_S
    assert machine.answer(response(request, (0, 7), (2, 3)), 109.0)
    assert (machine.held(109.9), machine.find_fence(0, 109.9), machine.find_fence(1, 109.9)) == ({0, 2}, 7, None)
    assert machine.next_due_s() == pytest.approx(100.0 + TTL_S / 3)
    assert not machine.has_run_out(109.9)
    assert (machine.held(110.0), machine.find_fence(0, 110.0), machine.has_run_out(110.0)) == (set(), None, True)
    assert machine.request(110.0).holding == [], "what has run out is not named any more"
    assert not machine.has_run_out(110.0)


def test_an_answer_that_comes_after_its_time_gives_nothing() -> None:
    machine = member()
    request = machine.request(0.0)
    assert not machine.answer(response(request, (0, 1)), TTL_S)
    assert machine.held(TTL_S) == set()
    machine.check()


def test_only_the_answer_to_the_latest_request_counts() -> None:
    machine = member()
    first, second = machine.request(0.0), machine.request(1.0)
    assert not machine.answer(response(first, (0, 1)), 2.0)
    assert machine.held(2.0) == set()
    assert machine.answer(response(second, (1, 1)), 2.0)
    assert machine.held(2.0) == {1}


def test_what_is_not_named_is_lost_and_another_fence_is_another_lease() -> None:
    machine = member()
    machine.answer(response(machine.request(0.0), (0, 1), (1, 1)), 0.0)
    request = machine.request(3.0)
    assert request.holding == [Lease(0, 1), Lease(1, 1)]
    assert machine.answer(response(request, (1, 5)), 3.0)
    assert (machine.find_fence(0, 3.0), machine.find_fence(1, 3.0), machine.members) == (None, 5, 2)
    assert not machine.answer(response(machine.request(4.0), (1, 5)), 4.0), "nothing is new"


def test_what_is_asked_back_is_held_until_it_is_given_back() -> None:
    machine = member()
    machine.answer(response(machine.request(0.0), (0, 1), (1, 1)), 0.0)
    under_way = machine.request(3.0)
    assert machine.answer(response(under_way, (0, 1), (1, 1), release=(1,)), 3.0)
    assert (machine.held(3.0), machine.asked_back(3.0), machine.asked_back(99.0)) == ({0, 1}, {1}, set())
    under_way = machine.request(4.0)
    machine.give_back(1)
    machine.give_back(1)
    machine.answer(response(under_way, (0, 1), (1, 1), release=(1,)), 4.0)
    assert (machine.held(4.0), machine.asked_back(4.0)) == ({0}, set()), "it was named before it was given back"
    request = machine.request(5.0)
    assert request.holding == [Lease(0, 1)]
    machine.answer(response(request, (0, 1), (1, 9)), 5.0)
    assert machine.find_fence(1, 5.0) == 9, "it was got anew"
    machine.check()


def test_a_fenced_save_and_leaving_end_leases() -> None:
    machine = member(request_id=40)
    machine.answer(response(machine.request(0.0), (0, 1), (1, 1)), 0.0)
    machine.give_back(0)
    assert machine.held(0.0) == {1}
    request = machine.request(1.0, leave=True)
    assert (request.request_id, request.holding, request.leave) == (42, [], True)
    assert machine.held(1.0) == set()
    machine.answer(response(request), 1.0)
    assert machine.held(1.0) == set()


def test_partitions_that_the_stream_does_not_have_are_not_taken() -> None:
    machine = member()
    machine.answer(response(machine.request(0.0), (PARTITIONS, 1), (0, 1)), 0.0)
    assert machine.held(0.0) == {0}


class Sharing(RuleBasedStateMachine):
    """Three members, a node, virtual time; requests and answers arrive late, in order of each connection, or never.

    A member that is paused is one that no rule is drawn for; its clock goes on, as `BaseShell.now_s` does.
    """

    machine_type: type[LeaseClientMachine] = LeaseClientMachine

    @initialize()
    def start(self) -> None:
        self.now_s = 0.0
        self.members = [self.machine_type("c", "s", f"m{number}", PARTITIONS) for number in range(3)]
        self.node = LeaseMachine([], old_until_s=0.0, ttl_s=TTL_S)
        self.rows: dict[int, StoredLease] = {}
        self.requests: list[deque[LeaseRequest]] = [deque() for _ in self.members]
        self.answers: list[deque[LeaseResponse]] = [deque() for _ in self.members]
        self.processed: dict[tuple[int, int], int] = {}

    @rule(number=st.integers(0, 2))
    def a_member_asks(self, number: int) -> None:
        self.requests[number].append(self.members[number].request(self.now_s))

    @rule(number=st.integers(0, 2))
    def a_member_leaves(self, number: int) -> None:
        self.requests[number].append(self.members[number].request(self.now_s, leave=True))

    @rule(number=st.integers(0, 2))
    def a_member_gives_back_what_is_asked_back(self, number: int) -> None:
        for partition in self.members[number].asked_back(self.now_s):
            self.members[number].give_back(partition)

    @rule(number=st.integers(0, 2), answered=st.booleans())
    def the_node_takes_a_request(self, number: int, answered: bool) -> None:
        if not self.requests[number]:
            return
        request = self.requests[number].popleft()
        self.node.request(request, self.now_s)
        changes = self.node.take_changes()
        self.rows.update({row.partition: row for row in changes})
        self.node.written(changes, stored=True)
        terms = self.node.answer(request, self.now_s)
        if answered:
            answer = LeaseResponse(request.request_id, terms.leases, terms.release, int(TTL_S * 1000), terms.members)
            self.answers[number].append(answer)

    @rule(number=st.integers(0, 2))
    def an_answer_arrives(self, number: int) -> None:
        if self.answers[number]:
            self.members[number].answer(self.answers[number].popleft(), self.now_s)
            self.members[number].check()

    @rule(number=st.integers(0, 2))
    def a_connection_is_lost(self, number: int) -> None:
        self.answers[number].clear()

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.3, 5.0, 9.9, 10.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @precondition(lambda self: self.rows)
    @rule()
    def the_node_is_restarted(self) -> None:
        self.node = LeaseMachine(list(self.rows.values()), old_until_s=self.now_s + TTL_S, ttl_s=TTL_S)
        for number in range(3):
            self.requests[number].clear()
            self.answers[number].clear()

    @invariant()
    def one_member_a_partition_and_one_a_fence(self) -> None:
        for partition in range(PARTITIONS) if hasattr(self, "members") else ():
            fences = [machine.find_fence(partition, self.now_s) for machine in self.members]
            holders = [number for number, fence in enumerate(fences) if fence is not None]
            assert len(holders) <= 1, f"{holders} process partition {partition} at the same time"
            for number in holders:
                fence = fences[number]
                assert fence is not None
                assert self.processed.setdefault((partition, fence), number) == number, "two under one fence"


TestSharing = Sharing.TestCase
Sharing.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=40)


class CountsFromTheAnswer(LeaseClientMachine):
    """A member with a mistake: its time begins when the answer comes."""

    def answer(self, response: LeaseResponse, now_s: float) -> bool:
        self._sent_s = now_s
        return super().answer(response, now_s)


@pytest.mark.parametrize("machine_type", [LeaseClientMachine, CountsFromTheAnswer])
def test_the_model_finds_a_member_that_counts_from_the_answer(machine_type: type[LeaseClientMachine]) -> None:
    class World(Sharing):
        pass

    World.machine_type = machine_type
    world = World()
    world.start()
    world.a_member_asks(0)
    world.the_node_takes_a_request(0, True)
    world.time_passes(9.9)
    world.an_answer_arrives(0)
    world.time_passes(1.0)
    world.a_member_asks(1)
    world.the_node_takes_a_request(1, True)
    world.an_answer_arrives(1)
    if machine_type is LeaseClientMachine:
        world.one_member_a_partition_and_one_a_fence()
        assert world.members[1].held(world.now_s) == set(range(PARTITIONS))
    else:
        with pytest.raises(AssertionError, match="at the same time"):
            world.one_member_a_partition_and_one_a_fence()
