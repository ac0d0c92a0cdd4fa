"""Compares the chains of the source nodes with each other and with the stored chain, by the root hash of one block: two
nodes with the same root hash for a block have the same chain up to it. No I/O.

The stored chain decides which source node has another chain. While the node is empty, the operator decides: by the root
hash of a known block, or by the checks of proofs (an address book). Without either, nothing is fetched from source
nodes with different chains, because nothing says which of them is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from block_node.persist.ranges import BlockRanges

SHOWN_CHARACTERS = 16


class Opinion(NamedTuple):
    """The root hash that a source node has for a block. expected: the right root hash; empty if unknown."""

    source: str
    number: int
    root: bytes
    expected: bytes


def common_block(ranges: Iterable[BlockRanges]) -> int | None:
    """Returns the block below the highest common block of `ranges`, if that block is common too; else the highest. The
    root hash of the newest block of a chain is not always certain. None if `ranges` have no common block."""
    first, *others = ranges
    common = first.copy()
    for other in others:
        for hole in other.missing(0, common.last or 0):
            common.discard(*hole)
    last = common.last
    return last - 1 if last and last - 1 in common else last


def find_disagreements(opinions: Iterable[Opinion]) -> Mapping[str, str]:
    """Returns a text for each source node that has another chain: how its root hash differs. If the right root hash of
    a block is unknown, and the source nodes disagree about it, each of them gets a text."""
    found: dict[str, str] = {}
    open_opinions = []
    for each in sorted(opinions):
        if not each.expected:
            open_opinions.append(each)
        elif each.root != each.expected:
            found[each.source] = f"its block {each.number} has root {_short(each.root)}, not {_short(each.expected)}"
    if len({(each.number, each.root) for each in open_opinions}) > 1:
        roots = ", ".join(f"{each.source} {_short(each.root)}" for each in open_opinions)
        number = open_opinions[0].number
        for each in open_opinions:
            found[each.source] = (
                f"the sources have different roots of block {number}: {roots}; set block_known_roots={number}:ROOT or "
                "an address book to decide"
            )
    return found


def _short(root: bytes) -> str:
    return f"{root.hex()[:SHOWN_CHARACTERS]}…"
