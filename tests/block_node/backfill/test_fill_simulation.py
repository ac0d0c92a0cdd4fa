"""Claim: holes shrink to nothing while one honest source has the blocks, whatever the others do.

Method: the machines against sources that lie, are slow, die and flap, drawn from a seed; time is the test's. The world
(`fill_world`) refuses what must not be: a block asked for twice at a time, a block handed on that is not tied to the
chain, one before its turn.
"""

from __future__ import annotations

import random
import sys
from types import FrameType

import pytest

from block_node.backfill.fill_machine import FetchedRange
from block_node.backfill.plan import Kind
from block_node.backfill.settings import BackfillSettings
from block_node.persist.ranges import BlockRanges
from tests.block_node.backfill.fill_world import BLOCK_BYTES, Broken, FakeSource, FillWorld

SEEDS = 80


def drawn_world(seed: int, kind: Kind) -> tuple[FillWorld, int]:
    rng = random.Random(seed)
    last = rng.randint(1, 300)
    everything = BlockRanges([(0, last)])
    known = BlockRanges([(0, 0), (last, last)]) if kind is Kind.HISTORICAL else BlockRanges([(0, 0)])
    if kind is Kind.HISTORICAL:
        for _ in range(rng.randint(0, 6)):
            first = rng.randint(0, last)
            known.add(first, min(last, first + rng.randint(0, 20)))
    sources = [FakeSource("honest", everything.copy(), everything.copy(), priority=rng.randint(0, 2))]
    for number in range(rng.randint(0, 4)):
        has = everything.copy()
        for _ in range(rng.randint(0, 3)):
            hole = rng.randint(0, last)
            has.discard(hole, hole + rng.randint(0, 100))
        sources.append(
            FakeSource(
                f"other{number}",
                everything.copy() if rng.random() < 0.5 else has.copy(),
                has,
                forges=rng.choice((0.0, 0.05, 1.0)),
                dies=rng.choice((0.0, 0.5, 1.0)),
                flaps=rng.choice((0.0, 0.3, 1.0)),
                steps=rng.choice((1, 5, 50, 10_000)),
                priority=rng.randint(0, 2),
            )
        )
    limits = BackfillSettings(
        max_incoming_buffer_size=rng.choice((2_000, 100_000)),
        concurrent_fetches=rng.randint(1, 5),
        fetch_batch_size=rng.choice((1, 7, 100)),
        pending_blocks=rng.randint(1, 8),
    )
    return FillWorld(kind, rng, sources, known, limits), last


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("part", range(2))
def test_holes_shrink_to_nothing(kind: Kind, part: int) -> None:
    refusals = 0
    for seed in range(part, SEEDS, 2):
        world, last = drawn_world(seed, kind)
        try:
            world.run(0, last, scans=60)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {kind}: {error}") from error
        assert set(world.stored.values()) <= {1}, f"seed {seed}: stored twice"
        assert world.machine.held_bytes == 0
        refusals += world.refusals
    assert refusals, "no source has lied"


def test_a_block_is_asked_for_once_where_nothing_goes_wrong() -> None:
    """Two good sources share a gap, and no block is fetched twice."""
    known = BlockRanges([(0, 0), (500, 500)])
    everything = BlockRanges([(0, 500)])
    sources = [FakeSource(name, everything.copy(), everything.copy(), steps=5) for name in "ab"]
    world = FillWorld(Kind.HISTORICAL, random.Random(1), sources, known, BackfillSettings(fetch_batch_size=20))
    world.run(0, 500, scans=1)
    assert set(world.asked.values()) == {1}
    assert {fetch.source for fetch in world.fetches} == {"a", "b"}


@pytest.mark.parametrize("kind", Kind)
def test_memory_is_bounded(kind: Kind) -> None:
    """A buffer of some blocks is enough for any gap, with requests that are made smaller."""
    known = BlockRanges([(0, 0), (200, 200)]) if kind is Kind.HISTORICAL else BlockRanges([(0, 0)])
    everything = BlockRanges([(0, 200)])
    sources = [FakeSource("a", everything.copy(), everything.copy())]
    limits = BackfillSettings(max_incoming_buffer_size=8 * BLOCK_BYTES, concurrent_fetches=3)
    world = FillWorld(kind, random.Random(1), sources, known, limits)
    most = 0
    world.scan(0, 200)
    while world.machine.busy:
        world.step()
        most = max(most, world.machine.held_bytes)
    assert not world.known.missing(0, 200)
    assert 0 < most <= limits.max_incoming_buffer_size + 2 * BLOCK_BYTES


@pytest.mark.parametrize("kind", Kind)
def test_what_still_comes_of_a_request_that_was_too_large_is_not_used(kind: Kind) -> None:
    """It would be there twice, and its source be blamed: what was asked for again is in another request."""
    known = BlockRanges([(0, 0), (200, 200)]) if kind is Kind.HISTORICAL else BlockRanges([(0, 0)])
    everything = BlockRanges([(0, 200)])
    limits = BackfillSettings(max_incoming_buffer_size=8 * BLOCK_BYTES, concurrent_fetches=1)
    source = FakeSource("a", everything.copy(), everything.copy())
    machine = FillWorld(kind, random.Random(1), [source], known, limits).machine
    machine.assign(1, 199)
    machine._health.claimed("a", everything, 0.0)
    fetch = machine.next_fetch(0.0)
    assert fetch is not None
    for number in (fetch.first, fetch.first + 1):
        machine.grew(fetch.chunk_id, BLOCK_BYTES)
        machine.arrived(fetch.chunk_id, number, [b""])
    assert machine.find_awaited(fetch.chunk_id) is not None
    assert not machine.grew(fetch.chunk_id, limits.max_incoming_buffer_size)
    machine.overflowed(fetch.chunk_id)
    assert machine.find_awaited(fetch.chunk_id) is None
    machine.failed(fetch.chunk_id, 1.0, "it ended", lied=True)
    assert machine._health.sources["a"].errors == 0
    machine.check()


def test_thousands_of_gaps_that_no_source_has_are_given_up_in_little_work() -> None:
    """Goal: a node with many gaps whose sources are all away answers others meanwhile: the work grows with the number
    of gaps, not with its square. Method: the calls of Python are counted, not the time."""
    machine = FillWorld(Kind.HISTORICAL, random.Random(1), [], BlockRanges(), BackfillSettings()).machine
    for number in range(1_000):
        machine.assign(2 * number, 2 * number)
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        assert machine.next_fetch(0.0) is None
    finally:
        sys.setprofile(None)
    assert not machine.busy
    assert len(machine.given_up) == 1_000
    assert calls < 100_000


def test_a_block_that_is_given_up_has_all_its_attempts_again() -> None:
    """Claim: the next search begins with as many attempts for each block of a gap as the first one. Method: block 20
    fails twice, then the gap is given up for the sake of block 10; then block 20 fails until it is given up."""
    known, everything = BlockRanges([(0, 9)]), BlockRanges([(0, 29)])
    limits = BackfillSettings(concurrent_fetches=2, fetch_batch_size=10, max_retries=3)
    source = FakeSource("a", everything.copy(), everything.copy())
    machine = FillWorld(Kind.LIVE_TAIL, random.Random(1), [source], known, limits).machine
    machine._health.claimed("a", everything, 0.0)
    now_s = 0.0

    def fail(number: int) -> None:
        nonlocal now_s
        now_s += 1_000.0
        while (fetch := machine.next_fetch(now_s)) is not None:
            fetches[fetch.first] = fetch
        machine.failed(fetches[number].chunk_id, now_s, "it ended")

    fetches: dict[int, FetchedRange] = {}
    machine.assign(10, 29)
    for number in (20, 20, 10, 10, 10, 10):
        fail(number)
    assert [gone.first for gone, _ in machine.given_up] == [10]
    machine.assign(10, 29)
    for _ in range(3):
        fail(20)
    assert machine.busy
    assert len(machine.given_up) == 1


def test_the_world_sees_a_machine_that_hands_on_untied_blocks() -> None:
    """A canary: without its anchors the machine is caught."""
    known = BlockRanges([(0, 0), (9, 9)])
    everything = BlockRanges([(0, 9)])
    sources = [FakeSource("a", everything.copy(), everything.copy())]
    world = FillWorld(Kind.HISTORICAL, random.Random(1), sources, known, BackfillSettings())
    anchored = world.machine.anchored
    world.machine.anchored = lambda number, roots: anchored(number, ())  # type: ignore[method-assign]
    with pytest.raises(Broken, match="as its roots"):
        world.run(0, 9, scans=2)


def test_the_world_sees_a_machine_that_asks_twice() -> None:
    """A canary: a machine that forgets what is under way is caught."""
    known = BlockRanges([(0, 0), (9, 9)])
    everything = BlockRanges([(0, 9)])
    sources = [FakeSource("a", everything.copy(), everything.copy(), steps=9)]
    world = FillWorld(Kind.HISTORICAL, random.Random(1), sources, known, BackfillSettings())
    world.scan(0, 9)
    world.step()
    world.machine._open.add(1, 8)
    with pytest.raises(AssertionError):
        world.step()
