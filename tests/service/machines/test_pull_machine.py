"""Goal: pulls are answered in order, one batch at a time, and a slow consumer delays nobody.

Method: the table is looked at whole; then Hypothesis does anything that may happen in any order, with the invariant
checked after each step, and a list of each consumer's pulls says which answer must be next.
"""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stream_service.workers import pull_machine
from stream_service.workers.pull_machine import TRANSITIONS, PullEvent, PullMachine, PullState

BEGINS = {PullEvent.READ_BEGUN: PullState.READING, PullEvent.TURN_YIELDED: PullState.YIELDING}
ENDS = {PullEvent.READ_ENDED: PullState.READING, PullEvent.TURN_CAME: PullState.YIELDING}


class Pull:
    def __init__(self, consumer: str, deadline_s: float = 0.0, goes_on: bool = False) -> None:
        self.consumer = consumer
        self.deadline_s = deadline_s
        self.goes_on = goes_on

    def __repr__(self) -> str:
        return f"{self.consumer}@{id(self):x}"


@pytest.mark.parametrize("state", PullState)
@pytest.mark.parametrize("event", PullEvent)
@pytest.mark.parametrize("is_held", [False, True])
def test_the_table_keeps_two_questions_apart(state: PullState, event: PullEvent, is_held: bool) -> None:
    """What is under way (a read, another's turn) and whether pulls are held are independent of each other, but nothing
    begins while pulls are held. So each entry of the table follows from the rules that are written down here."""
    expected: PullState | None
    if state is PullState.CLOSED:
        expected = None if event in BEGINS else PullState.CLOSED
    elif event is PullEvent.CLOSE:
        expected = PullState.CLOSED
    elif event in BEGINS:
        expected = BEGINS[event] if state is PullState.READY else None
    else:
        expected = PullState.READY if ENDS[event] is state else None
    assert TRANSITIONS[state].get(event) is expected
    machine: PullMachine[Pull] = PullMachine(lambda consumer: False)
    machine.state, machine.is_held = state, is_held
    if expected is None or (is_held and event in BEGINS):
        with pytest.raises((AssertionError, KeyError)):
            machine.note(event)
    else:
        machine.note(event)
        assert (machine.state, machine.is_held) == (expected, is_held)
    machine.add(Pull("a"))
    assert machine.can_take == (machine.state is PullState.READY and not is_held)


def test_every_state_can_be_reached_and_left() -> None:
    reached, left = {PullState.READY}, [PullState.READY]
    while left:
        for following in TRANSITIONS[left.pop()].values():
            if following not in reached:
                reached.add(following)
                left.append(following)
    assert reached == set(PullState) == TRANSITIONS.keys()


def test_an_event_that_cannot_happen_is_a_mistake_of_ours() -> None:
    machine: PullMachine[Pull] = PullMachine(lambda consumer: False)
    with pytest.raises(KeyError):
        machine.note(PullEvent.READ_ENDED)


def test_pulls_of_a_consumer_that_caught_up_and_waiting_ones_take_turns() -> None:
    """A read may end after its first page, so that neither side may always be first."""
    slow = {"slow"}
    machine: PullMachine[Pull] = PullMachine(slow.__contains__)
    blocked = [Pull("slow") for _ in range(3)]
    for pull in blocked:
        machine.add(pull)
    assert machine.take() == ([], blocked, [])
    machine.finish(0)
    slow.clear()
    assert machine.unblock("slow")
    waiting = [Pull("quick") for _ in range(3)]
    for pull in waiting:
        machine.add(pull)
    firsts = []
    while machine.can_take:
        pulls, _, _ = machine.take()
        firsts += machine.finish(1)[0]
        assert len(pulls) == 6 - len(firsts) + 1
    assert Counter(pull.consumer for pull in firsts[:4]) == {"slow": 2, "quick": 2}
    assert [pull for pull in firsts if pull.consumer == "slow"] == blocked
    assert [pull for pull in firsts if pull.consumer == "quick"] == waiting


def test_a_batch_and_the_pulls_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_machine, "PULLS_PER_BATCH_MAX", 3)
    monkeypatch.setattr(pull_machine, "PULLS_WAITING_MAX", 5)
    monkeypatch.setattr(pull_machine, "LONG_POLLS_MAX", 2)
    machine: PullMachine[Pull] = PullMachine(lambda consumer: False)
    for number in range(5):
        assert not machine.is_full
        machine.add(Pull("a", deadline_s=number + 1.0))
    assert machine.is_full
    assert len(machine.take()[0]) == 3
    assert not machine.is_full
    assert [machine.park(pull, now_s=0.0) for pull in machine.finish(3)[0]] == [True, True, False]


@given(st.lists(st.integers(1, 6), max_size=20), st.integers(0, 7))
def test_long_polls_end_at_their_deadlines_and_not_before(deadlines_s: list[int], now_s: int) -> None:
    machine: PullMachine[Pull] = PullMachine(lambda consumer: False)
    pulls = [Pull("a", float(deadline_s)) for deadline_s in deadlines_s]
    assert all(machine.park(pull, now_s=0.0) for pull in pulls)
    assert machine.next_deadline_s == min(deadlines_s, default=float("inf"))
    late = machine.end_late(float(now_s))
    assert late == sorted((pull for pull in pulls if pull.deadline_s <= now_s), key=lambda pull: pull.deadline_s)
    assert machine.next_deadline_s > now_s
    assert machine.wake() == [pull for pull in pulls if pull.deadline_s > now_s]


def test_a_long_poll_that_was_given_up_is_not_held_until_its_deadline() -> None:
    """Claim: what a long poll holds, such as its connection, is free when most others have ended, too. Method: weak
    references to long polls with far deadlines, of which one goes on."""
    machine: PullMachine[Pull] = PullMachine(lambda consumer: False)
    kept = Pull("a", deadline_s=1e9)
    assert machine.park(kept, now_s=0.0)
    ended = []
    for _ in range(100):
        pull = Pull("b", deadline_s=1e9)
        ended.append(weakref.ref(pull))
        assert machine.park(pull, now_s=0.0)
        assert machine.unpark(pull)
    del pull
    assert sum(each() is not None for each in ended) <= 1
    assert machine.end_late(1e9) == [kept]


class AnyOrder(RuleBasedStateMachine):
    """Does anything that a stream and its consumers may do, and knows which pull of each consumer is its next.

    A long poll gives up its place in the order when it is parked, so `_expected` has those that are not parked.
    """

    CONSUMERS = ("a", "b", "c")

    def __init__(self) -> None:
        super().__init__()
        self._slow: set[str] = set()
        self._machine: PullMachine[Pull] = PullMachine(self._slow.__contains__)
        self._expected: defaultdict[str, deque[Pull]] = defaultdict(deque)
        self._parked: list[Pull] = []
        self._read: Sequence[Pull] = ()
        self._now_s = 0.0

    def _answered(self, pulls: Sequence[Pull], parks: bool) -> None:
        for pull in pulls:
            assert self._expected[pull.consumer].popleft() is pull
            if parks and self._machine.park(pull, self._now_s):
                self._parked.append(pull)

    @precondition(lambda self: self._machine.state is not PullState.CLOSED)
    @rule(consumer=st.sampled_from(CONSUMERS), wait_s=st.integers(0, 3), goes_on=st.booleans())
    def add(self, consumer: str, wait_s: int, goes_on: bool) -> None:
        pull = Pull(consumer, self._now_s + wait_s if wait_s else 0.0, goes_on and wait_s > 0)
        self._expected[consumer].append(pull)
        self._machine.add(pull)

    @precondition(lambda self: self._machine.can_take)
    @rule(part=st.floats(0, 1), reads=st.booleans(), parks=st.booleans())
    def take(self, part: float, reads: bool, parks: bool) -> None:
        pulls, _, unblocked = self._machine.take()
        assert not {pull.consumer for pull in pulls} & self._slow
        assert {pull.consumer for pull in unblocked} <= {pull.consumer for pull in pulls}
        if reads and pulls:
            self._machine.begin_read()
            self._read = pulls
            return
        answered, _ = self._machine.finish(round(part * len(pulls)))
        self._answered(answered, parks)

    @precondition(lambda self: self._read)
    @rule(part=st.floats(0, 1), parks=st.booleans())
    def end_read(self, part: float, parks: bool) -> None:
        closed = self._machine.state is PullState.CLOSED
        answered, again = self._machine.end_read(round(part * len(self._read)))
        assert answered == self._read[: len(answered)]
        assert set(again) <= set(self._read[len(answered) :])
        if not closed:
            self._answered(answered, parks)
        self._read = ()

    @precondition(lambda self: self._machine.state is PullState.READY and not self._machine.is_held)
    @rule()
    def yield_turn(self) -> None:
        self._machine.note(PullEvent.TURN_YIELDED)

    @precondition(lambda self: self._machine.state is PullState.YIELDING)
    @rule()
    def turn_came(self) -> None:
        self._machine.note(PullEvent.TURN_CAME)

    @rule(is_held=st.booleans())
    def push(self, is_held: bool) -> None:
        self._machine.is_held = is_held

    @rule(consumer=st.sampled_from(CONSUMERS))
    def become_slow(self, consumer: str) -> None:
        self._slow.add(consumer)

    @rule(consumer=st.sampled_from(CONSUMERS))
    def catch_up(self, consumer: str) -> None:
        self._slow.discard(consumer)
        assert self._machine.unblock(consumer) == self._machine.has_blocked(consumer)

    @rule(consumer=st.sampled_from(CONSUMERS))
    def disconnect(self, consumer: str) -> None:
        dropped = set(self._machine.drop_blocked(consumer))
        self._expected[consumer] = deque(pull for pull in self._expected[consumer] if pull not in dropped)

    @rule()
    def wake(self) -> None:
        woken = self._machine.wake()
        assert woken == [pull for pull in self._parked if not pull.goes_on]
        for pull in woken:
            self._expected[pull.consumer].append(pull)
        self._parked = [pull for pull in self._parked if pull.goes_on]
        assert list(self._machine.long_polls) == self._parked

    @precondition(lambda self: any(pull.goes_on for pull in self._parked))
    @rule(data=st.data(), fits=st.booleans(), wait_s=st.integers(1, 3))
    def send_part(self, data: st.DataObject, fits: bool, wait_s: int) -> None:
        """A part was sent, and the next one is waited for from now on; or it must be read, like any other page."""
        pull = data.draw(st.sampled_from([pull for pull in self._parked if pull.goes_on]))
        if fits:
            pull.deadline_s = self._now_s + wait_s
            return
        assert self._machine.unpark(pull)
        self._parked.remove(pull)
        self._expected[pull.consumer].append(pull)
        self._machine.add(pull)

    @rule(by_s=st.integers(0, 2))
    def pass_time(self, by_s: int) -> None:
        self._now_s += by_s
        late = self._machine.end_late(self._now_s)
        assert set(late) == {pull for pull in self._parked if pull.deadline_s <= self._now_s}
        self._parked = [pull for pull in self._parked if pull not in late]

    @precondition(lambda self: self._parked)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        pull = data.draw(st.sampled_from(self._parked))
        assert self._machine.unpark(pull)
        assert not self._machine.unpark(pull)
        self._parked.remove(pull)

    @precondition(lambda self: self._now_s > 5)
    @rule()
    def close(self) -> None:
        self._machine.note(PullEvent.CLOSE)
        waiting, blocked, long_polls = self._machine.clear()
        assert long_polls == self._parked
        left = {pull for pulls in self._expected.values() for pull in pulls}
        assert {*waiting, *blocked} == left - set(self._read)
        self._expected.clear()
        self._parked = []

    @invariant()
    def holds(self) -> None:
        self._machine.check()


TestAnyOrder = AnyOrder.TestCase
