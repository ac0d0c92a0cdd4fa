"""The page of blocks: stored ones, publishers, refused ones with the reasons, and the progress of backfill."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from starlette.responses import Response

from block_node.protocol_reading import STATUS, BlockRange, StatusRequest
from ockam.identity.rules.rights import Right
from stream_node.doors.dashboard.page import OPERATOR, DashboardPage
from stream_node.doors.http.problems import Problem

GAPS_MAX = 50
RANGES_MAX = 2_000
"""The largest number of ranges that are drawn: the newest ones."""


async def show_blocks(page: DashboardPage) -> Response:
    parts = page.call.parts
    chain = parts.config.block_chain
    whole = parts.statistics()
    statistics = whole.services.blocks
    if statistics is None:
        reason = "this node is no block node (the setting block_node)"
        if parts.config.block_node:
            reason = "another node of the cluster serves the chain; look at the page of that node"
        raise Problem(404, "no-block-node", reason)
    page.need(OPERATOR | Right.BLOCK_READ | Right.BLOCK_PUBLISH, chain)
    async with page.client() as client:
        status = await client.session.ask("block_status", STATUS, StatusRequest(0, True))
    available = _pairs(status.detail.available) if status.detail else []
    stored = _pairs(status.detail.stored) if status.detail else []
    gaps = find_gaps(available)
    drawn, known = available[-RANGES_MAX:], stored[-RANGES_MAX:]
    bars = draw_ranges(drawn, known, min(drawn[0][0], known[0][0]), drawn[-1][1]) if available else []
    return page.show(
        "blocks.html",
        chain=chain,
        reach=status,
        store=statistics.node.store,
        publish=statistics.node.publish,
        backfill=statistics.backfill,
        readers=statistics.readers,
        door=whole.grpc,
        calls=statistics.grpc,
        bars=bars,
        gaps=gaps[-GAPS_MAX:],
        gap_count=len(gaps),
        missing=sum(last - first + 1 for first, last in gaps),
        # The names and addresses of other nodes are for operators.
        may_operate=page.may(OPERATOR, chain),
    )


def _pairs(ranges: list[BlockRange]) -> list[tuple[int, int]]:
    return [(each.first_block, each.last_block) for each in ranges]


BARS_MAX = 400


class Bar(NamedTuple):
    """A part of a picture of blocks, which is 1,000 units wide. first, last: its blocks. state: their worst state."""

    first: int
    last: int
    state: str
    x: float
    width: float


def draw_ranges(
    ranges: Sequence[tuple[int, int]], deleted: Sequence[tuple[int, int]], first: int, last: int
) -> list[Bar]:
    """Returns the bars of the blocks from `first` to `last`: at most BARS_MAX parts, neighbours of one state joined.
    A part is "missing" if one of its blocks is, so that even one missing block is visible.
    ranges, deleted: ascending inclusive ranges of the blocks that can be read, and that were ever stored."""
    count = last - first + 1
    step = max(1, -(-count // BARS_MAX))
    there_in, known_in = _counts(ranges, first, last, step), _counts(deleted, first, last, step)
    bars: list[Bar] = []
    for number, (there, known) in enumerate(zip(there_in, known_in, strict=True)):
        start = first + number * step
        end = min(last, start + step - 1)
        size = end - start + 1
        state = "there" if there == size else "missing" if known < size else "deleted"
        x, width = 1000 * (start - first) / count, 1000 * size / count
        if bars and bars[-1].state == state:
            before = bars.pop()
            bars.append(Bar(before.first, end, state, before.x, before.width + width))
        else:
            bars.append(Bar(start, end, state, x, width))
    return bars


def find_gaps(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(before[1] + 1, after[0] - 1) for before, after in pairwise(ranges) if after[0] > before[1] + 1]


def _counts(ranges: Sequence[tuple[int, int]], first: int, last: int, step: int) -> list[int]:
    """Returns, for each `step` numbers from `first` to `last`, how many of them are in the ranges."""
    counts = [0] * -(-(last - first + 1) // step)
    for start, end in ranges:
        start, end = max(start, first), min(end, last)
        for number in range((start - first) // step, (end - first) // step + 1 if start <= end else 0):
            begin = first + number * step
            counts[number] += min(end, begin + step - 1) - max(start, begin) + 1
    return counts
