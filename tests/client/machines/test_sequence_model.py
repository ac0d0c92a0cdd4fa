"""Goal: a numbered message is stored once or reported, whatever is lost. Method: the client's machine in its queue
against the node's own machine, with any order of pushes, losses, failures of the disk, restarts and reconnects.
"""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ockam.actors.message import Message
from stream_client.core.pushes import KeyedPush
from stream_client.core.sequence_machine import SequenceMachine
from stream_client.errors import ConnectionLost, PushNotStored
from stream_service.extensions import RICH_PUSH, Outcome, RichStatus
from stream_service.workers.sequence_machine import Decision, Duplicate, New, OutOfOrder
from stream_service.workers.sequence_machine import PublisherSequences as NodeSequenceMachine
from tests.client.machines.far_end import FarEnd, connected_core, opened
from tests.support.examples import examples


def ids() -> deque[bytes]:
    return deque(b"id %d" % number for number in range(1_000))


class LossyNode(RuleBasedStateMachine):
    """A publisher with numbers, a node, and a connection that may be lost with anything on its way.

    What the client reports as stored is stored once, at that index; what it reports as PushNotStored is not stored; of
    anything else that is done it says that nobody knows (`in_doubt`). A sync that fails may have stored the run or not,
    and after it the node stores nothing before it is started again.
    """

    machine_type: type[SequenceMachine] = SequenceMachine

    @initialize(fixed=st.booleans())
    def start(self, fixed: bool) -> None:
        names = ids()
        machine = self.machine_type(names.popleft(), 0, None if fixed else names.popleft)
        self.core, self.far = connected_core()
        (handle,) = opened(self.core, self.far)
        self.queue = self.core.open_queue(handle, machine)
        self.node = NodeSequenceMachine()
        self.stored: list[bytes] = []
        self.found_at_start: list[bytes] = []
        self.sent_as: dict[bytes, tuple[bytes, int]] = {}
        self.on_the_way: deque[Message] = deque()
        self.stale: deque[Message] = deque()
        self.delayed: deque[tuple[Message, Outcome]] = deque()
        self.writes = True
        self.pushed: list[KeyedPush] = []

    @rule()
    def push(self) -> None:
        self.pushed.append(self.queue.push_keyed(b"%d" % len(self.pushed), None, ()))

    @rule(disk_is_full=st.integers(0, 5).map(lambda number: number == 0), count=st.integers(1, 4))
    def node_takes_a_run(self, disk_is_full: bool, count: int) -> None:
        self.on_the_way += self.far.sent()
        run = [self.on_the_way.popleft() for _ in range(min(count, len(self.on_the_way)))]
        self.take_run(run, disk_is_full or not self.writes, answer=True)

    @precondition(lambda self: self.writes)
    @rule(kept=st.booleans(), count=st.integers(1, 4))
    def a_sync_fails(self, kept: bool, count: int) -> None:
        """The log has the run, or it has not; the node cannot tell, and does not know the numbers in it either."""
        self.on_the_way += self.far.sent()
        run = [self.on_the_way.popleft() for _ in range(min(count, len(self.on_the_way)))]
        before = list(self.stored)
        decisions = self.take_run(run, False, answer=False)
        self.found_at_start = list(self.stored) if kept else before
        self.stored, self.writes = before, False
        self.node = self.node_that_has(before)
        for message, decision in zip(run, decisions, strict=True):
            if not isinstance(decision, OutOfOrder):
                self.delayed.append((message, Outcome.UNKNOWN))

    @precondition(lambda self: not self.writes)
    @rule()
    def the_node_is_started_again(self) -> None:
        self.stored, self.writes = self.found_at_start, True
        self.node = self.node_that_has(self.stored)
        self.the_connection_is_lost()

    def node_that_has(self, stored: list[bytes]) -> NodeSequenceMachine:
        """A node's machine that has read the log: of each message, who sent it under which number."""
        node = NodeSequenceMachine()
        node.remember((*self.sent_as[data], index) for index, data in enumerate(stored))
        return node

    @precondition(lambda self: self.delayed)
    @rule()
    def a_failure_is_told_late(self) -> None:
        message, outcome = self.delayed.popleft()
        self.far.fail(message, "because", outcome)

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
        self.take_run(run, not self.writes, answer=False)

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

    def take_run(self, run: list[Message], disk_is_full: bool, answer: bool) -> list[Decision]:
        decisions: list[Decision] = []
        data: list[bytes] = []
        for message in run:
            push = RICH_PUSH.decode_request(message.payload)
            assert push.sequence is not None
            decision = self.node.decide(push.sequence.publisher_id, push.sequence.sequence, len(data))
            decisions.append(decision)
            self.sent_as[push.data] = (push.sequence.publisher_id, push.sequence.sequence)
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
                self.delayed.append((message, Outcome.NOT_STORED))
            elif isinstance(decision, New):
                self.far.confirm_rich(message, first)
                first += 1
            elif decision == Duplicate():
                self.far.confirm_rich(message, None, RichStatus.DUPLICATE)
            elif isinstance(decision, Duplicate):
                index = decision.index if decision.index is not None else len(self.stored) - len(data)
                index += decision.offset or 0
                self.far.confirm_rich(message, index, RichStatus.DUPLICATE)
            else:
                self.far.confirm_rich(message, 0, RichStatus.OUT_OF_ORDER, decision.expected)
        return decisions

    @invariant()
    def what_is_told_is_true(self) -> None:
        if not hasattr(self, "stored"):
            return
        assert len(set(self.stored)) == len(self.stored), "stored twice"
        for push in self.pushed:
            if push.done and push.error is None:
                # Where the node has forgotten the index, the message is stored all the same.
                assert push.data in (self.stored if push.index < 0 else [self.stored[push.index]])
            elif isinstance(push.error, PushNotStored):
                assert push.data not in self.stored
                assert self.writes or push.data not in self.found_at_start
            elif push.error is not None:
                assert push.error.in_doubt

    def teardown(self) -> None:
        """In the end every push has its answer, and the queue is empty."""
        if not hasattr(self, "stored"):
            return
        if not self.writes:
            self.the_node_is_started_again()
        for _ in range(3 * len(self.pushed) + 3):
            self.the_connection_is_lost()
            self.on_the_way += self.far.sent()
            while self.on_the_way:
                self.node_takes_a_run(False, 4)
            if not self.queue.pushes:
                break
        assert not self.queue.pushes
        self.what_is_told_is_true()
        assert all(push.done for push in self.pushed)


def _is_known(decision: New | Duplicate) -> bool:
    return isinstance(decision, Duplicate) and decision.offset is None


TestLossyNode = LossyNode.TestCase
LossyNode.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=25, deadline=None)


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
