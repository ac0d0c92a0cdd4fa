"""Computes the range of blocks of one request. It starts where the hole can be filled, and is limited by the blocks of
the source, the batch size and large blocks. Pure.

In both functions, `edge` is the block to start from, `claims` are the blocks of the source, and `large` are blocks that
must be fetched alone, so that no request contains them together with others.
"""

from __future__ import annotations

from collections.abc import Set

from block_node.persist.ranges import BlockRange, BlockRanges


def lowest_of(edge: int, hole: BlockRange, blocks: int, claims: BlockRanges, large: Set[int]) -> BlockRange:
    """Returns the blocks of a request that begins at `edge` and extends downwards, at most `blocks` of them."""
    first = max(hole.first, edge - blocks + 1)
    lacking = claims.missing(first, edge)
    first = lacking[-1].last + 1 if lacking else first
    return BlockRange(max([first, *(number + 1 for number in large if first <= number < edge)]), edge)


def highest_of(edge: int, hole: BlockRange, blocks: int, claims: BlockRanges, large: Set[int]) -> BlockRange:
    """Returns the blocks of a request that begins at `edge` and extends upwards, at most `blocks` of them."""
    end = claims.end_of_run(edge)
    assert end is not None, "the source has the block"
    last = min(hole.last, end, edge + blocks - 1)
    return BlockRange(edge, min([last, *(number - 1 for number in large if edge < number <= last)]))
