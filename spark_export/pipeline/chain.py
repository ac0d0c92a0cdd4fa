"""Finds the blocks of a chain that a reorg left behind, from their links alone. It is pure.

The chain that counts ends at the heaviest block; among equals at the highest, then at the one whose hash is greatest,
so that the answer does not depend on the order of the blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class BlockLink:
    """A block: its hash, its parent's, its number and its cumulative weight."""

    hash: bytes
    parent: bytes
    number: int
    weight: int


@dataclass(frozen=True)
class Mark:
    """reorged: whether the block is not on the chain that counts. fork_number: of its latest ancestor that is; None
    where that was never seen."""

    hash: bytes
    reorged: bool
    fork_number: int | None


def mark_chain(blocks: Iterable[BlockLink]) -> Iterator[Mark]:
    """A mark for each block.

    A block that is older than all known blocks of the chain that counts is not called reorged: its place in that chain
    may just not have been exported.
    """
    known = {block.hash: block for block in blocks}
    if not known:
        return
    counting = _counting(known)
    numbers = {known[hash_].number for hash_ in counting}
    oldest = min(numbers)
    forks: dict[bytes, int | None] = {}
    for block in known.values():
        if block.hash in counting or block.number < oldest:
            yield Mark(block.hash, reorged=False, fork_number=None)
        else:
            yield Mark(block.hash, reorged=True, fork_number=_fork_of(block, known, counting, forks))


def _counting(known: dict[bytes, BlockLink]) -> set[bytes]:
    """The hashes from the best block down, as far as its ancestors are known."""
    best: BlockLink | None = max(known.values(), key=lambda block: (block.weight, block.number, block.hash))
    counting: set[bytes] = set()
    while best is not None and best.hash not in counting:
        counting.add(best.hash)
        best = known.get(best.parent)
    return counting


def _fork_of(
    block: BlockLink, known: dict[bytes, BlockLink], counting: set[bytes], forks: dict[bytes, int | None]
) -> int | None:
    """The number of the latest ancestor on the chain that counts.

    `forks` remembers that number for each block on the way, so that a side branch is walked once.
    """
    path: list[bytes] = []
    at: BlockLink | None = block
    fork: int | None = None
    while at is not None:
        if at.hash in counting:
            fork = at.number
            break
        if at.hash in forks:
            fork = forks[at.hash]
            break
        # Noted before the walk goes on, so that a ring of parents, which only a broken producer makes, ends it.
        forks[at.hash] = None
        path.append(at.hash)
        at = known.get(at.parent)
    forks.update(dict.fromkeys(path, fork))
    return fork
