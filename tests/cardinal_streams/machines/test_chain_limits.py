"""The exact threshold, finality, reverts, what waits and what is dropped."""

from __future__ import annotations

import pytest

from cardinal_streams.limits import ChainLimits
from cardinal_streams.machines.chain_order_machine import ChainOrder
from cardinal_streams.machines.events import (
    ChainEvent,
    ChainUpdate,
    Dropped,
    DropReason,
    NeedsReorg,
    Revert,
    Start,
)
from cardinal_streams.payload import CompleteBatch
from tests.cardinal_streams.helpers import block, hash_of, names


def start() -> Start:
    return Start(hash_of("m0"), 0, 0)


def main(count: int, first: int = 1) -> list[CompleteBatch]:
    """Blocks m1, m2, … on m0; weights are ten times the numbers."""
    return [block(f"m{n}", f"m{n - 1}", n, 10 * n) for n in range(first, first + count)]


def feed(machine: ChainOrder, *batches: CompleteBatch) -> list[ChainEvent]:
    events: list[ChainEvent] = []
    for batch in batches:
        events += machine.receive(batch)
        machine.check()
    return events


def updates(events: list[ChainEvent]) -> list[tuple[list[str], list[str]]]:
    return [(names(event.removed), names(event.added)) for event in events if isinstance(event, ChainUpdate)]


@pytest.mark.parametrize("threshold", [0, 1, 2, 3, 8])
@pytest.mark.parametrize("depth", [1, 2, 3, 4, 8, 9])
@pytest.mark.parametrize("replayed", [False, True])
def test_a_reorg_of_the_threshold_is_done_and_one_deeper_is_not(threshold: int, depth: int, replayed: bool) -> None:
    machine = ChainOrder(start(), threshold)
    if replayed:
        feed(machine, block("m0", "before", 0, 0))
    feed(machine, *main(10))
    events = feed(machine, block("fork", f"m{10 - depth}", 11 - depth, 1_000))
    if depth <= threshold:
        assert updates(events) == [([f"m{n}" for n in range(11 - depth, 11)], ["fork"])]
        assert machine.statistics().reorg_depth_max == depth
    else:
        assert events == [NeedsReorg(hash_of("fork"), 11 - depth, 1_000)]
        assert machine.head == Start(hash_of("m10"), 10, 100)


def test_a_final_block_stays_final_when_the_chain_gets_shorter() -> None:
    machine = ChainOrder(start(), 3)
    feed(machine, *main(10))
    assert machine.final_number == 7
    assert updates(feed(machine, block("short", "m7", 8, 101))) == [(["m8", "m9", "m10"], ["short"])]
    assert machine.final_number == 7
    assert updates(feed(machine, block("below", "m6", 7, 102))) == []
    assert updates(feed(machine, block("again", "m7", 8, 103))) == [(["short"], ["again"])]


def test_equal_weight_never_reorganises() -> None:
    machine = ChainOrder(start(), 8)
    feed(machine, *main(3))
    assert feed(machine, block("c1", "m0", 1, 10), block("c2", "c1", 2, 30)) == []
    assert machine.head == Start(hash_of("m3"), 3, 30)


def test_among_equals_that_waited_the_first_that_came_is_added() -> None:
    machine = ChainOrder(start(), 8)
    feed(machine, block("c", "m1", 2, 20), block("d", "m1", 2, 20), block("e", "m1", 2, 20))
    assert updates(feed(machine, *main(1))) == [([], ["m1", "c"])]


def test_a_lighter_child_of_the_head_is_added_and_does_not_make_the_chain_lighter() -> None:
    machine = ChainOrder(start(), 8)
    assert updates(feed(machine, block("b", "m0", 1, 100), block("c", "b", 2, 5))) == [([], ["b"]), ([], ["c"])]
    assert feed(machine, block("d", "m0", 1, 60)) == []
    assert updates(feed(machine, block("e", "d", 2, 101))) == [(["b", "c"], ["d", "e"])]


def test_blocks_of_one_weight_and_of_weight_nought() -> None:
    machine = ChainOrder(start(), 8)
    events = feed(machine, block("z", "y", 3, 0), block("y", "x", 2, 0), block("x", "m0", 1, 0))
    assert updates(events) == [([], ["x", "y", "z"])]
    assert feed(machine, block("u", "m0", 1, 0)) == []


def test_threshold_zero_never_removes() -> None:
    machine = ChainOrder(None, 0)
    assert updates(feed(machine, *main(3))) == [([], ["m1"]), ([], ["m2"]), ([], ["m3"])]
    assert feed(machine, block("c", "m2", 3, 1_000)) == [NeedsReorg(hash_of("c"), 3, 1_000)]


def test_a_negative_threshold_is_refused() -> None:
    with pytest.raises(ValueError, match="threshold is -1"):
        ChainOrder(None, -1)


class TestRefusedBlocks:
    def test_a_number_that_does_not_grow_is_dropped_whichever_comes_first(self) -> None:
        machine = ChainOrder(start(), 8)
        feed(machine, *main(2))
        (dropped,) = feed(machine, block("b", "m2", 2, 30))
        assert dropped == Dropped(hash_of("b"), 2, 30, DropReason.NUMBER)
        feed(machine, block("d", "c", 3, 40))
        events = feed(machine, block("c", "m2", 3, 30))
        assert events[0] == Dropped(hash_of("d"), 3, 40, DropReason.NUMBER)
        assert updates(events) == [([], ["c"])]

    def test_a_block_that_is_its_own_parent(self) -> None:
        machine = ChainOrder(None, 8)
        assert feed(machine, block("b", "b", 1, 1)) == [Dropped(hash_of("b"), 1, 1, DropReason.NUMBER)]
        assert machine.head is None

    def test_a_ring_of_parents(self) -> None:
        machine = ChainOrder(start(), 8)
        feed(machine, block("b", "d", 2, 2), block("c", "b", 3, 3))
        assert feed(machine, block("d", "c", 4, 4)) == [Dropped(hash_of("b"), 2, 2, DropReason.NUMBER)]

    def test_a_start_block_of_another_number_is_not_the_start_block(self) -> None:
        machine = ChainOrder(Start(hash_of("m2"), 2, 20), 8)
        wrong = block("m2", "m1", 3, 20)
        assert feed(machine, wrong) == [Dropped(hash_of("m2"), 3, 20, DropReason.NUMBER)]
        assert feed(machine, *main(2)) == []

    def test_a_parent_of_the_start_block_that_is_on_the_chain(self) -> None:
        machine = ChainOrder(None, 8)
        feed(machine, *main(3))
        dropped = feed(machine, block("m0", "m3", 0, 0))
        assert dropped == [Dropped(hash_of("m0"), 0, 0, DropReason.NUMBER)]

    def test_what_descends_from_an_unwanted_block_is_dropped(self) -> None:
        machine = ChainOrder(start(), 8, wanted={1: hash_of("m1")})
        feed(machine, block("f", "e", 3, 3), block("e", "b", 2, 2))
        events = feed(machine, block("b", "m0", 1, 1), block("g", "f", 4, 4))
        reasons = [(names_of(event), event.reason) for event in events if isinstance(event, Dropped)]
        assert reasons == [(name, DropReason.BANNED) for name in ("b", "e", "f", "g")]
        assert updates(feed(machine, *main(2))) == [([], ["m1"]), ([], ["m2"])]


def names_of(event: Dropped) -> str:
    return event.hash.lstrip(b"\0").decode()


class TestMemory:
    def test_what_the_chain_reaches_last_is_dropped(self) -> None:
        machine = ChainOrder(start(), 8, limits=ChainLimits(waiting_max=2))
        events = feed(machine, *(block(f"o{n}", f"before{n}", n, n) for n in (2, 4, 3, 1)))
        assert events == [Dropped(hash_of(f"o{n}"), n, n, DropReason.MEMORY) for n in (4, 3)]
        assert machine.statistics().waiting == 2

    def test_the_lightest_end_of_a_fork_is_dropped_before_what_may_follow_the_chain(self) -> None:
        machine = ChainOrder(start(), 8, limits=ChainLimits(waiting_max=2))
        events = feed(machine, *main(3), block("f", "m1", 2, 5), block("o", "before", 9, 9), block("e", "m1", 2, 6))
        assert events[3:] == [Dropped(hash_of("f"), 2, 5, DropReason.MEMORY)]

    def test_bytes_that_wait_are_bounded(self) -> None:
        machine = ChainOrder(start(), 8, limits=ChainLimits(waiting_bytes_max=1_000))
        feed(machine, *(block(f"o{n}", f"before{n}", n, n, size_bytes=300) for n in range(1, 20)))
        assert machine.statistics().waiting_bytes == 900

    def test_a_dropped_block_that_comes_again_joins_what_waited_for_it(self) -> None:
        machine = ChainOrder(start(), 8, limits=ChainLimits(waiting_max=2))
        b, c, d = block("b", "m0", 1, 10), block("c", "b", 2, 20), block("d", "c", 3, 30)
        feed(machine, d, block("o", "before", 1, 1), c)
        assert updates(feed(machine, b)) == [([], ["b", "c"])]
        assert updates(feed(machine, d)) == [([], ["d"])]

    def test_old_blocks_go_when_a_block_becomes_final_and_heavier_ones_stay(self) -> None:
        machine = ChainOrder(start(), 2)
        feed(machine, block("light", "before", 3, 3), block("heavy", "before", 3, 10_000))
        feed(machine, *main(20))
        assert machine.statistics().waiting == 1
        assert machine.statistics().dropped[DropReason.OLD] == 1
        feed(machine, block("f", "m17", 18, 5))
        assert machine.statistics().dropped[DropReason.OLD] == 2

    def test_the_chain_is_no_longer_than_the_threshold_asks(self) -> None:
        machine = ChainOrder(start(), 5)
        feed(machine, *main(100))
        assert machine.statistics().chain_length == 6
        assert [batch.number for batch in machine.held()] == list(range(95, 101))

    def test_a_long_wait_is_one_update(self) -> None:
        machine = ChainOrder(start(), 5)
        events = [event for batch in reversed(main(1_000)) for event in machine.receive(batch)]
        machine.check()
        assert [len(event.added) for event in events if isinstance(event, ChainUpdate)] == [1_000]


class TestRevert:
    def test_to_a_block_of_the_chain(self) -> None:
        machine = ChainOrder(start(), 8)
        feed(machine, *main(4))
        (event,) = machine.revert(hash_of("m2"), 2)
        assert isinstance(event, Revert)
        assert (event.hash, event.number, event.weight) == (hash_of("m2"), 2, 20)
        assert names(event.removed) == ["m3", "m4"]
        machine.check()
        assert updates(feed(machine, block("n3", "m2", 3, 1))) == [([], ["n3"])]

    def test_to_the_head_removes_nothing(self) -> None:
        machine = ChainOrder(start(), 8)
        feed(machine, *main(2))
        (event,) = machine.revert(hash_of("m2"), 2)
        assert isinstance(event, Revert)
        assert event.removed == ()

    def test_to_a_block_of_a_fork_goes_there_first(self) -> None:
        machine = ChainOrder(start(), 8)
        feed(machine, *main(3), block("c1", "m0", 1, 5), block("c2", "c1", 2, 6))
        events = machine.revert(hash_of("c1"), 1)
        assert updates(events) == [(["m1", "m2", "m3"], ["c1"])]
        assert isinstance(events[-1], Revert)
        assert events[-1].removed == ()
        machine.check()
        assert updates(feed(machine, block("c2", "c1", 2, 6))) == [([], ["c2"])]

    def test_below_all_that_is_held(self) -> None:
        machine = ChainOrder(start(), 3)
        feed(machine, *main(10))
        (event,) = machine.revert(hash_of("m2"), 2)
        assert isinstance(event, Revert)
        assert names(event.removed) == ["m7", "m8", "m9", "m10"]
        assert machine.final_number == 2
        machine.check()
        assert updates(feed(machine, block("n3", "m2", 3, 1), block("n4", "n3", 4, 2))) == [([], ["n3"]), ([], ["n4"])]

    def test_what_waits_for_the_new_chain_is_there_when_it_comes(self) -> None:
        machine = ChainOrder(start(), 2)
        feed(machine, *main(10))
        late = [block(f"n{n}", f"n{n - 1}" if n > 3 else "m2", n, 10 * n + 5) for n in range(3, 14)]
        feed(machine, *late[-2:])
        machine.revert(hash_of("m2"), 2)
        machine.check()
        events = feed(machine, *late[:-2]) + machine.end_reorg(hash_of("m2"), 2).events
        machine.check()
        assert [name for _, found in updates(events) for name in found] == [f"n{n}" for n in range(3, 14)]

    def test_what_follows_the_new_chain_on_the_old_one_is_added_again(self) -> None:
        """The reorg's blocks, and two more, were on the chain already, as after a restart within a reorg."""
        machine = ChainOrder(start(), 2)
        feed(machine, *main(12))
        machine.revert(hash_of("m2"), 2)
        events = feed(machine, *main(8, first=3)) + machine.end_reorg(hash_of("m2"), 2).events
        machine.check()
        assert [name for _, found in updates(events) for name in found] == [f"m{n}" for n in range(3, 13)]

    def test_blocks_of_the_reorg_follow_one_another_whatever_else_is_heavier(self) -> None:
        machine = ChainOrder(start(), 8)
        feed(machine, *main(4), block("side", "m1", 2, 35))
        machine.revert(hash_of("m1"), 1)
        events = feed(machine, block("n3", "n2", 3, 3), block("n2", "m1", 2, 2), block("n2", "m1", 2, 2))
        assert updates(events) == [([], ["n2", "n3"])]
        assert machine.head == Start(hash_of("n3"), 3, 3)
        end = machine.end_reorg(hash_of("m1"), 1)
        assert updates(end.events) == [(["n2", "n3"], ["m2", "m3", "m4"])]
        assert (end.removed_weight, end.read_again) == (40, False)
        assert updates(feed(machine, block("weighed", "n2", 3, 1_000)))[0][1] == ["n2", "weighed"]

    def test_a_block_of_the_reorg_with_a_wrong_number_is_dropped(self) -> None:
        machine = ChainOrder(start(), 8)
        feed(machine, *main(4))
        machine.revert(hash_of("m2"), 2)
        assert feed(machine, block("n", "m2", 2, 50)) == [Dropped(hash_of("n"), 2, 50, DropReason.NUMBER)]

    def test_back_and_forth(self) -> None:
        machine = ChainOrder(start(), 2)
        feed(machine, *main(6))
        for times in range(4):
            machine.revert(hash_of("m1"), 1)
            chain = [block(f"{times % 2}n{n}", f"{times % 2}n{n - 1}" if n > 2 else "m1", n, n) for n in range(2, 9)]
            assert len(updates(feed(machine, *chain))) == 7

    @pytest.mark.parametrize(
        ("name", "number", "can"),
        [("m9", 9, True), ("m7", 7, True), ("x", 9, False), ("x", 11, False), ("m3", 3, True)],
    )
    def test_whether_the_chain_has_come_as_far(self, name: str, number: int, can: bool) -> None:
        machine = ChainOrder(start(), 3)
        assert not machine.can_revert(hash_of("m9"), 9)
        feed(machine, *main(10))
        assert machine.can_revert(hash_of(name), number) is can

    def test_before_the_first_block(self) -> None:
        machine = ChainOrder(None, 3)
        assert machine.can_revert(hash_of("m2"), 2)
        (event,) = machine.revert(hash_of("m2"), 2)
        assert isinstance(event, Revert)
        assert machine.head == Start(hash_of("m2"), 2, 0)


def test_statistics() -> None:
    machine = ChainOrder(start(), 8)
    feed(machine, *main(3), main(1)[0], block("c", "m1", 2, 100))
    machine.revert(hash_of("m1"), 1)
    found = machine.statistics()
    assert (found.head_number, found.head_weight) == (1, 10)
    assert (found.updates, found.added, found.removed, found.reverts, found.duplicates) == (4, 4, 3, 1, 1)
    assert ChainOrder(None, 8).statistics().head_number is None
