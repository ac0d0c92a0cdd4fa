"""Goal: the canonical chain is told from what lost, as the consumer tells it. Method: small chains, random trees, and
the consumer's own machine over the same blocks in another order."""

from __future__ import annotations

from random import Random

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from hypothesis import given, settings
from hypothesis import strategies as st

from cardinal_streams.machines.chain_order_machine import ChainOrder
from cardinal_streams.machines.events import ChainUpdate, Start
from cardinal_streams.payload import CompleteBatch
from spark_export.pipeline.canon import CANONICAL, REORGED, WAITING, BlockLink, mark_chain

GENESIS = bytes(32)


def name(text: str) -> bytes:
    return GENESIS if text == "0" else text.encode().rjust(32, b".")


def block(own: str, parent: str, number: int, weight: int | None = None) -> BlockLink:
    return BlockLink(name(own), name(parent), number, number if weight is None else weight)


def marks(*blocks: BlockLink, start: str | None = None) -> dict[str, tuple[str, int | None]]:
    found = mark_chain(blocks, None if start is None else name(start))
    return {hash_.decode().lstrip("."): (mark.state, mark.fork_number) for hash_, mark in found.items()}


KEPT, WAITS = (CANONICAL, None), (WAITING, None)


def test_a_chain_without_forks_is_kept() -> None:
    assert marks(block("a", "0", 5), block("b", "a", 6)) == {"a": KEPT, "b": KEPT}
    assert marks() == {}


def test_the_heavier_branch_wins_whatever_its_height() -> None:
    assert marks(
        block("a", "0", 1), block("b", "a", 2, 20), block("x", "a", 2, 3), block("y", "x", 3, 4), block("z", "y", 4, 5)
    ) == {"a": KEPT, "b": KEPT, "x": (REORGED, 1), "y": (REORGED, 1), "z": (REORGED, 1)}


def test_two_first_blocks_of_one_parent_are_a_fork() -> None:
    assert marks(block("a", "?", 7, 70), block("x", "?", 7, 69)) == {"a": KEPT, "x": (REORGED, None)}


def test_what_a_missing_block_cuts_off_waits_only_if_it_may_win() -> None:
    light, heavy = block("l", "?", 2, 1), block("h", "!", 3, 9)
    assert marks(block("a", "0", 1), block("b", "a", 2), light, heavy) == {
        "a": KEPT,
        "b": KEPT,
        "l": (REORGED, None),
        "h": WAITS,
    }


def test_without_genesis_the_largest_part_counts() -> None:
    """A straggler from before the export's begin does not make all others wait."""
    assert marks(block("old", "?", 1), block("b", "!", 7), block("c", "b", 8)) == {"old": WAITS, "b": KEPT, "c": KEPT}


def test_parts_of_one_size_are_told_apart_in_any_order() -> None:
    """Method: two parts of three blocks, each with two first blocks; the blocks come in both orders."""
    times = (("a", "?", 5), ("b", "?", 9), ("c", "b", 9), ("d", "!", 7), ("e", "!", 6), ("f", "d", 8))
    blocks = [
        BlockLink(name(own), name(parent), 1 + at % 3, 1, stored) for at, (own, parent, stored) in enumerate(times)
    ]
    assert mark_chain(blocks) == mark_chain(reversed(blocks))


def test_a_given_start_says_which_part_counts() -> None:
    blocks = [block("a", "?", 1), block("b", "a", 2), block("c", "!", 30), block("d", "c", 31), block("e", "d", 32)]
    assert marks(*blocks)["a"] == WAITS
    for start in ("?", "a", "b"):
        assert marks(*blocks, start=start) == {"a": KEPT, "b": KEPT, "c": WAITS, "d": WAITS, "e": WAITS}
    assert set(marks(*blocks, start="unknown").values()) == {WAITS}


def test_a_number_that_does_not_grow_is_refused_and_a_ring_ends() -> None:
    found = marks(block("a", "b", 1), block("b", "a", 2), block("c", "0", 1, 9), block("d", "c", 1, 10))
    assert found == {"a": (REORGED, None), "b": WAITS, "c": KEPT, "d": (REORGED, None)}


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 3)), min_size=1, max_size=40), st.randoms())
def test_the_consumer_ends_on_the_same_chain(spec: list[tuple[int, int]], shuffler: Random) -> None:
    """Also if a block is missing: what descends from it is on neither chain."""
    blocks = [BlockLink(name("r"), GENESIS, 1, 1000)]
    for number, (choice, step) in enumerate(spec):
        parent = blocks[-1 - choice % min(6, len(blocks))]
        weight = parent.weight + 1000 * step
        weight += number + 1 - weight % 1000
        blocks.append(BlockLink(name(f"n{number}"), parent.hash, parent.number + step, weight))
    if shuffler.random() < 0.5:
        del blocks[shuffler.randrange(len(blocks))]
    machine = ChainOrder(Start(GENESIS, 0, 0), 10**6)
    chain: list[bytes] = []
    shuffler.shuffle(blocks)
    for each in blocks:
        batch = CompleteBatch(
            hash=each.hash, number=each.number, parent=each.parent, weight=each.weight, values={}, deletes=frozenset()
        )
        for event in machine.receive(batch):
            assert isinstance(event, ChainUpdate)
            del chain[len(chain) - len(event.removed) :]
            chain += [added.hash for added in event.added]
    found = mark_chain(blocks, GENESIS)
    assert {hash_ for hash_, mark in found.items() if mark.state == CANONICAL} == set(chain)
    by_hash = {each.hash: each for each in blocks}
    for hash_, mark in found.items():
        at = by_hash.get(hash_)
        while at is not None and found[at.hash].state == REORGED:
            at = by_hash.get(at.parent)
        if mark.state == REORGED and at is not None and found[at.hash].state == CANONICAL:
            assert mark.fork_number == at.number
    shuffler.shuffle(blocks)
    assert mark_chain(blocks, GENESIS) == found
