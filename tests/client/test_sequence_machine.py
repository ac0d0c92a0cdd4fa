"""Goal: a numbered message is stored once or reported, whatever is lost. Method: cases, then the client's machine in
its lane against the node's own machine, with any order of pushes, losses, failures and reconnects.
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

from ockam.message import Message
from ockam.wire_legacy import LEGACY
from stream_service.client.core import ClientCore
from stream_service.client.errors import ClientError, ConnectionLost, PushFailed
from stream_service.client.lanes import Lane
from stream_service.client.requests import KeyedPush
from stream_service.client.sequence_machine import SequenceMachine
from stream_service.extensions import RICH_PUSH, RichStatus
from stream_service.workers.sequence_machine import Duplicate, New
from stream_service.workers.sequence_machine import SequenceMachine as NodeSequenceMachine
from tests.client.far_end import FarEnd, connected_core, opened, rich_pushes


def ids() -> deque[bytes]:
    return deque(b"id %d" % number for number in range(1_000))


def sequenced_lane(core: ClientCore, far: FarEnd, machine: SequenceMachine | None = None) -> Lane:
    (port,) = opened(core, far)
    names = ids()
    return core.open_lane(port, machine or SequenceMachine(names.popleft(), 0, names.popleft))


def numbers(messages: list[Message]) -> list[tuple[bytes, int, bytes]]:
    """Publisher, number and data of each push sent."""
    return [
        (push.sequence.publisher_id, push.sequence.sequence, push.data)
        for push in rich_pushes(messages)
        if push.sequence is not None
    ]


def test_nobody_comes_before_the_first_message() -> None:
    core, far = connected_core()
    lane = sequenced_lane(core, far)
    pushed = [lane.push_keyed(b"%d" % number, None, ()) for number in range(4)]
    sent = far.sent()
    assert numbers(sent) == [(b"id 0", 0, b"0")]
    far.confirm_rich(sent[0], 10)
    sent = far.sent()
    assert numbers(sent) == [(b"id 0", number, b"%d" % number) for number in (1, 2, 3)]
    for index, message in enumerate(sent, start=11):
        far.confirm_rich(message, index, RichStatus.DUPLICATE if index == 12 else RichStatus.OK)
    assert [push.result() for push in pushed] == [10, 11, 12, 13]


def test_a_failure_fails_what_was_sent_behind_it_and_begins_anew() -> None:
    core, far = connected_core()
    lane = sequenced_lane(core, far)
    opening = lane.push_keyed(b"0", None, ())
    far.confirm_rich(far.sent()[0], 0)
    pushed = [lane.push_keyed(b"%d" % number, None, ()) for number in (1, 2, 3)]
    first, second, third = far.sent()
    far.confirm_rich(second, 0, RichStatus.OUT_OF_ORDER, 1)
    assert not pushed[1].done, "the one before it may still be stored"
    far.confirm_rich(first, 0, RichStatus.ERROR)
    assert [isinstance(push.error, PushFailed) for push in pushed] == [True, True, False]
    behind = lane.push_keyed(b"4", None, ())
    (new,) = far.sent()
    assert numbers([new]) == [(b"id 1", 0, b"4")]
    far.confirm_rich(third, 0, RichStatus.OUT_OF_ORDER, 1)
    far.confirm_rich(new, 1)
    assert isinstance(pushed[2].error, PushFailed)
    assert (opening.result(), behind.result(), len(lane.failed or ())) == (0, 1, 3)


def test_a_failed_opening_lets_the_next_one_try() -> None:
    core, far = connected_core()
    lane = sequenced_lane(core, far)
    first, second = (lane.push_keyed(b"%d" % number, None, ()) for number in (0, 1))
    far.confirm_rich(far.sent()[0], 0, RichStatus.ERROR)
    sent = far.sent()
    assert numbers(sent) == [(b"id 1", 0, b"1")]
    far.confirm_rich(sent[0], 0)
    assert (first.error is not None, second.result()) == (True, 0)


def test_a_chosen_publisher_id_ends_with_a_failure() -> None:
    core, far = connected_core()
    lane = sequenced_lane(core, far, SequenceMachine(b"mine", 7, None))
    first, second = (lane.push_keyed(b"%d" % number, None, ()) for number in (0, 1))
    sent = far.sent()
    assert numbers(sent) == [(b"mine", 7, b"0")]
    far.confirm_rich(sent[0], 0, RichStatus.OUT_OF_ORDER, 5)
    assert "number 7 of this publisher does not follow: the node expects 5" in str(first.error)
    later = lane.push_keyed(b"2", None, ())
    assert far.sent() == []
    assert isinstance(second.error, PushFailed)
    assert isinstance(later.error, PushFailed)
    assert not lane.pushes


def test_what_cannot_be_sent_takes_no_number() -> None:
    core = ClientCore()
    far = FarEnd(core, LEGACY)
    lane = sequenced_lane(core, far)
    large = lane.push_keyed(bytes(70_000), None, ())
    small = lane.push_keyed(b"x", None, ())
    sent = far.sent()
    assert large.error is not None
    assert numbers(sent) == [(b"id 0", 0, b"x")]
    far.confirm_rich(sent[0], 0)
    assert small.result() == 0


def test_a_large_message_found_too_late_ends_its_numbers() -> None:
    core, far = connected_core()
    lane = sequenced_lane(core, far)
    lane.push_keyed(b"0", None, ())
    far.confirm_rich(far.sent()[0], 0)
    large = lane.push_keyed(bytes(70_000), None, ())
    core.disconnected()
    far = FarEnd(core, LEGACY)
    far.answer_create(far.sent()[0])
    assert large.error is not None, "it was sent over the head framing, and does not fit this one"
    lane.push_keyed(b"1", None, ())
    assert numbers(far.sent()) == [(b"id 1", 0, b"1")], "the node may have stored it under its number"


def test_what_was_given_up_may_be_stored_so_its_numbers_end() -> None:
    core, far = connected_core()
    lane = sequenced_lane(core, far)
    waiting = [lane.push_keyed(b"%d" % number, None, ()) for number in (0, 1)]
    far.sent()
    core.fail_all(ConnectionLost("no more patience"))
    assert [isinstance(push.error, ConnectionLost) for push in waiting] == [True, True]
    lane.push_keyed(b"2", None, ())
    assert numbers(far.sent()) == [(b"id 1", 0, b"2")]


class LossyNode(RuleBasedStateMachine):
    """A publisher with numbers, a node, and a connection that may be lost with anything on its way.

    What the client reports as stored is stored once, at that index; what it reports as failed (PushFailed) is not
    stored; of anything else that is done it says that nobody knows (ConnectionLost).
    """

    machine_type: type[SequenceMachine] = SequenceMachine

    @initialize(fixed=st.booleans())
    def start(self, fixed: bool) -> None:
        names = ids()
        machine = self.machine_type(names.popleft(), 0, None if fixed else names.popleft)
        self.core, self.far = connected_core()
        (port,) = opened(self.core, self.far)
        self.lane = self.core.open_lane(port, machine)
        self.node = NodeSequenceMachine()
        self.stored: list[bytes] = []
        self.on_the_way: deque[Message] = deque()
        self.stale: deque[Message] = deque()
        self.delayed: deque[Message] = deque()
        self.pushed: list[KeyedPush] = []

    @rule()
    def push(self) -> None:
        self.pushed.append(self.lane.push_keyed(b"%d" % len(self.pushed), None, ()))

    @rule(disk_is_full=st.integers(0, 5).map(lambda number: number == 0), count=st.integers(1, 4))
    def node_takes_a_run(self, disk_is_full: bool, count: int) -> None:
        self.on_the_way += self.far.sent()
        run = [self.on_the_way.popleft() for _ in range(min(count, len(self.on_the_way)))]
        self.take_run(run, disk_is_full, answer=True)

    @precondition(lambda self: self.delayed)
    @rule()
    def a_failure_is_told_late(self) -> None:
        self.far.confirm_rich(self.delayed.popleft(), 0, RichStatus.ERROR)

    @rule()
    def the_connection_is_lost(self) -> None:
        """What was on its way may still reach the node, later; answers that were due are lost."""
        self.stale += (*self.on_the_way, *(each for each in self.far.sent() if RICH_PUSH.is_in(each.payload)))
        self.on_the_way.clear()
        self.delayed.clear()
        self.core.disconnected()
        self.far = FarEnd(self.core)
        (create,) = self.far.sent()
        self.far.answer_create(create)

    @precondition(lambda self: self.stale)
    @rule(count=st.integers(1, 4))
    def the_node_reads_the_old_connection(self, count: int) -> None:
        run = [self.stale.popleft() for _ in range(min(count, len(self.stale)))]
        self.take_run(run, False, answer=False)

    @rule()
    def nothing_comes_for_a_while(self) -> None:
        """The client asks again on the same connection: the stream answers behind what it has."""
        self.core.check_progress()
        sent = self.far.sent()
        self.on_the_way += (each for each in sent if RICH_PUSH.is_in(each.payload))
        for create in (each for each in sent if not RICH_PUSH.is_in(each.payload)):
            self.far.answer_create(create)

    @rule()
    def patience_ends(self) -> None:
        self.core.fail_all(ConnectionLost("no more patience"))

    def take_run(self, run: list[Message], disk_is_full: bool, answer: bool) -> None:
        decisions = []
        data: list[bytes] = []
        for message in run:
            push = RICH_PUSH.decode_request(message.payload)
            assert push.sequence is not None
            decision = self.node.decide(push.sequence.publisher_id, push.sequence.sequence, len(data))
            decisions.append(decision)
            if isinstance(decision, New):
                data.append(push.data)
        first = len(self.stored)
        if disk_is_full:
            self.node.refused()
        else:
            self.stored += data
            self.node.stored(first)
        for message, decision in zip(run, decisions, strict=True) if answer else ():
            if isinstance(decision, New | Duplicate) and disk_is_full and not _is_known(decision):
                self.delayed.append(message)
            elif isinstance(decision, New):
                self.far.confirm_rich(message, first)
                first += 1
            elif isinstance(decision, Duplicate):
                index = decision.index if decision.index is not None else len(self.stored) - len(data)
                index += decision.offset or 0
                self.far.confirm_rich(message, index, RichStatus.DUPLICATE)
            else:
                self.far.confirm_rich(message, 0, RichStatus.OUT_OF_ORDER, decision.expected)

    @invariant()
    def what_is_told_is_true(self) -> None:
        if not hasattr(self, "stored"):
            return
        assert len(set(self.stored)) == len(self.stored), "stored twice"
        for push in self.pushed:
            if push.done and push.error is None:
                assert self.stored[push.index] == push.data
            elif isinstance(push.error, PushFailed):
                assert push.data not in self.stored

    def teardown(self) -> None:
        """In the end every push has its answer, and the lane is empty."""
        if not hasattr(self, "stored"):
            return
        for _ in range(3 * len(self.pushed) + 3):
            self.the_connection_is_lost()
            self.on_the_way += self.far.sent()
            while self.on_the_way:
                self.node_takes_a_run(False, 4)
            if not self.lane.pushes:
                break
        assert not self.lane.pushes
        self.what_is_told_is_true()
        assert all(push.done for push in self.pushed)


def _is_known(decision: New | Duplicate) -> bool:
    return isinstance(decision, Duplicate) and decision.index is not None


TestLossyNode = LossyNode.TestCase
LossyNode.TestCase.settings = settings(max_examples=200, stateful_step_count=25, deadline=None)


class Impatient(SequenceMachine):
    """A publisher with a mistake: it does not wait for the first answer."""

    def admit(self, request_id: int, push: KeyedPush) -> bool:
        self._opening = None
        return super().admit(request_id, push)


@pytest.mark.parametrize("machine_type", [SequenceMachine, Impatient])
def test_the_model_finds_a_publisher_that_does_not_wait(machine_type: type[SequenceMachine]) -> None:
    class World(LossyNode):
        pass

    World.machine_type = machine_type
    world = World()
    world.start(fixed=False)
    world.push()
    world.push()
    # The first one fails; its answer is due, and lost with the connection.
    world.node_takes_a_run(disk_is_full=True, count=1)
    world.node_takes_a_run(disk_is_full=False, count=1)
    world.the_connection_is_lost()
    world.node_takes_a_run(disk_is_full=False, count=4)
    if machine_type is SequenceMachine:
        world.what_is_told_is_true()
        world.teardown()
        assert [push.result() for push in world.pushed] == [0, 1]
    else:
        with pytest.raises(AssertionError):
            world.what_is_told_is_true()


def test_every_client_error_says_whose_fault_it_is() -> None:
    kinds: list[type[ClientError]] = [ClientError, *ClientError.__subclasses__()]
    assert len(kinds) > 8
    for kind in kinds:
        assert kind.fault in ("caller", "node", "network")
        assert isinstance(kind.retriable, bool)
        assert kind.__doc__
