"""Goal: what a reorg left behind is told from the chain that counts. Method: small chains, and random trees."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from spark_export.pipeline.chain import BlockLink, Mark, mark_chain


def block(name: str, parent: str, number: int, weight: int | None = None) -> BlockLink:
    return BlockLink(name.encode(), parent.encode(), number, number if weight is None else weight)


def marks(*blocks: BlockLink) -> dict[str, tuple[bool, int | None]]:
    return {mark.hash.decode(): (mark.reorged, mark.fork_number) for mark in mark_chain(blocks)}


KEPT = (False, None)


def test_a_chain_without_forks_is_kept() -> None:
    assert marks(block("a", "0", 5), block("b", "a", 6)) == {"a": KEPT, "b": KEPT}
    assert marks() == {}


def test_the_heavier_branch_wins_whatever_its_height() -> None:
    assert marks(
        block("a", "0", 1), block("b", "a", 2, 20), block("x", "a", 2, 3), block("y", "x", 3, 4), block("z", "y", 4, 5)
    ) == {"a": KEPT, "b": KEPT, "x": (True, 1), "y": (True, 1), "z": (True, 1)}


def test_a_branch_without_a_known_root_has_no_fork() -> None:
    assert marks(block("a", "0", 1), block("b", "a", 2), block("x", "?", 2, 1)) == {
        "a": KEPT,
        "b": KEPT,
        "x": (True, None),
    }


def test_blocks_from_before_the_known_chain_are_left_alone() -> None:
    """The exported part begins in the middle: what is older than its chain is not known to be wrong."""
    assert marks(block("old", "?", 1), block("b", "?", 7))["old"] == KEPT


def test_a_ring_of_parents_ends() -> None:
    found = marks(block("a", "b", 1), block("b", "a", 2), block("c", "0", 1, 9))
    assert found == {"a": (True, None), "b": (True, None), "c": KEPT}


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 3)), min_size=1, max_size=60), st.randoms())
def test_the_chain_that_counts_is_one_path_and_order_does_not_matter(
    spec: list[tuple[int, int]], shuffler: Random
) -> None:
    blocks = [BlockLink(b"0", b"", 0, 0)]
    for number, (choice, weight) in enumerate(spec):
        parent = blocks[choice % len(blocks)]
        blocks.append(BlockLink(b"%d" % (number + 1), parent.hash, parent.number + 1, parent.weight + weight))
    found = {mark.hash: mark for mark in mark_chain(blocks)}
    kept = sorted((b for b in blocks if not found[b.hash].reorged), key=lambda b: b.number)
    assert [b.number for b in kept] == list(range(len(kept)))
    assert all(child.parent == parent.hash for parent, child in pairwise(kept))
    assert kept[-1].weight == max(b.weight for b in blocks)
    by_hash = {b.hash: b for b in blocks}
    for mark in found.values():
        if mark.reorged:
            ancestor = by_hash[mark.hash]
            while found[ancestor.hash].reorged:
                ancestor = by_hash[ancestor.parent]
            assert mark.fork_number == ancestor.number
    shuffled = list(blocks)
    shuffler.shuffle(shuffled)
    assert {mark.hash: mark for mark in mark_chain(shuffled)} == found
    assert all(isinstance(mark, Mark) for mark in found.values())
