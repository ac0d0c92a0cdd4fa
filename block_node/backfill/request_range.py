"""Computes the range of blocks for one request to a source node. No I/O.

One end of the range is `edge`. The range lies in `hole`, a range of missing blocks. It has at most `blocks` blocks, all
of them in `claims`. It has no block of `large` but `edge`: each of these needs a request of its own."""

from __future__ import annotations

from collections.abc import Set

from block_node.persist.ranges import BlockRanges, NumberRange


def lowest_of(edge: int, hole: NumberRange, blocks: int, claims: BlockRanges, large: Set[int]) -> NumberRange:
    first = max(hole.first, edge - blocks + 1)
    lacking = claims.missing(first, edge)
    first = lacking[-1].last + 1 if lacking else first
    return NumberRange(max([first, *(number + 1 for number in large if first <= number < edge)]), edge)


def highest_of(edge: int, hole: NumberRange, blocks: int, claims: BlockRanges, large: Set[int]) -> NumberRange:
    end = claims.end_of_run(edge)
    assert end is not None, "the source has the block"
    last = min(hole.last, end, edge + blocks - 1)
    return NumberRange(edge, min([last, *(number - 1 for number in large if edge < number <= last)]))
