"""Goal: a stream-partition does one thing at a time, gives out each index once, and lets no message overtake another.

Method: each activity is begun and ended in each state; then Hypothesis does anything that may happen to the machine, in
any order, with the invariant checked after each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ockam.actors.address import local
from ockam.actors.message import Message
from stream_service.workers import stream_machine
from stream_service.workers.clock_machine import TOLERANCE_US
from stream_service.workers.stream_bounds import StreamBounds
from stream_service.workers.stream_machine import (
    CHANGING,
    CLOSED,
    COPYING,
    LOADING,
    SERVING,
    STAGING,
    StreamActivity,
    StreamMachine,
)
from stream_storage.contract import StreamRecord

ACTIVITIES = sorted(set(StreamActivity) - {SERVING, CLOSED})


def machine_in(state: StreamActivity) -> StreamMachine:
    machine = StreamMachine(StreamBounds(1, 0, 0))
    machine.state = state
    return machine


@pytest.mark.parametrize("state", StreamActivity)
@pytest.mark.parametrize("activity", ACTIVITIES)
def test_everything_begins_in_serving_and_ends_there(state: StreamActivity, activity: StreamActivity) -> None:
    """Claim: in each state, each activity begins and ends by these rules, and by no other."""
    for change, may, then in (
        (StreamMachine.begin, state is SERVING, activity),
        (StreamMachine.end, state in (activity, CLOSED), CLOSED if state is CLOSED else SERVING),
    ):
        machine = machine_in(state)
        with nullcontext() if may else pytest.raises(AssertionError):
            change(machine, activity)
        assert machine.state is (then if may else state)


@pytest.mark.parametrize("state", StreamActivity)
def test_a_machine_closes_in_every_state(state: StreamActivity) -> None:
    machine = machine_in(state)
    machine.close()
    assert machine.state is CLOSED


def opened(next_index: int = 0, last_time_us: int = 0) -> StreamMachine:
    machine = StreamMachine(StreamBounds(1, 0, next_index))
    machine.open(last_time_us)
    return machine


@pytest.mark.parametrize("activity", [COPYING, CHANGING, LOADING])
def test_two_things_at_once_are_a_mistake_of_ours(activity: StreamActivity) -> None:
    machine = opened()
    machine.begin_append(1, now_us=1)
    with pytest.raises(AssertionError):
        machine.begin(activity)


@given(st.lists(st.integers(0, 4 * TOLERANCE_US), min_size=1), st.lists(st.booleans()))
def test_times_fall_only_where_the_clock_was_wrong_and_each_fall_is_told_until_it_is_stored(
    clock_us: list[int], stored: list[bool]
) -> None:
    machine, on_disk = opened(), [0]
    for now_us, is_stored in zip(clock_us, stored + [True] * len(clock_us), strict=False):
        place = machine.begin_append(1, now_us)
        falls = on_disk[-1] - now_us > TOLERANCE_US
        assert place.falls_from_us == (on_disk[-1] if falls else None)
        assert (place.time_us < on_disk[-1]) == falls
        machine.end_append(1 if is_stored else 0)
        if is_stored:
            on_disk.append(place.time_us)
        elif not falls:
            # A time that was given out is not taken back; that of a fall is, since the log has not noted the place.
            on_disk[-1] = machine.last_time_us
    assert machine.bounds.next_index == sum(stored[: len(clock_us)]) + max(0, len(clock_us) - len(stored))


@pytest.mark.parametrize(
    ("next_index", "index", "may"), [(0, 0, True), (0, 7, True), (3, 3, True), (3, 2, False), (3, 4, False)]
)
def test_a_copy_begins_at_the_end_or_anywhere_in_a_stream_never_written_to(
    next_index: int, index: int, may: bool
) -> None:
    machine = opened(next_index)
    assert machine.can_copy(index) is may
    if may:
        machine.begin(COPYING)
        machine.end_copy(index, 5, 99)
        first = index if next_index == 0 else 0
        assert (machine.bounds.first_index, machine.bounds.next_index, machine.last_time_us) == (first, index + 5, 99)


def test_a_copy_that_fails_changes_nothing() -> None:
    machine = opened(0, last_time_us=8)
    machine.begin(COPYING)
    machine.end_copy(7, 0, 0)
    assert (machine.bounds.first_index, machine.bounds.next_index, machine.last_time_us) == (0, 0, 8)


def record(first_index: int, next_index: int) -> StreamRecord:
    return StreamRecord(1, "s", 0, first_index, next_index, 0, 7)


@pytest.mark.parametrize(
    ("first", "changed", "expected"),
    [(2, (2, 5), (2, 5)), (2, (8, 20), (8, 20)), (4, (2, 9), (4, 9)), (4, (2, 3), (3, 3))],
    ids=["cut", "moved forward", "truncated meanwhile", "truncated meanwhile beyond the cut"],
)
def test_a_change_moves_both_bounds_and_no_truncation_is_taken_back(
    first: int, changed: tuple[int, int], expected: tuple[int, int]
) -> None:
    machine = opened(10)
    machine.bounds.truncate(first)
    machine.begin(CHANGING)
    machine.end_change(record(*changed), 99)
    bounds = machine.bounds
    assert (bounds.first_index, bounds.next_index, machine.last_time_us, bounds.created_us) == (*expected, 99, 7)


def test_a_change_that_fails_changes_nothing() -> None:
    machine = opened(3, last_time_us=8)
    machine.begin(CHANGING)
    machine.end_change(None, 0)
    assert (machine.bounds.first_index, machine.bounds.next_index, machine.last_time_us) == (0, 3, 8)


@pytest.mark.parametrize("limit", ["STAGED_MESSAGES_MAX", "STAGED_BYTES_MAX"])
def test_no_more_is_accepted_while_much_is_staged(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(stream_machine, limit, 2)
    machine = opened()
    machine.begin_append(stream_machine.STAGED_BEHIND_MIN, now_us=1)
    for _ in range(2):
        assert machine.accepts
        machine.stage(1, 1)
    assert not machine.accepts
    machine.end_append(stream_machine.STAGED_BEHIND_MIN)
    machine.begin_append(2, now_us=2)
    assert not machine.accepts, "behind a small append nothing is staged"


def some_messages(count: int) -> list[Message]:
    return [Message((local("s"),), (), b"") for _ in range(count)]


class AnyOrder(RuleBasedStateMachine):
    """Does anything that a worker may do with the machine, and counts the messages that are stored."""

    def __init__(self) -> None:
        super().__init__()
        self._machine = StreamMachine(StreamBounds(1, 0, 0))
        self._stored = 0
        self._under_way = 0
        self._held: Sequence[Message] = ()

    @initialize()
    def open(self) -> None:
        self._machine.open(0)

    @precondition(lambda self: self._machine.state is SERVING)
    @rule(messages=st.integers(1, 64), now_us=st.integers(0, 4 * TOLERANCE_US))
    def begin_append(self, messages: int, now_us: int) -> None:
        place = self._machine.begin_append(messages, now_us)
        assert place.first_index == self._stored
        self._under_way = messages

    @precondition(lambda self: self._under_way)
    @rule(stored=st.booleans())
    def end_append(self, stored: bool) -> None:
        messages, self._under_way = self._under_way if stored else 0, 0
        self._machine.end_append(messages)
        self._stored += messages
        # What was staged goes out as the next append, or is refused, within the same turn.
        if self._machine.staged_messages:
            self._under_way = self._machine.staged_messages
            self._machine.begin_append(self._under_way, 0)

    @precondition(lambda self: self._machine.state is STAGING and not self._machine.held)
    @rule(messages=st.integers(0, 9))
    def stage(self, messages: int) -> None:
        self._machine.stage(messages, messages)

    @precondition(lambda self: self._machine.state is SERVING)
    @rule(activity=st.sampled_from([COPYING, CHANGING, LOADING]))
    def begin(self, activity: StreamActivity) -> None:
        self._machine.begin(activity)

    @precondition(lambda self: self._machine.state is COPYING)
    @rule(messages=st.integers(0, 9))
    def end_copy(self, messages: int) -> None:
        self._machine.end_copy(self._stored, messages, self._machine.last_time_us)
        self._stored += messages

    @precondition(lambda self: self._machine.state is CHANGING)
    @rule(cut=st.integers(0, 3), fails=st.booleans())
    def end_change(self, cut: int, fails: bool) -> None:
        """A change may cut the last messages of the stream."""
        self._stored -= 0 if fails else min(cut, self._stored)
        self._machine.end_change(None if fails else record(0, self._stored), self._machine.last_time_us)

    @precondition(lambda self: self._machine.state is LOADING)
    @rule()
    def end_load(self) -> None:
        self._machine.end(LOADING)

    @precondition(lambda self: self._machine.state not in (SERVING, CLOSED) and not self._held)
    @rule(messages=st.integers(1, 5))
    def hold(self, messages: int) -> None:
        self._held = some_messages(messages)
        self._machine.hold(self._held)
        assert not self._machine.accepts

    @precondition(lambda self: self._stored > 200)
    @rule()
    def close(self) -> None:
        assert self._machine.close() == self._held
        self._held, self._under_way = (), 0

    @invariant()
    def holds(self) -> None:
        if self._machine.state is SERVING and self._held:
            # The worker handles what was held as soon as nothing is under way.
            assert self._machine.take_held() == self._held
            self._held = ()
        self._machine.check()
        assert self._machine.bounds.next_index == self._stored


TestAnyOrder = AnyOrder.TestCase
