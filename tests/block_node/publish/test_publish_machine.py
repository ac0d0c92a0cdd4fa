"""Goal: all that is being published has one owner, whose invariant holds whatever publishers, plugins and clock do.

Method: events in random orders, effects carried out as the runner does, against a model that checks what plugins get.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from block_node.events import (
    BlockBegun,
    BlockDropped,
    BlockEnded,
    BlockOrigin,
    ItemsReceived,
    NodeFailure,
    PersistedNotification,
    VerificationNotification,
)
from block_node.protocol import Acknowledgement, EndStream, Piece, PublisherEndCode, ResendBlock
from block_node.publish.block_machine import HeaderDecision, PublishLimits, Stage
from block_node.publish.publish_machine import Effect, EndSession, PublishMachine, SendResponse
from block_node.publish.session_machine import PublisherState, SessionState
from tests.support.examples import examples


class Plugins:
    """What the plugins and the publishers see of a machine, checked as it comes; and what is durable.

    Invariant: the plugins have items of one block at most, as `block_node.events` says.
    """

    def __init__(self, machine: PublishMachine) -> None:
        self.machine = machine
        self.with_plugins: tuple[int, int] | None = None
        self.verifying: list[tuple[int, int]] = []
        self.storing: list[int] = []
        self.durable: set[int] = set()
        self.acknowledged = -1
        self.open: set[int] = set()
        self.failing = False

    def carry_out(self) -> None:
        """All effects, and all events that can be forwarded."""
        while self.machine.effects or self.machine.forward_due:
            if self.machine.effects:
                self._take(self.machine.effects.popleft())
            elif (block := self.machine.blocks.find_to_forward()) is not None:
                self._take(self.machine.blocks.forward(block, 0.0))
            else:
                self.machine.forward_due = False
        self.machine.check()

    def _take(self, effect: Effect) -> None:
        if isinstance(effect, BlockBegun):
            assert self.with_plugins is None, "never two blocks at once"
            self.with_plugins = effect.block_number, effect.attempt
        elif isinstance(effect, ItemsReceived | BlockEnded):
            assert self.with_plugins == (effect.block_number, effect.attempt)
            if isinstance(effect, BlockEnded):
                self.verifying.append(self.with_plugins)
                self.with_plugins = None
        elif isinstance(effect, BlockDropped):
            dropped = (effect.block_number, effect.attempt)
            if self.with_plugins == dropped:
                self.with_plugins = None
            else:
                self.verifying.remove(dropped)
        elif isinstance(effect, NodeFailure):
            self.with_plugins = None
            self.verifying.clear()
            self.machine.node_failed(effect, 0.0)
        elif isinstance(effect, SendResponse):
            assert effect.publisher_id in self.open, "nobody is told anything after the end"
            if isinstance(effect.response, Acknowledgement):
                assert self.acknowledged < effect.response.block_number or len(self.open) > 1
                self.acknowledged = effect.response.block_number
                assert set(range(self.acknowledged + 1)) <= self.durable, "never past a hole"
        elif isinstance(effect, EndSession):
            self.open.remove(effect.publisher_id)


STEPS = [
    "header",
    "items",
    "end",
    "leave",
    "pass",
    "fail",
    "store",
    "lose",
    "backfill",
    "late",
    "hold",
    "node",
    "begin",
]


@example([("backfill", 0, 1), ("store", 0, 0), ("header", 0, 0), ("end", 0, 0), ("pass", 0, 0), ("store", 0, 0)])
@settings(max_examples=examples(150))
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2), st.integers(0, 3)), max_size=80))
def test_every_order_of_events_keeps_the_invariant(steps: list[tuple[str, int, int]]) -> None:
    limits = PublishLimits(queued_bytes_max=1_500, stall_blocks_max=2, block_s_max=1.0)
    machine = PublishMachine(limits, last_block=None, first_block=0, now_s=0.0)
    plugins, publishers, opened, now_s = Plugins(machine), dict[int, PublisherState](), 0, 0.0
    for what, who, number in steps:
        if who not in publishers or publishers[who].publisher_id not in plugins.open:
            publishers[who] = PublisherState(opened, False, now_s)
            plugins.open.add(opened)
            machine.join(publishers[who])
            opened += 1
        publisher = publishers[who]
        session = publisher.session
        if what == "header":
            machine.header(publisher, number, [b"header"], now_s)
        elif what == "items" and session.state is not SessionState.IDLE:
            machine.items(publisher, [b"item"], Piece.WHOLE, now_s)
        elif what == "end":
            machine.block_end(publisher, number if session.block_number is None else session.block_number, now_s)
        elif what == "leave":
            machine.stream_end(publisher, EndStream(0, PublisherEndCode.TOO_FAR_BEHIND, None, number), now_s)
        elif what in ("pass", "fail") and plugins.verifying:
            block, attempt = plugins.verifying.pop(0)
            if what == "pass":
                plugins.storing.append(block)
            machine.verified(
                VerificationNotification(block, attempt, BlockOrigin.PUBLISHER, what == "pass", bytes((block,))), now_s
            )
        elif what in ("store", "lose") and plugins.storing:
            block = plugins.storing.pop(0)
            if what == "store":
                plugins.durable.add(block)
            machine.persisted(
                PersistedNotification(block, what == "store", BlockOrigin.BACKFILL, root=bytes((block,))), now_s
            )
        elif what == "backfill" and number not in plugins.durable:
            plugins.storing.append(number)
            machine.verified(VerificationNotification(number, 0, BlockOrigin.BACKFILL, True), now_s)
        elif what == "late":
            now_s += 40.0
            machine.tick(now_s, full_at=None)
        elif what == "hold":
            publisher.is_held = not publisher.is_held
        elif what == "node":
            machine.node_failed(NodeFailure("as the test wants it"), now_s)
            plugins.with_plugins = None
            plugins.verifying.clear()
        elif what == "go_on":
            machine.go_on(now_s)
        plugins.carry_out()
    for publisher in publishers.values():
        machine.leave(publisher, now_s)
    plugins.carry_out()
    assert plugins.open == set()
    assert all(block.stage is not Stage.RECEIVING for block in machine.blocks.all())


def test_a_backfilled_block_that_is_not_stored_takes_back_the_next_one_too() -> None:
    """The plugins had begun the next block as its continuation; that attempt could never pass."""
    machine = PublishMachine(PublishLimits(), last_block=4, first_block=0, now_s=0.0)
    plugins, publisher = Plugins(machine), PublisherState(0, False, 0.0)
    plugins.open.add(0)
    machine.join(publisher)
    machine.verified(VerificationNotification(5, 0, BlockOrigin.BACKFILL, True), 0.0)
    machine.header(publisher, 6, [b"header"], 0.0)
    plugins.carry_out()
    assert plugins.with_plugins == (6, 1)
    machine.persisted(PersistedNotification(5, False, BlockOrigin.BACKFILL, "no room"), 0.0)
    assert SendResponse(0, ResendBlock(5)) in machine.effects
    plugins.carry_out()
    assert plugins.with_plugins is None
    machine.header(publisher, 5, [b"header"], 0.0)
    plugins.carry_out()
    assert plugins.with_plugins == (5, 2)


@pytest.mark.parametrize(
    ("offered", "decision", "cursor"),
    [
        pytest.param(5, HeaderDecision.ACCEPT, 6, id="accepted: it goes on with the next one"),
        pytest.param(2, HeaderDecision.DUPLICATE, 5, id="stored: it goes on after the last stored one"),
        pytest.param(4, HeaderDecision.DUPLICATE, 5, id="the last stored one"),
        pytest.param(9, HeaderDecision.BEHIND, 5, id="too far ahead: it goes back to the missing one"),
    ],
)
def test_the_answer_says_which_block_the_publisher_sends_next(
    offered: int, decision: HeaderDecision, cursor: int
) -> None:
    """Goal: the node knows whom to ask for a missing block. Method: a node with blocks up to 4 gets one header."""
    machine = PublishMachine(PublishLimits(), last_block=4, first_block=0, now_s=0.0)
    publisher = PublisherState(0, False, 0.0)
    machine.join(publisher)
    assert machine.offer(publisher, offered, 0.0) is decision
    assert publisher.cursor == cursor
    # A publisher is asked for a block that it has passed.
    assert [publisher.is_to_be_asked(each, -1.0) for each in (cursor - 1, cursor)] == [True, False]


def test_a_block_of_another_publisher_is_skipped() -> None:
    machine = PublishMachine(PublishLimits(), last_block=4, first_block=0, now_s=0.0)
    first, second = PublisherState(0, False, 0.0), PublisherState(1, False, 0.0)
    machine.join(first)
    machine.join(second)
    assert machine.offer(first, 5, 0.0) is HeaderDecision.ACCEPT
    assert machine.offer(second, 5, 0.0) is HeaderDecision.SKIP
    assert second.cursor == 6


def test_every_acknowledgement_is_counted() -> None:
    machine = PublishMachine(PublishLimits(), last_block=None, first_block=0, now_s=0.0)
    for number in range(3):
        machine.verified(VerificationNotification(number, 0, BlockOrigin.BACKFILL, True), 0.0)
        machine.persisted(PersistedNotification(number, True, BlockOrigin.BACKFILL, root=b"r"), 0.0)
    statistics = machine.statistics()
    assert (statistics.acknowledgements, statistics.last_block) == (3, 2)


def test_a_long_backfill_is_no_failure_of_the_node() -> None:
    """Claim: a node that is catching up keeps its publishers. Method: at each tick, the next block is verified and not
    stored yet, as with a disk that is slower than verification."""
    limits = PublishLimits()
    machine = PublishMachine(limits, last_block=None, first_block=0, now_s=0.0)
    for number in range(2 * int(limits.processing_s_max / limits.tick_s)):
        machine.verified(VerificationNotification(number, 0, BlockOrigin.BACKFILL, True), 0.0)
        if number:
            machine.persisted(PersistedNotification(number - 1, True, BlockOrigin.BACKFILL, root=b"r"), 0.0)
        assert machine.blocks.awaited == number
        machine.tick(number * limits.tick_s, full_at=None)
    assert not any(isinstance(effect, NodeFailure) for effect in machine.effects)
