"""Finds the blocks that a reorg removed from the canonical chain, by the hashes of blocks and their parents. Pure.

The canonical chain ends at the block with the greatest weight. Among equal weights the greatest number wins, then the
greatest hash. So the result does not depend on the order of the given blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class BlockLink:
    """A block without its contents. parent: the hash of the previous block. weight: the cumulative weight of the chain
    up to this block.
    """

    hash: bytes
    parent: bytes
    number: int
    weight: int


@dataclass(frozen=True)
class Mark:
    """The result for one block. reorged: True if a reorg removed the block from the canonical chain. fork_number: the
    number of the latest ancestor on the canonical chain; None for a block that is not reorged, or if no such ancestor
    is known.
    """

    hash: bytes
    reorged: bool
    fork_number: int | None


def mark_chain(blocks: Iterable[BlockLink]) -> Iterator[Mark]:
    """Yields a `Mark` for each block: whether the block is reorged, and where its branch began.

    A block with a smaller number than all known blocks of the canonical chain is not marked as reorged. The block may
    belong to the canonical chain, if the export lacks the blocks between.
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
    """Returns the hashes of the canonical chain: the last block and all its known ancestors."""
    best: BlockLink | None = max(known.values(), key=lambda block: (block.weight, block.number, block.hash))
    counting: set[bytes] = set()
    while best is not None and best.hash not in counting:
        counting.add(best.hash)
        best = known.get(best.parent)
    return counting


def _fork_of(
    block: BlockLink, known: dict[bytes, BlockLink], counting: set[bytes], forks: dict[bytes, int | None]
) -> int | None:
    """Returns the number of the latest ancestor on the canonical chain; None if no such ancestor is known.

    `forks` stores this number for each visited block, so that every branch is followed only once. counting: the hashes
    of the canonical chain.
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
        # Stored before the next step, so that the loop ends even if a broken producer made a cycle of parents.
        forks[at.hash] = None
        path.append(at.hash)
        at = known.get(at.parent)
    forks.update(dict.fromkeys(path, fork))
    return fork
