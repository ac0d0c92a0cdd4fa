"""Goal: a clock that jumps is noticed, and believed only when it has lasted. Method: both clocks are numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_service.workers.clock_machine import TOLERANCE_US, ClockMachine, Turn

S = 1_000_000
HOUR = 3_600 * S
YEAR = 365 * 24 * HOUR
NOW = 60 * YEAR


class World:
    """A wall clock `ahead_us` of the right time, and a steady one from 0 on."""

    def __init__(self, ahead_us: int = 0, **machine: int) -> None:
        self.steady_us = 0
        self.ahead_us = ahead_us
        self.machine = ClockMachine(NOW + ahead_us, 0, **{"newest_us": 0, "trust_after_us": 24 * HOUR, **machine})

    def later(self, by_us: int, ahead_us: int | None = None) -> Turn | None:
        self.steady_us += by_us
        self.ahead_us = self.ahead_us if ahead_us is None else ahead_us
        return self.machine.look(NOW + self.steady_us + self.ahead_us, self.steady_us)

    @property
    def error_us(self) -> int:
        """How far the machine's time is ahead of the right one."""
        return self.machine.time_us(self.steady_us) - NOW - self.steady_us


@pytest.mark.parametrize("jump_us", [2 * HOUR, 10 * YEAR, -2 * HOUR, -10 * YEAR])
def test_a_jump_is_told_once_and_changes_nothing_until_it_has_lasted(jump_us: int) -> None:
    world = World()
    assert world.later(5 * S) is None
    assert world.later(5 * S, jump_us) is Turn.JUMPED
    assert world.machine.jump_us() == jump_us
    for _ in range(23):
        assert world.later(HOUR) is None
        assert (world.machine.in_doubt, world.error_us) == (True, 0)
    assert world.later(HOUR) is Turn.ACCEPTED
    assert (world.machine.in_doubt, world.error_us) == (False, jump_us)


def test_a_clock_that_is_set_back_right_is_believed_at_once() -> None:
    world = World()
    assert world.later(S, 10 * YEAR) is Turn.JUMPED
    assert world.later(S, 0) is Turn.BACK
    assert (world.machine.in_doubt, world.error_us) == (False, 0)


@pytest.mark.parametrize("jump_us", [0, 10 * YEAR])
def test_a_steady_clock_that_falls_moves_no_time(jump_us: int) -> None:
    """A virtual machine goes on from a snapshot: neither 1970 nor a jump, and a doubt goes on for as long as before."""
    machine = ClockMachine(NOW, 10 * HOUR, newest_us=0, trust_after_us=HOUR)
    machine.look(NOW + jump_us, 10 * HOUR)
    # The machine goes on with a steady clock that begins anew, and half a second has passed.
    assert machine.look(NOW + jump_us + S // 2, 0) is None
    for later_us in range(0, HOUR - S, 60 * S):
        assert machine.look(NOW + jump_us + S // 2 + later_us, later_us) is None
        assert NOW + later_us <= machine.time_us(later_us) <= NOW + later_us + S
        assert machine.in_doubt == bool(jump_us)
    assert machine.look(NOW + jump_us + HOUR, HOUR) is (Turn.ACCEPTED if jump_us else None)


def test_each_further_jump_begins_the_wait_anew() -> None:
    world = World()
    assert world.later(S, HOUR) is Turn.JUMPED
    assert world.later(23 * HOUR) is None
    assert world.later(HOUR, 2 * HOUR) is Turn.JUMPED
    assert world.later(23 * HOUR) is None
    assert world.later(HOUR) is Turn.ACCEPTED


def test_with_no_time_to_wait_every_jump_is_believed() -> None:
    world = World(trust_after_us=0)
    assert world.later(S, HOUR) is Turn.ACCEPTED
    assert (world.machine.in_doubt, world.error_us) == (False, HOUR)


@given(st.lists(st.integers(-TOLERANCE_US, TOLERANCE_US), max_size=50))
def test_a_clock_that_is_set_a_little_is_followed(steps: list[int]) -> None:
    world, ahead_us = World(), 0
    for step in steps:
        ahead_us += step
        assert world.later(5 * S, ahead_us) is None
        assert world.error_us == ahead_us


def test_a_start_finds_a_jump_since_the_note_of_this_start_of_the_machine() -> None:
    world = World(ahead_us=10 * YEAR, known_offset_us=NOW)
    assert world.later(0) is Turn.JUMPED
    assert (world.machine.in_doubt, world.error_us) == (True, 0)
    assert not World(known_offset_us=NOW).machine.in_doubt


def test_a_start_before_what_is_stored_waits_until_the_clock_is_beyond_it_or_has_lasted() -> None:
    for ends in ("set right", "lasts"):
        world = World(ahead_us=-50 * YEAR, newest_us=NOW - HOUR)
        assert world.later(0) is Turn.JUMPED
        assert (world.machine.in_doubt, world.error_us) == (True, -HOUR)
        if ends == "set right":
            assert world.later(5 * S, 0) is Turn.BACK
            assert (world.machine.in_doubt, world.error_us) == (False, 0)
        else:
            assert world.later(24 * HOUR) is Turn.ACCEPTED
            assert world.error_us == -50 * YEAR


def test_a_start_long_after_what_is_stored_trusts_the_clock() -> None:
    world = World(newest_us=NOW - YEAR)
    assert world.later(0) is None
    assert not world.machine.in_doubt


@given(st.lists(st.tuples(st.integers(0, 30 * HOUR), st.integers(-YEAR, YEAR)), max_size=30))
def test_time_falls_only_when_a_jump_back_is_accepted(looks: list[tuple[int, int]]) -> None:
    world = World()
    before_us = world.machine.time_us(0)
    for by_us, ahead_us in looks:
        turn = world.later(by_us, ahead_us)
        now_us = world.machine.time_us(world.steady_us)
        assert now_us >= before_us - TOLERANCE_US or turn is Turn.ACCEPTED
        before_us = now_us
