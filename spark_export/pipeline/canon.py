"""Finds the canonical chain of a set of complete blocks, by hashes, parents, numbers and weights. Pure.

The result is the one that `cardinal_streams.ChainOrder` reaches with these blocks, without a reorg threshold. It does
not depend on the order of the blocks. At each fork the branch with the heaviest block wins; among equal weights, the
branch whose heaviest block was stored first. So the consumer keeps a chain until a heavier one appears.

Blocks that descend from one root form a component. The canonical chain is in one component: the one with the
start block if a start block is given; else the one that begins at a genesis block, whose parent is all zeros; else the
one with the most blocks. The other components wait for the blocks that connect them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

CANONICAL: Final = "canonical"
"""The state of a block on the canonical chain."""
REORGED: Final = "reorged"
"""The state of a block that cannot be on the canonical chain: the chain has another block in its place, or the block's
number is not above its parent's."""
WAITING: Final = "waiting"
"""The state of a block whose place is unknown, because blocks between it and the canonical chain are missing."""
INCOMPLETE: Final = "incomplete"
"""The state of a block that lacks messages. Such a block is no part of the tree."""
ZERO_HASH: Final = bytes(32)


@dataclass(frozen=True, slots=True)
class BlockLink:
    """A complete block without its contents. parent: the hash of the previous block. weight: the cumulative weight of
    the chain up to this block. stored_us: when the block was stored, in microseconds since 1970.
    """

    hash: bytes
    parent: bytes
    number: int
    weight: int
    stored_us: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """The result for one block. state: CANONICAL, REORGED or WAITING. fork_number: for a reorged block, the number of
    its latest ancestor on the canonical chain; None for other blocks, or if no such ancestor is known.
    """

    state: str
    fork_number: int | None = None


Rank: TypeAlias = tuple[int, int, bytes]

ON_CHAIN, WAITS, LOST = Mark(CANONICAL), Mark(WAITING), Mark(REORGED)


def mark_chain(blocks: Iterable[BlockLink], start: bytes | None = None) -> dict[bytes, Mark]:
    """Returns the `Mark` of each block, by hash. start: the hash of a block of the chain, or of the
    block that precedes the chain; None if no such block is known.

    A block whose number is not above its parent's is no part of the tree, as for the consumer.
    """
    known = {block.hash: block for block in blocks}
    marks: dict[bytes, Mark] = {}
    tree: dict[bytes, BlockLink] = {}
    for block in known.values():
        parent = known.get(block.parent)
        if parent is not None and parent.number >= block.number:
            marks[block.hash] = LOST
        else:
            tree[block.hash] = block
    children: dict[bytes, list[BlockLink]] = {}
    for block in tree.values():
        children.setdefault(block.parent, []).append(block)
    components = {root: _descendants(root, children) for root in children if root not in tree}
    if not components:
        return marks
    main = _choose(components, start)
    head = _mark_main(components.pop(main) if main is not None else [], children, main, marks)
    for members in components.values():
        _mark_other(members, head, marks)
    return marks


def _descendants(root: bytes, children: dict[bytes, list[BlockLink]]) -> list[BlockLink]:
    """Returns all blocks above `root`, parents before children."""
    found = list(children[root])
    for block in found:
        found.extend(children.get(block.hash, ()))
    return found


def _choose(components: dict[bytes, list[BlockLink]], start: bytes | None) -> bytes | None:
    """Returns the root of the component with the canonical chain; None if there is no block near the start block."""
    if start is not None:
        containing = (root for root, members in components.items() if any(block.hash == start for block in members))
        return start if start in components else next(containing, None)
    if ZERO_HASH in components:
        return ZERO_HASH
    return max(components, key=lambda root: (len(components[root]), *_rank(components[root][0])[1:]))


def _rank(block: BlockLink) -> Rank:
    return (block.weight, -block.stored_us, block.hash)


def _mark_main(
    members: list[BlockLink], children: dict[bytes, list[BlockLink]], root: bytes | None, marks: dict[bytes, Mark]
) -> tuple[int, int, int] | None:
    """Marks the component with the canonical chain. Returns the number of the chain's first block, the number of its
    last block and the weight of its heaviest block; None for an empty component."""
    if not members or root is None:
        return None
    heaviest: dict[bytes, Rank] = {}
    for block in reversed(members):
        heaviest[block.hash] = max([_rank(block), *(heaviest[child.hash] for child in children.get(block.hash, ()))])
    chain: list[BlockLink] = []
    at = root
    while following := children.get(at):
        chain.append(max(following, key=lambda child: heaviest[child.hash]))
        at = chain[-1].hash
        marks[at] = ON_CHAIN
    numbers = {block.hash: block.number for block in chain}
    for block in members:
        if block.hash in numbers:
            continue
        above_fork = marks.get(block.parent)
        fork = numbers.get(block.parent)
        if fork is None and above_fork is not None:
            fork = above_fork.fork_number
        marks[block.hash] = Mark(REORGED, fork)
    return chain[0].number, chain[-1].number, max(block.weight for block in chain)


def _mark_other(members: list[BlockLink], head: tuple[int, int, int] | None, marks: dict[bytes, Mark]) -> None:
    """Marks a component that is not connected to the canonical chain.

    If the component is heavier than the chain, it may win when the missing blocks arrive, so its blocks wait. Else its
    blocks with numbers that the chain has passed have lost.
    """
    may_win = head is None or max(block.weight for block in members) > head[2]
    for block in members:
        passed = head is not None and head[0] <= block.number <= head[1]
        marks[block.hash] = LOST if passed and not may_win else WAITS
