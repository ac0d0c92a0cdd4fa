"""Goal: calls come when they are due, in order, and thousands that wait need one task. Method: a clock that leaps."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from ockam.actors.node import Node


@given(delays_s=st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), max_size=30), random=st.random_module())
def test_calls_come_when_they_are_due_and_in_order(delays_s: list[float], random: object) -> None:
    called: list[tuple[float, int]] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            node = Node(nursery)
            began_s = trio.current_time()

            def call(number: int) -> None:
                called.append((trio.current_time() - began_s, number))

            for number, delay_s in enumerate(delays_s):
                node.call_later(delay_s, partial(call, number))
            assert called == []
            assert len(nursery.child_tasks) <= 1

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert called == sorted((delay_s, number) for number, delay_s in enumerate(delays_s))


async def test_an_earlier_call_does_not_wait_for_a_later_one(autojump_clock: MockClock) -> None:
    called: list[str] = []
    async with trio.open_nursery() as nursery:
        node = Node(nursery)
        node.call_later(100, partial(called.append, "late"))
        await trio.sleep(1)
        node.call_later(1, partial(called.append, "early"))
        await trio.sleep(2)
        assert called == ["early"]
        # What is called may set the next one, also for at once, and others get their turn.
        node.call_later(0, lambda: node.call_later(0, partial(called.append, "next")))
        await trio.sleep(0.1)
        assert called == ["early", "next"]
    assert called == ["early", "next", "late"]


async def test_calls_that_wait_end_with_the_node(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        node = Node(nursery)
        node.call_later(100, partial(pytest.fail, "called"))
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
