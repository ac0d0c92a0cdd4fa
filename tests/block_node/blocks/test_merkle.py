"""The Merkle tree against a plain second reading of its rules."""

from __future__ import annotations

from hashlib import sha384

import pytest
from hypothesis import given
from hypothesis import strategies as st

from block_node.blocks.items import BlockFooter, ItemKind
from block_node.blocks.merkle import (
    EMPTY_TREE,
    LEGACY,
    SCHEMES,
    BlockTree,
    Category,
    HashScheme,
    RootCandidate,
    StreamingTree,
    fold,
    place_of,
)


def plain_root(leaves: list[bytes]) -> bytes:
    """The largest complete subtrees from the left, then from right to left two children at a time."""
    if not leaves:
        return sha384(b"\0").digest()
    subtrees = []
    while leaves:
        size = 1 << (len(leaves).bit_length() - 1)
        subtrees.append(complete_root(leaves[:size]))
        leaves = leaves[size:]
    root = subtrees.pop()
    while subtrees:
        root = sha384(b"\2" + subtrees.pop() + root).digest()
    return root


def complete_root(leaves: list[bytes]) -> bytes:
    if len(leaves) == 1:
        return leaves[0]
    half = len(leaves) // 2
    return sha384(b"\2" + complete_root(leaves[:half]) + complete_root(leaves[half:])).digest()


def leaves(count: int) -> list[bytes]:
    return [sha384(str(each).encode()).digest() for each in range(count)]


@pytest.mark.parametrize("count", [*range(20), 31, 32, 33, 1000])
def test_the_root_is_that_of_the_plain_reading(count: int) -> None:
    """Goal: the streaming tree follows the rules. Method: both on the same leaves, of many counts."""
    assert fold(leaves(count)) == plain_root(leaves(count))


@given(st.lists(st.integers(0, 9), max_size=12))
def test_runs_of_leaves_do_not_matter(runs: list[int]) -> None:
    """Goal: how leaves arrive does not matter, and a tree goes on from its peaks. Method: runs of any size, the tree
    made anew from its peaks after each; the root after each, too."""
    tree, all_leaves, done = StreamingTree(), leaves(sum(runs)), 0
    for run in runs:
        tree.extend(all_leaves[done : done + run])
        done += run
        assert tree.root() == plain_root(all_leaves[:done])
        tree = StreamingTree.from_peaks(tree.peaks())
        assert tree.leaf_count == done


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_top_tree_in_both_layouts(scheme: HashScheme) -> None:
    """Goal: which value is which leaf of the top tree. Method: the same root, written out by hand."""
    footer = BlockFooter(b"p" * 48, b"a" * 48, b"")
    tree = BlockTree(SCHEMES)
    places: dict[int, list[bytes]] = {Category.INPUTS: leaves(3), Category.OUTPUTS: leaves(5)}
    places[15] = leaves(2)
    for place, hashes in places.items():
        tree.extend(place, hashes)
    top = [footer.previous_root, footer.all_blocks_root, EMPTY_TREE]
    top += [plain_root(places.get(place, [])) for place in range(3, scheme.positions)]
    above = complete_root(top)
    if scheme is LEGACY:
        above = sha384(b"\1" + above).digest()
    time = b"\x08\x05"
    root = sha384(b"\2" + sha384(b"\0" + time).digest() + above).digest()
    assert RootCandidate(scheme.name, root) in tree.roots(time, footer)


def test_kinds_belong_to_subtrees() -> None:
    """Goal: each kind is hashed where the protocol says. Method: the table, the rule for kinds of later versions."""
    places = {kind: place_of(kind) for kind in ItemKind}
    assert [kind for kind, place in places.items() if place == Category.OUTPUTS] == [
        ItemKind.HEADER,
        ItemKind.TRANSACTION_RESULT,
        ItemKind.TRANSACTION_OUTPUT,
        ItemKind.RECORD_FILE,
    ]
    assert places[ItemKind.ROUND_HEADER] == places[ItemKind.EVENT_HEADER] == Category.CONSENSUS_HEADERS
    assert places[ItemKind.SIGNED_TRANSACTION] == Category.INPUTS
    assert places[ItemKind.STATE_CHANGES] == Category.STATE_CHANGES
    assert places[ItemKind.TRACE_DATA] == Category.TRACE_DATA
    assert places[ItemKind.FOOTER] == places[ItemKind.PROOF] == -1
    assert places[ItemKind.FILTERED] is places[ItemKind.REDACTED] is None
    assert [place_of(kind) for kind in range(13, 19)] == [None] * 6
    later = [place_of(kind) for kind in range(20, 40)]
    assert later == [-1, None, None, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, None, None, None, -1]
    assert [place_of(kind) for kind in range(60, 80)] == later
