"""The page of blocks: the stored ones, their publishers, the refused ones with the reasons, and the progress of
backfill."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from block_node.protocol_reading import STATUS, BlockRange, StatusRequest
from ockam.identity.rules.rights import Right
from stream_node.doors.dashboard.page import OPERATOR, DashboardPage
from stream_node.doors.dashboard.pictures import draw_ranges, find_gaps
from stream_node.doors.http.problems import Problem

GAPS_MAX = 50
RANGES_MAX = 2_000
"""The largest number of ranges that are drawn: the newest ones."""


async def show_blocks(page: DashboardPage) -> Response:
    return page.show("blocks.html", active="blocks", **await _values(page))


async def _values(page: DashboardPage) -> dict[str, Any]:
    parts = page.call.parts
    chain = parts.config.block_chain
    statistics = parts.services.statistics().blocks
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
    return {
        "chain": chain,
        "reach": status,
        "store": statistics.node.store,
        "publish": statistics.node.publish,
        "backfill": statistics.backfill,
        "readers": statistics.readers,
        "bars": bars,
        "gaps": gaps[-GAPS_MAX:],
        "gap_count": len(gaps),
        "missing": sum(last - first + 1 for first, last in gaps),
        # The names and addresses of other nodes are for operators.
        "may_operate": page.may(OPERATOR, chain),
    }


def _pairs(ranges: list[BlockRange]) -> list[tuple[int, int]]:
    return [(each.first_block, each.last_block) for each in ranges]
