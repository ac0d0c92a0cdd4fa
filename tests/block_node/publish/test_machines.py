"""Goal: the pure parts of publishing do what they say, in every state and for every input.

Method: the decision against the specification's words, over all small views; tables and machines against plain models.
"""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from block_node.events import EVENT_OVERHEAD_BYTES, ITEM_OVERHEAD_BYTES, CatchUpStalled, ItemsReceived, NodeFailure
from block_node.protocol import Piece
from block_node.publish.block_machine import TRANSITIONS as BLOCK_TABLE
from block_node.publish.block_machine import (
    BlockChange,
    Blocks,
    HeaderDecision,
    PublishLimits,
    PublishView,
    Stage,
    Then,
    Watermark,
    decide,
)
from block_node.publish.catch_up_machine import CONTACTS_MAX, CatchUp, PluginWatch
from block_node.publish.session_machine import (
    TRANSITIONS,
    Action,
    Input,
    MessageMissing,
    PublisherState,
    SessionMachine,
    SessionState,
)

BLOCKS = range(6)


def views() -> list[PublishView]:
    """Every node that has blocks up to some number and any of the next ones on their way."""
    found = []
    for last, taken, crowded in product((None, 0, 1), product((False, True), repeat=4), (False, True)):
        next_durable = 0 if last is None else last + 1
        numbers = {next_durable + offset for offset, is_taken in enumerate(taken) if is_taken}
        found.append(PublishView(last, next_durable, numbers, crowded))
    return found


@pytest.mark.parametrize("view", views(), ids=str)
def test_the_decision_is_the_specifications(view: PublishView) -> None:
    """ "Base Protocol": the next block is taken, a lower one is a duplicate, a higher one is behind; and what is on its
    way is skipped, and a hole is as welcome as the next block."""
    for offered in BLOCKS:
        verdict = decide(offered, view)
        if view.last_block is not None and offered <= view.last_block:
            assert verdict is HeaderDecision.DUPLICATE
        elif offered in view.taken:
            assert verdict is HeaderDecision.SKIP
        elif offered == view.wanted:
            assert verdict is HeaderDecision.ACCEPT, (
                "the lowest block that is missing is welcome whatever else there is"
            )
        elif offered > max(view.taken, default=view.next_durable - 1) + 1:
            assert verdict is HeaderDecision.BEHIND
        else:
            assert verdict is (HeaderDecision.BEHIND if view.crowded else HeaderDecision.ACCEPT)


@pytest.mark.parametrize(
    ("offered", "taken", "verdict"),
    [
        (5, (), HeaderDecision.ACCEPT),
        (3, (), HeaderDecision.ACCEPT),
        (6, (), HeaderDecision.BEHIND),
        (3, (5,), HeaderDecision.SKIP),
    ],
)
def test_a_chain_may_begin_below_its_first_block_as_long_as_it_has_not(
    offered: int, taken: tuple[int, ...], verdict: HeaderDecision
) -> None:
    assert decide(offered, PublishView(None, 5, taken)) is verdict


def test_the_session_table_has_every_input_that_a_publisher_can_cause() -> None:
    from_outside = (Input.HEADER, Input.ITEMS, Input.BLOCK_END, Input.STREAM_END, Input.FAULT)
    assert {(state, happened) for state in SessionState for happened in from_outside} <= TRANSITIONS.keys()
    for happened in (Input.HEADER_AGAIN, Input.BLOCK_END_FOREIGN, Input.TAKEN_AWAY):
        assert [state for state in SessionState if (state, happened) in TRANSITIONS] == [SessionState.RECEIVING]
    for (state, happened), step in TRANSITIONS.items():
        if happened in (Input.STREAM_END, Input.FAULT) or state is SessionState.ENDED:
            assert step.state is SessionState.ENDED
        if step.action in (Action.ADD, Action.COMPLETE, Action.COMPLETE_AND_NOTE, Action.BEGIN_ANEW):
            assert state is SessionState.RECEIVING


@example([("header", 3), ("items", 0), ("end", 3)])
@given(st.lists(st.tuples(st.sampled_from(["header", "items", "end", "taken", "verdict"]), st.integers(0, 3))))
def test_a_session_receives_a_block_exactly_between_its_header_and_its_end(steps: list[tuple[str, int]]) -> None:
    machine, model = SessionMachine(), None
    for what, number in steps:
        if what == "header":
            action = machine.header(number)
            assert (action is Action.BEGIN_ANEW) == (model == number)
            if action is not Action.BEGIN_ANEW:
                accepted = number != 3
                machine.take(Input.ACCEPTED if accepted else Input.REFUSED, number)
                model = number if accepted else None
        elif what == "items":
            expected = {SessionState.RECEIVING: Action.ADD, SessionState.IDLE: Action.REFUSE_REQUEST}
            assert machine.take(Input.ITEMS) is expected.get(state := machine.state, Action.DISCARD) or state
            if machine.state is SessionState.ENDED:
                return
        elif what == "end":
            ends = Action.COMPLETE if number == model else Action.COMPLETE_AND_NOTE
            expected = {SessionState.RECEIVING: ends, SessionState.IDLE: Action.NOTE}
            state = machine.state
            assert machine.block_end(number) is expected.get(state, Action.DISCARD)
            model = None
        elif what == "taken" and model is not None:
            machine.take(Input.TAKEN_AWAY)
            model = None
        assert machine.block_number == model
        assert (machine.state is SessionState.RECEIVING) == (model is not None)


def test_messages_are_taken_in_order_and_a_missing_one_is_noticed() -> None:
    machine = SessionMachine()
    assert [machine.in_order(sequence) for sequence in (0, 0, 1, 0, 2)] == [True, False, True, False, True]
    with pytest.raises(MessageMissing):
        machine.in_order(4)


@given(st.lists(st.integers(0, 12), max_size=40), st.one_of(st.none(), st.integers(0, 3)), st.integers(0, 5))
def test_the_watermark_is_the_end_of_what_is_durable_without_a_hole(
    durable: list[int], last: int | None, first: int
) -> None:
    mark = Watermark(last, first)
    known = set(range(mark.next_durable))
    for number in durable:
        if number >= mark.next_durable:
            before = mark.next_durable
            moved = mark.durable(number)
            known.add(number)
            expected = next(number for number in range(100) if number not in known)
            assert (moved, mark.next_durable) == (expected != before, expected)
            if moved:
                assert mark.last_block == expected - 1
            mark.forget_begin()
            mark.check()


def test_a_chain_that_did_not_begin_goes_back_to_where_it_should() -> None:
    mark = Watermark(None, 5)
    mark.begin_at(2)
    assert mark.next_durable == 2
    mark.forget_begin()
    assert mark.next_durable == 5
    mark.begin_at(2)
    assert mark.durable(2)
    mark.forget_begin()
    assert (mark.last_block, mark.next_durable) == (2, 3)
    with pytest.raises(AssertionError):
        mark.begin_at(1)


LIVE = (Stage.RECEIVING, Stage.COMPLETE, Stage.VERIFYING, Stage.VERIFIED)
GONE = (Stage.MISSING, Stage.OVER)


def test_the_block_table_has_every_change_and_drops_what_the_plugins_would_keep() -> None:
    anytime = (BlockChange.STORED, BlockChange.BACKFILLED, BlockChange.PUBLISHER_LEFT, BlockChange.NODE_FAILED)
    assert {(stage, change) for stage in LIVE for change in anytime} <= BLOCK_TABLE.keys()
    assert {change for _, change in BLOCK_TABLE} == set(BlockChange)
    assert [change for stage, change in BLOCK_TABLE if stage is Stage.MISSING] == [BlockChange.ACCEPTED]
    assert Stage.OVER not in {stage for stage, _ in BLOCK_TABLE}
    told_by_plugins = (BlockChange.REFUSED, BlockChange.SUPERSEDED, BlockChange.NODE_FAILED)
    for (stage, change), step in BLOCK_TABLE.items():
        leaves = stage in LIVE and step.stage in GONE
        kept_by_plugins = stage is not Stage.VERIFIED and change not in told_by_plugins
        assert (Then.DROP in step.then) == (leaves and kept_by_plugins) or change is BlockChange.BEGUN_ANEW
        assert Then.SKIP not in step.then or Then.DISCARD in step.then
        if Then.DISCARD in step.then:
            assert (stage, leaves) == (Stage.RECEIVING, True)
        if Then.ORPHAN in step.then:
            assert step.stage is stage


@given(st.lists(st.tuples(st.sampled_from(["begin", "add", "forward", "leave"]), st.integers(0, 4)), max_size=60))
def test_blocks_in_flight_are_counted_in_and_out(steps: list[tuple[str, int]]) -> None:
    blocks, model = Blocks(PublishLimits(), Watermark(None, 0)), dict[int, list[bytes]]()
    publisher = PublisherState(1, False, 0.0)
    for what, number in steps:
        block = blocks.get(number)
        assert (block is None) == (number not in model)
        if what == "begin" and block is None:
            blocks.begin(number, publisher, 10.0)
            model[number] = []
        elif what == "add" and block is not None:
            item = bytes(number + 7)
            blocks.add(block, [item], Piece.WHOLE)
            model[number].append(item)
        elif what == "forward":
            found = blocks.find_to_forward()
            event = blocks.forward(found, 10.0) if found is not None else None
            if isinstance(event, ItemsReceived):
                assert event.block_number == 0
                assert event.items == [model[0].pop(0)]
        elif what == "leave" and block is not None:
            blocks.step(block, BlockChange.PUBLISHER_LEFT)
            del model[number]
        blocks.check()
        assert [each.number for each in blocks.all()] == sorted(model)
        waiting = [item for items in model.values() for item in items]
        overhead_bytes = (ITEM_OVERHEAD_BYTES + EVENT_OVERHEAD_BYTES) * len(waiting)
        assert blocks.queued_bytes == sum(map(len, waiting)) + overhead_bytes
    statistics = blocks.statistics()
    assert statistics.begun - statistics.over == statistics.blocks == len(model)


def test_late_and_stalled_blocks() -> None:
    blocks = Blocks(PublishLimits(block_s_max=10.0), Watermark(None, 0))
    for number, begun_s in ((0, 0.0), (1, 10.0), (2, 20.0), (5, -5.0)):
        blocks.begin(number, PublisherState(number, False, 0.0), begun_s)
    blocks.step(blocks[5], BlockChange.ENDED)
    assert [block.number for block in blocks.late(20.0)] == [0, 1], "a complete block waits for those before it"
    assert [block.number for block in blocks.stalled(2)] == [0, 1]
    assert [block.number for block in blocks.stalled(1)] == [0]
    assert list(blocks.stalled(0)) == []
    blocks[0].publisher.is_held = True  # type: ignore[union-attr]
    blocks.extend_held(100.0)
    assert [block.number for block in blocks.late(20.0)] == [1], "who is not read from is not late"


def offers(catch_up: CatchUp, *offered: tuple[int, int | None]) -> list[CatchUpStalled | None]:
    return [catch_up.offered(block, last, 10.0 * place) for place, (block, last) in enumerate(offered)]


def test_a_target_that_comes_closer_is_fine() -> None:
    assert offers(CatchUp(), *((20, last) for last in range(10))) == [None] * 10


@pytest.mark.parametrize("grows", [0, 1])
def test_a_target_that_does_not_come_closer_is_reported_once(grows: int) -> None:
    """Also where the node moves, and the network as fast."""
    catch_up = CatchUp()
    reports = offers(catch_up, *((20 + grows * step, grows * step) for step in range(8)))
    stalled = CatchUpStalled(20 + grows * CONTACTS_MAX, grows * CONTACTS_MAX)
    assert reports == [None] * CONTACTS_MAX + [stalled] + [None] * (7 - CONTACTS_MAX)
    assert catch_up.stalled
    assert catch_up.offered(30, 29, 1_000.0) is None
    assert not catch_up.stalled
    catch_up.reached(30)
    assert catch_up.target is None


def test_the_highest_offer_is_remembered_and_offers_of_one_moment_are_one() -> None:
    catch_up = CatchUp()
    assert [catch_up.offered(block, 1, 5.0) for block in (9, 7, 9, 8, 9, 9, 9)] == [None] * 7
    assert catch_up.target == 9
    catch_up.reached(8)
    assert catch_up.target == 9


@pytest.mark.parametrize("waits_for", ["full_at", "awaited_block"])
def test_a_plugin_that_goes_on_is_no_failure_however_much_it_has_to_do(waits_for: str) -> None:
    """Claim: only a plugin that is still at the same event or block has failed. Method: at every check some plugin is
    full, or some block is to be stored; at first another one each time, then always the same."""
    watch = PluginWatch(60.0, 0.0)
    idle: dict[str, int | None] = {"full_at": None, "awaited_block": None}
    checks = [watch.check(number * 0.5, **{**idle, waits_for: number}) for number in range(200)]
    assert checks == [None] * 200
    checks = [watch.check(100.0 + number * 0.5, **{**idle, waits_for: 200}) for number in range(200)]
    assert [number for number, failure in enumerate(checks) if failure is not None] == [120], "60 s after the first"


def test_a_plugin_that_hangs_is_told_beside_one_that_goes_on() -> None:
    """Each of the two has its own time."""
    hung, unstored = PluginWatch(60.0, 0.0), PluginWatch(60.0, 0.0)
    for number in range(120):
        assert hung.check(number * 0.5, full_at=7, awaited_block=number) is None
        assert unstored.check(number * 0.5, full_at=number, awaited_block=7) is None
    assert hung.check(60.0, full_at=7, awaited_block=120) == NodeFailure("the plugins took nothing for 60 s")
    assert unstored.check(60.0, full_at=120, awaited_block=7) == NodeFailure("block 7 was not stored in 60 s", True, 7)
