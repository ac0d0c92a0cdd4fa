"""Goal: single decisions of the lease machine that its model only meets by chance. Method: requests by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from index_service.extensions import Lease, LeaseRequest, LeaseResponse
from index_service.lease_machine import TRANSITIONS, LeaseEvent, LeaseMachine, LeaseState, StoredLease

TTL_S = 10.0


def machine(*stored: StoredLease, old_until_s: float = 0.0) -> LeaseMachine:
    return LeaseMachine(stored, old_until_s=old_until_s, ttl_s=TTL_S)


def request(
    request_id: int, member_id: str = "a", holding: Sequence[Lease] = (), partitions: int = 2, *, leave: bool = False
) -> LeaseRequest:
    return LeaseRequest(request_id, "c", "s", member_id, partitions, list(holding), leave)


def served(leases: LeaseMachine, asked: LeaseRequest, now_s: float = 0.0) -> LeaseResponse:
    """The answer, when what it needs is on disk."""
    leases.request(asked, now_s)
    leases.written(leases.take_changes(), stored=True)
    leases.check()
    return leases.answer(asked, now_s)


BOTH = [Lease(0, 1), Lease(1, 1)]


def test_the_same_request_again_is_told_the_same() -> None:
    leases = machine()
    first = served(leases, request(1))
    assert first.leases == BOTH
    assert served(leases, request(1), 3.0) == first
    assert leases.find_holder(0, TTL_S + 2.9) == "a"
    assert leases.find_holder(0, TTL_S + 3.0) is None


def test_an_overtaken_request_changes_nothing_and_is_told_what_it_named() -> None:
    leases = machine()
    served(leases, request(1))
    served(leases, request(3, holding=BOTH))
    assert served(leases, request(2, holding=[Lease(1, 1)])).leases == [Lease(1, 1)]
    assert served(leases, request(2, holding=[Lease(1, 2)])).leases == []
    assert served(leases, request(2, leave=True)).leases == []
    assert leases.answer(request(3, holding=BOTH), 0.0).leases == BOTH
    assert leases.counters.late == 3
    assert leases.find_holder(0, TTL_S) is None, "it did not renew"


def test_an_answer_that_was_overtaken_on_its_way_tells_of_nothing_new() -> None:
    leases = machine()
    leases.request(request(1), 0.0)
    changes = leases.take_changes()
    leases.request(request(2), 0.0)
    assert leases.take_changes() == []
    assert leases.answer(request(2), 0.0).leases == []
    leases.written(changes, stored=True)
    assert leases.answer(request(1), 0.0).leases == []
    assert leases.answer(request(2), 0.0).leases == BOTH


def test_who_does_not_name_a_lease_gets_it_again_under_a_new_fence() -> None:
    leases = machine()
    served(leases, request(1))
    assert served(leases, request(2)).leases == [Lease(0, 2), Lease(1, 2)]


def test_a_wrong_fence_and_another_ones_lease_are_lost() -> None:
    leases = machine()
    served(leases, request(1))
    assert served(leases, request(1, "b", BOTH)).leases == []
    assert served(leases, request(2, holding=[Lease(0, 1), Lease(1, 9)])).leases == [Lease(0, 1), Lease(1, 2)]
    assert leases.counters.lost == 3


def test_a_fence_that_was_not_written_is_never_told() -> None:
    leases = machine()
    leases.request(request(1), 0.0)
    changes = leases.take_changes()
    assert [(row.fence, row.holder) for row in changes] == [(1, "a"), (1, "a")]
    leases.written(changes, stored=False)
    assert leases.answer(request(1), 0.0).leases == []
    assert leases.find_holder(0, 0.0) is None
    assert served(leases, request(1)).leases == [Lease(0, 2), Lease(1, 2)]


def test_who_leaves_while_its_lease_is_written_has_left() -> None:
    leases = machine()
    leases.request(request(1), 0.0)
    changes = leases.take_changes()
    leases.request(request(2, leave=True), 0.0)
    assert [(row.fence, row.holder) for row in leases.take_changes()] == [(1, None), (1, None)]
    leases.written(changes, stored=True)
    assert (leases.find_holder(0, 0.0), leases.members) == (None, 0)
    assert served(leases, request(1, "b")).leases == [Lease(0, 2), Lease(1, 2)]


def test_an_old_lease_goes_on_when_named_and_is_written_anew() -> None:
    leases = machine(StoredLease(0, 4, "a"), StoredLease(1, 5, None), old_until_s=6.0)
    leases.request(request(9, holding=[Lease(0, 4)]), 1.0)
    assert leases.take_changes() == [StoredLease(0, 4, "a"), StoredLease(1, 6, "a")]
    assert leases.answer(request(9, holding=[Lease(0, 4)]), 1.0).leases == [Lease(0, 4)]
    assert leases.find_holder(0, 10.9) == "a"


@pytest.mark.parametrize(
    ("left", "holder"), [(request(9, holding=[Lease(0, 4)], leave=True), None), (request(9, leave=True), "a")]
)
def test_an_old_lease_ends_with_a_leave_that_names_it(left: LeaseRequest, holder: str | None) -> None:
    leases = machine(StoredLease(0, 4, "a"), old_until_s=6.0)
    served(leases, left)
    assert leases.find_holder(0, 5.9) == holder
    assert leases.find_holder(0, 6.0) is None


def test_an_operator_shuts_out_the_fence_before() -> None:
    leases = machine(StoredLease(0, 4, None))
    leases.raise_fence(0)
    leases.raise_fence(1)
    assert leases.take_changes() == [StoredLease(0, 5, None)]
    assert served(leases, request(1)).leases == [Lease(0, 6), Lease(1, 1)]
    with pytest.raises(AssertionError, match="is held"):
        leases.raise_fence(0)


def test_fences_that_were_raised_on_disk_end_lower_leases_and_later_ones_are_higher() -> None:
    leases = machine()
    served(leases, request(1))
    kept = [Lease(0, 1)]
    leases.request(request(2, holding=kept), 0.0)
    changes = leases.take_changes()
    assert changes == [StoredLease(1, 2, "a")]
    leases.written(changes, stored=True)
    leases.raise_fences({1: 50})
    leases.check()
    assert leases.answer(request(2, holding=kept), 0.0).leases == kept
    assert leases.has_news(request(2, holding=kept))
    assert served(leases, request(3, holding=kept)).leases == [*kept, Lease(1, 51)]
    # The result of an earlier write comes late.
    leases.raise_fences({1: 50})
    assert leases.answer(request(3, holding=kept), 0.0).leases == [*kept, Lease(1, 51)]


def test_many_members_that_expire_at_once_are_dealt_with_at_once() -> None:
    leases = machine()
    for number in range(50):
        served(leases, request(1, f"m{number}", partitions=100))
    assert leases.members == 50
    leases.expire(TTL_S)
    leases.check()
    assert (leases.members, leases.held, leases.counters.expired) == (0, 0, 50)


def test_every_state_can_be_left_and_every_event_happens_somewhere() -> None:
    assert {state for state, _ in TRANSITIONS} == set(LeaseState)
    assert {event for _, event in TRANSITIONS} == set(LeaseEvent)
    assert all(
        TRANSITIONS[state, LeaseEvent.ENDED] is LeaseState.FREE for state in LeaseState if state is not LeaseState.FREE
    )
