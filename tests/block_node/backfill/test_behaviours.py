"""Claim: the behaviours B1 to B13 of facts/block_node.md §6.4 hold, as far as planning and choosing decide them.

Method: the pure parts alone; each test is named after its number. What ours does otherwise is said with its reason.
"""

from __future__ import annotations

import random

from block_node.backfill.fill_machine import FillMachine
from block_node.backfill.health_machine import Health
from block_node.backfill.plan import BlockGap, GapFacts, GapPatience, Kind, find_gaps, intended_range
from block_node.backfill.settings import BackfillSettings, SourceSetting, parse_source
from block_node.persist.ranges import BlockRanges
from tests.block_node.backfill.fill_world import FakeSource, FillWorld, good

LIMITS = BackfillSettings(fetch_batch_size=10)


def gaps(view: GapFacts, first: int = 0, last: int = -1) -> list[BlockGap]:
    return find_gaps(intended_range(first, last, view), view)


def health(*names: str) -> Health:
    """Each with the priority behind its name, and blocks 0 to 99."""
    made = Health([SourceSetting(name, (name,), int(name[-1])) for name in names], retry_delay_s=5, backoff_s_max=300)
    for name in names:
        made.claimed(name, BlockRanges([(0, 99)]), 0.01)
    return made


def world(kind: Kind, known: BlockRanges, *sources: FakeSource) -> FillWorld:
    return FillWorld(kind, random.Random(1), list(sources), known, LIMITS)


def source(name: str, *ranges: tuple[int, int], priority: int = 0) -> FakeSource:
    return FakeSource(name, BlockRanges(ranges), BlockRanges(ranges), priority=priority)


def chosen(of: Health, number: int, now_s: float) -> str | None:
    found = of.choose(number, now_s, {})
    return None if found is None else found.setting.name


def test_b1_gaps_in_history_an_empty_store_and_no_gap() -> None:
    stored = BlockRanges([(0, 3), (7, 9)])
    assert gaps(GapFacts(known=stored, next_block=10)) == [BlockGap(Kind.HISTORICAL, 4, 6)]
    assert gaps(GapFacts(known=BlockRanges(), next_block=0, sources_last=5, follows=True)) == [
        BlockGap(Kind.LIVE_TAIL, 0, 5)
    ]
    assert gaps(GapFacts(known=BlockRanges([(0, 9)]), next_block=10)) == []
    full = world(Kind.HISTORICAL, BlockRanges([(0, 9)]), source("a", (0, 9)))
    full.run(0, 9, scans=1)
    assert full.fetches == []


def test_b2_the_tail_is_fetched_where_it_is_wanted_and_split_at_the_chain() -> None:
    """The real node begins at a source's earliest block where no start is set. Here a chain that does not begin with
    block 0 is taken on trust, so that an operator must say so (`block_first`)."""
    stored = BlockRanges([(0, 3)])
    assert gaps(GapFacts(known=stored, next_block=4, sources_last=9, follows=True)) == [BlockGap(Kind.LIVE_TAIL, 4, 9)]
    assert gaps(GapFacts(known=stored, next_block=4, sources_last=9, follows=False)) == []
    empty = GapFacts(known=BlockRanges(), next_block=6, sources_last=9, follows=True)
    assert gaps(empty, first=2) == [BlockGap(Kind.HISTORICAL, 2, 5), BlockGap(Kind.LIVE_TAIL, 6, 9)]
    assert gaps(empty, first=2, last=7)[-1] == BlockGap(Kind.LIVE_TAIL, 6, 7)


def test_b3_the_next_priority_where_the_first_is_unavailable_and_nothing_without_sources() -> None:
    dead = FakeSource("a", BlockRanges([(0, 9)]), BlockRanges(), flaps=1.0)
    both = world(Kind.HISTORICAL, BlockRanges([(0, 0), (9, 9)]), dead, source("b", (0, 9), priority=1))
    both.run(0, 9, scans=1)
    assert {fetch.source for fetch in both.fetches} == {"b"}
    alone = FillMachine(Kind.HISTORICAL, LIMITS, health())
    alone.assign(1, 8)
    assert alone.next_fetch(0) is None
    assert not alone.busy
    assert len(alone.given_up) == 1


def test_b4_on_demand_to_the_newest_known_block() -> None:
    view = GapFacts(known=BlockRanges([(0, 3)]), next_block=4, newest_known=9)
    assert gaps(view) == [BlockGap(Kind.LIVE_TAIL, 4, 9)]
    assert gaps(GapFacts(known=BlockRanges(), next_block=0, newest_known=9)) == [BlockGap(Kind.LIVE_TAIL, 0, 9)]
    assert gaps(GapFacts(known=BlockRanges([(0, 9)]), next_block=10, newest_known=9)) == []


def test_b5_a_gap_over_two_sources_and_a_source_with_a_hole() -> None:
    holey, other = source("a", (0, 19), (40, 60)), source("b", (20, 39), priority=1)
    both = world(Kind.HISTORICAL, BlockRanges([(0, 0), (60, 60)]), holey, other)
    both.run(0, 60, scans=1)
    for fetch in both.fetches:
        assert all(number in both.sources[fetch.source].has for number in range(fetch.first, fetch.last + 1))
    assert set(both.asked.values()) == {1}


def test_b6_a_block_that_could_not_be_stored_is_fetched_again() -> None:
    made = world(Kind.LIVE_TAIL, BlockRanges([(0, 0)]), source("a", (0, 3)))
    made.scan(0, 3)
    while not made.persisting:
        made.step()
    lost = made.persisting.pop()
    made.machine.put_back(lost, "the disk is full")
    made.settle()
    made.run(0, 3, scans=2)
    assert made.asked[lost] == 2


def test_b7_a_gap_that_does_not_shrink_is_left_alone_longer_and_longer() -> None:
    """What retention has evicted is known, and so in no gap: `GapFacts.known` has it."""
    patience, gap = GapPatience(60, 300), BlockGap(Kind.HISTORICAL, 5, 9)
    tried = [now_s for now_s in range(0, 1_201, 60) if patience.due([gap], now_s)]
    assert tried == [0, 60, 120, 240, 480, 780, 1_080]
    assert patience.due([BlockGap(Kind.HISTORICAL, 5, 8)], 1_140)


def test_b8_a_gap_that_was_not_tried_is_not_left_alone() -> None:
    """While history's worker is busy its gaps wait, and those that were tried before are remembered."""
    patience, tried, new = GapPatience(60, 300), BlockGap(Kind.HISTORICAL, 5, 9), BlockGap(Kind.HISTORICAL, 20, 30)
    assert [patience.due([tried], now_s) for now_s in (0, 60, 120)] == [[tried]] * 3
    for now_s in (130, 140, 150):
        assert patience.due([tried, new], now_s, {Kind.HISTORICAL}) == []
    assert patience.due([tried, new], 160) == [new]
    assert patience.due([tried, new], 240) == [tried, new]


def test_b9_sources_are_left_alone_exponentially_and_counts_must_match() -> None:
    one = health("a0")
    delays, now_s = [], 1_000.0
    for _ in range(8):
        for _ in range(3):
            one.failed("a0", now_s, "broken")
        delays.append(one.statistics(now_s)[0].backoff_s)
        now_s += delays[-1]
    assert delays == [5, 10, 20, 40, 80, 160, 300, 300]
    assert one.statistics(now_s)[0].errors == 24
    one.succeeded("a0")
    assert one.statistics(2_000)[0].failures == 0
    short = FakeSource("a", BlockRanges([(0, 9)]), BlockRanges([(0, 4)]))
    made = world(Kind.HISTORICAL, BlockRanges([(0, 0), (9, 9)]), short, source("b", (0, 9), priority=1))
    made.run(0, 9, scans=1)
    assert made.health.sources["a"].errors
    assert {fetch.source for fetch in made.fetches} == {"a", "b"}


def test_b10_requests_are_clamped_and_a_late_block_is_waited_for() -> None:
    """By batch, gap and what the source has. A block that is handed on is never handed on again, only given up."""
    machine = FillMachine(
        Kind.LIVE_TAIL, BackfillSettings(fetch_batch_size=10, concurrent_fetches=1, max_retries=2), health("a0")
    )
    machine.assign(95, 120)
    fetch = machine.next_fetch(0)
    assert fetch is not None
    assert (fetch.first, fetch.last) == (95, 99)
    machine.grew(fetch.chunk_id, 5)
    machine.arrived(fetch.chunk_id, 95, good(95))
    delivery = machine.next_delivery(0)
    assert delivery is not None
    machine.verified(95, b"")
    assert [machine.overdue(now_s) for now_s in (9, 10, 15, 20)] == [[], [95], [], [95]]
    assert machine.next_delivery(20) is None
    assert machine.overdue(30) == [95]
    assert 95 not in machine.holes


def test_a_verified_block_that_is_never_stored_is_given_up() -> None:
    """Goal: a full disk does not have the same block fetched again and again, many times a second. Method: the block is
    verified each time, and never stored, until the next search for missing blocks has to find it."""
    limits = BackfillSettings(concurrent_fetches=1, max_retries=2)
    machine = FillMachine(Kind.LIVE_TAIL, limits, health("a0"))
    machine.assign(95, 95)
    fetches = 0
    while (fetch := machine.next_fetch(0)) is not None:
        fetches += 1
        machine.grew(fetch.chunk_id, 5)
        machine.arrived(fetch.chunk_id, 95, good(95))
        assert machine.next_delivery(0) is not None
        machine.verified(95, b"")
        machine.put_back(95, "the disk is full")
    assert fetches == 3
    assert machine.given_up == [((95, 95), "3 times in vain, at last: the disk is full")]


def test_b11_blocks_are_awaited_until_stored_in_whatever_way() -> None:
    """The real node ignores other sources; here a block that a publisher brought meanwhile need not come again."""
    machine = FillMachine(Kind.LIVE_TAIL, LIMITS, health("a0"))
    machine.assign(0, 1)
    assert not machine.stored(7)
    fetch = machine.next_fetch(0)
    assert fetch is not None
    for number in (0, 1):
        machine.grew(fetch.chunk_id, 5)
        machine.arrived(fetch.chunk_id, number, good(number))
    assert machine.next_delivery(0) is not None
    machine.verified(0, b"")
    assert machine.busy
    assert machine.stored(0)
    assert not machine.stored(1)
    assert not machine.busy


def test_a_block_that_is_being_stored_from_another_source_lets_the_next_one_follow() -> None:
    """Nothing is known of the fetched block itself: downwards, it does not say which root hash the next one has."""
    for kind, first, second in ((Kind.LIVE_TAIL, 0, 1), (Kind.HISTORICAL, 1, 0)):
        machine = FillMachine(kind, LIMITS, health("a0"))
        machine.assign(0, 1)
        fetch = machine.next_fetch(0)
        assert fetch is not None
        for number in (0, 1):
            machine.grew(fetch.chunk_id, 5)
            machine.arrived(fetch.chunk_id, number, good(number))
        machine.anchored(1, (b"root",))
        delivery = machine.next_delivery(0)
        assert delivery is not None
        assert delivery.block_number == first
        assert machine.next_delivery(0) is None
        machine.being_stored(first)
        delivery = machine.next_delivery(0)
        assert (None if delivery is None else delivery.block_number) == (second if kind is Kind.LIVE_TAIL else None)
        assert machine.stored(first)
        assert machine.wanted_anchors() == ([second] if kind is Kind.HISTORICAL else [])
        machine.check()


def test_b12_what_is_looked_after_is_a_set_and_ends_with_forget() -> None:
    """The real queue of gaps is bounded and loses gaps; a set of holes needs no bound, and loses none."""
    machine = FillMachine(Kind.HISTORICAL, LIMITS, health("a0"))
    for first in range(1, 90, 3):
        machine.assign(first, first)
        machine.assign(first, first)
    assert machine.holes.count() == 30
    fetch = machine.next_fetch(0)
    assert fetch is not None
    assert fetch.last == 88
    machine.forget()
    assert not machine.busy
    assert machine.next_fetch(0) is None


def test_b13_the_next_priority_while_the_best_is_left_alone() -> None:
    """The real node asks nobody then (an explicit test there), and stands still although others have the blocks."""
    three = health("a0", "b0", "c1")
    three.failed("a0", 0, "broken")
    assert chosen(three, 5, 1) == "b0"
    three.failed("b0", 1, "broken")
    assert chosen(three, 5, 2) == "c1"
    three.failed("c1", 2, "broken")
    assert chosen(three, 5, 3) is None
    assert chosen(three, 5, 5) == "a0"


def test_among_equals_the_one_that_answers_faster_is_asked() -> None:
    """As backfill of the reference block node chooses. A better priority counts for more."""
    three = health("a1", "b1", "c0")
    three.claimed("a1", BlockRanges([(0, 99)]), 0.5)
    three.claimed("c0", BlockRanges([(0, 9)]), 5.0)
    assert [chosen(three, number, 0) for number in (5, 50)] == ["c0", "b1"]
    three.claimed("b1", BlockRanges([(0, 99)]), 30.0)
    assert chosen(three, 50, 0) == "a1"


def test_sources_are_written_as_they_are_reached() -> None:
    assert parse_source("10.0.0.1:4000") == SourceSetting("10.0.0.1:4000", ("10.0.0.1:4000",), 0)
    through = parse_source("gate:4000 > inner:4001@2")
    assert (through.hops, through.priority) == (("gate:4000", "inner:4001"), 2)
