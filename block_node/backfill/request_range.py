"""Which blocks one request is for: from where a hole can be filled, as far as the source, the batch and the rest allow.

Pure. large: blocks that are fetched alone, and so are in no request with others.
"""

from __future__ import annotations

from collections.abc import Set

from block_node.persist.ranges import BlockRange, BlockRanges


def lowest_of(edge: int, hole: BlockRange, blocks: int, claims: BlockRanges, large: Set[int]) -> BlockRange:
    """From `edge` downwards."""
    first = max(hole.first, edge - blocks + 1)
    lacking = claims.missing(first, edge)
    first = lacking[-1].last + 1 if lacking else first
    return BlockRange(max([first, *(number + 1 for number in large if first <= number < edge)]), edge)


def highest_of(edge: int, hole: BlockRange, blocks: int, claims: BlockRanges, large: Set[int]) -> BlockRange:
    """From `edge` upwards."""
    end = claims.end_of_run(edge)
    assert end is not None, "the source has the block"
    last = min(hole.last, end, edge + blocks - 1)
    return BlockRange(edge, min([last, *(number - 1 for number in large if edge < number <= last)]))
