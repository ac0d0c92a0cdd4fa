"""Goal: each form of a subscription means what the facts say (S3, S5, S6, S8). Method: the pure plan, by cases."""

from __future__ import annotations

import pytest

from block_node.protocol_reading import Subscribe, SubscribeStatus
from block_node.read.feed import PlanRefused, SubscriptionPlan, plan_subscription

INVALID_START, INVALID_END = SubscribeStatus.INVALID_START_BLOCK, SubscribeStatus.INVALID_END_BLOCK
NOT_AVAILABLE = SubscribeStatus.NOT_AVAILABLE
TOO_HIGH = 2**63


def plan(start: int | None, end: int | None, first: int | None, last: int | None) -> SubscriptionPlan | SubscribeStatus:
    try:
        return plan_subscription(Subscribe(1, start, end, False, 0), first, last, 4_000)
    except PlanRefused as refused:
        return refused.status


@pytest.mark.parametrize(
    ("start", "end", "stored", "meant"),
    [
        (None, None, (5, 9), SubscriptionPlan(10, None, False)),
        (None, 7, (5, 9), SubscriptionPlan(5, 7, False)),
        (None, 12, (5, 9), SubscriptionPlan(5, 12, False)),
        (6, None, (5, 9), SubscriptionPlan(6, None, False)),
        (6, 8, (5, 9), SubscriptionPlan(6, 8, False)),
        (9, 9, (5, 9), SubscriptionPlan(9, 9, False)),
        (4_009, None, (5, 9), SubscriptionPlan(4_009, None, False)),
        (None, None, (None, None), SubscriptionPlan(None, None, False)),
        (0, None, (None, None), SubscriptionPlan(0, None, False)),
        (3, 3_000, (None, None), SubscriptionPlan(3, 3_000, False)),
        (None, 3_999, (None, None), SubscriptionPlan(None, 3_999, False)),
    ],
)
def test_s3_s5_what_is_meant(
    start: int | None, end: int | None, stored: tuple[int | None, int | None], meant: SubscriptionPlan
) -> None:
    assert plan(start, end, *stored) == meant


@pytest.mark.parametrize(
    ("start", "end", "stored", "status"),
    [
        (TOO_HIGH, None, (5, 9), INVALID_START),
        (2**64 - 1, TOO_HIGH, (5, 9), INVALID_START),
        (5, TOO_HIGH, (5, 9), INVALID_END),
        (7, 6, (5, 9), INVALID_END),
        (4, 8, (5, 9), NOT_AVAILABLE),
        (4, None, (5, 9), NOT_AVAILABLE),
        (None, 4, (5, 9), NOT_AVAILABLE),
        (4_010, None, (5, 9), NOT_AVAILABLE),
        (4_010, 4_020, (5, 9), NOT_AVAILABLE),
        (4_000, None, (None, None), NOT_AVAILABLE),
        (None, 4_000, (None, None), NOT_AVAILABLE),
    ],
)
def test_s6_s8_what_is_refused(
    start: int | None, end: int | None, stored: tuple[int | None, int | None], status: SubscribeStatus
) -> None:
    assert plan(start, end, *stored) is status
