"""Decides which blocks a subscription sends, or why the node refuses it. No I/O. Source: facts/block_node.md §4.3 and
S1 to S8, with one difference: a reference block node without blocks refuses every range. This node accepts a range that
begins within `ahead_blocks_max`, and waits for its blocks."""

from __future__ import annotations

import msgspec

from block_node.persist.schema import NUMBER_MAX
from block_node.protocol_reading import Subscribe, SubscribeStatus


class SubscribeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of subscriptions.

    - ahead_blocks_max: how many blocks above the last stored block a subscription may begin (`maximumFutureRequest` of
      the reference block node).
    - window_bytes_min, window_bytes_max: the limits of the window, the unconfirmed bytes that a subscriber permits.
    - slow_s_max: how long a full window may stay without a `Received`. missing_s_max: how long a subscription waits for
      a missing block below a stored one. duration_s_max: after it, a subscription ends with SUCCESS.
    """

    ahead_blocks_max: int = 4_000
    sessions_max: int = 1_000
    window_bytes_min: int = 64 * 1024
    window_bytes_max: int = 16 * 1024 * 1024
    slow_s_max: float = 30.0
    missing_s_max: float = 30.0
    duration_s_max: float | None = None
    tick_s: float = 1.0


class SubscriptionPlan(msgspec.Struct, frozen=True):
    """The accepted range of a subscription, both ends included. start: None means the first block that this node will
    ever store. end: None means no end. early: whether items are also sent before their block is verified."""

    start: int | None
    end: int | None
    early: bool


class PlanRefused(Exception):
    """The error of a subscription that the node refuses."""

    def __init__(self, status: SubscribeStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def plan_subscription(request: Subscribe, first: int | None, last: int | None, ahead_max: int) -> SubscriptionPlan:
    """Plans a subscription. first, last: the blocks that can be read; None: there is none. Raises PlanRefused."""
    start, end = request.start_block, request.end_block
    if start is not None and start > NUMBER_MAX:
        raise PlanRefused(
            SubscribeStatus.INVALID_START_BLOCK, f"no block has number {start}; leave it out for what comes"
        )
    if end is not None and end > NUMBER_MAX:
        raise PlanRefused(SubscribeStatus.INVALID_END_BLOCK, f"no block has number {end}; leave it out for no end")
    if start is not None and end is not None and end < start:
        raise PlanRefused(SubscribeStatus.INVALID_END_BLOCK, f"the end {end} is below the start {start}")
    # Without a start, the subscription begins with the next new block, or at the first block if it has an end.
    newest = -1 if last is None else last
    begins = start if start is not None else newest + 1 if end is None else first
    if start is not None and first is not None and start < first:
        raise PlanRefused(SubscribeStatus.NOT_AVAILABLE, f"block {start} is not here; the first one is {first}")
    if begins is not None and end is not None and begins > end:
        raise PlanRefused(SubscribeStatus.NOT_AVAILABLE, f"no block up to {end} is here; the first one is {first}")
    for wanted in (begins, end if begins is None else None):
        if wanted is not None and wanted > newest + ahead_max:
            reason = f"block {wanted} is more than {ahead_max} blocks above the last one"
            raise PlanRefused(SubscribeStatus.NOT_AVAILABLE, f"{reason}; ask again when it is nearer")
    if start is None and last is None:
        begins = None
    return SubscriptionPlan(begins, end, request.early)
