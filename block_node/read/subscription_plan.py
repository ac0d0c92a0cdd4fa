"""Decides which blocks a subscription asks for, or why it is refused; and has the limits of subscriptions. Pure.

Source: facts/block_node.md §4.3 and S1 to S8. Where the real node refuses every range while it is empty, a range that
begins within the window waits here.
"""

from __future__ import annotations

import msgspec

from block_node.persist.schema import NUMBER_MAX
from block_node.protocol_reading import Subscribe, SubscribeStatus


class SubscribeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """ahead_blocks_max: how far above the last block a subscription may begin (the real `maximumFutureRequest`).

    window_bytes_min, window_bytes_max: bounds of what a subscriber asks to have on its way. slow_s_max: without a
    `Received` while the window is used up. missing_s_max: for a block below others that is not there. duration_s_max:
    of a whole subscription, after which it ends with SUCCESS; None is no limit.
    """

    ahead_blocks_max: int = 4_000
    sessions_max: int = 1_000
    window_bytes_min: int = 64 * 1024
    window_bytes_max: int = 16 * 1024 * 1024
    slow_s_max: float = 30.0
    missing_s_max: float = 30.0
    duration_s_max: float | None = None
    tick_s: float = 1.0


class Plan(msgspec.Struct, frozen=True):
    """The blocks from `start` on to `end`, inclusive. start None: from the first block that there will be.

    end None: endless.
    """

    start: int | None
    end: int | None
    early: bool


class Refusal(msgspec.Struct, frozen=True):
    status: SubscribeStatus
    reason: str


def plan_subscription(request: Subscribe, first: int | None, last: int | None, ahead_max: int) -> Plan | Refusal:
    """first, last: the lowest and highest block that can be read; None where there is none. ahead_max: in blocks."""
    start, end = request.start_block, request.end_block
    if start is not None and start > NUMBER_MAX:
        return Refusal(SubscribeStatus.INVALID_START_BLOCK, f"no block has number {start}; leave it out for what comes")
    if end is not None and end > NUMBER_MAX:
        return Refusal(SubscribeStatus.INVALID_END_BLOCK, f"no block has number {end}; leave it out for no end")
    if start is not None and end is not None and end < start:
        return Refusal(SubscribeStatus.INVALID_END_BLOCK, f"the end {end} is below the start {start}")
    newest = -1 if last is None else last
    begins = start if start is not None else newest + 1 if end is None else first
    if start is not None and first is not None and start < first:
        return Refusal(SubscribeStatus.NOT_AVAILABLE, f"block {start} is not here; the first one is {first}")
    if begins is not None and end is not None and begins > end:
        return Refusal(SubscribeStatus.NOT_AVAILABLE, f"no block up to {end} is here; the first one is {first}")
    for wanted in (begins, end if begins is None else None):
        if wanted is not None and wanted > newest + ahead_max:
            reason = f"block {wanted} is more than {ahead_max} blocks above the last one"
            return Refusal(SubscribeStatus.NOT_AVAILABLE, f"{reason}; ask again when it is nearer")
    if start is None and last is None:
        begins = None
    return Plan(begins, end, request.early)
