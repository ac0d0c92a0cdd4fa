"""Partitions are read side by side, by the time of their messages, whatever their pages hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardinal_streams.application import Application
from cardinal_streams.consume.consuming import consume
from cardinal_streams.limits import ConsumerLimits, ReassemblyLimits
from cardinal_streams.produce.publishing import ChainBlock, publish
from cardinal_streams.transports.partition_merge import PartitionMerge
from cardinal_streams.transports.transport import Delivery
from tests.cardinal_streams.chains import EVERYTHING, served_transport
from tests.cardinal_streams.helpers import payload
from tests.cardinal_streams.world import GENESIS


def deliveries(topic: str, *offsets: int) -> list[Delivery]:
    return [Delivery(topic, 0, offset, b"", b"") for offset in offsets]


def dealt(found: Sequence[Delivery]) -> list[str]:
    return [f"{each.topic}{each.offset}" for each in found]


def test_the_oldest_come_first() -> None:
    merge = PartitionMerge("ab", slack_us=0)
    merge.put("a", deliveries("a", 0, 1, 2), [10, 40, 50], at_end=True)
    merge.put("b", deliveries("b", 0, 1, 2), [20, 30, 60], at_end=True)
    assert dealt(merge.take(100)) == ["a0", "b0", "b1", "a1", "a2", "b2"]


def test_with_slack_a_part_is_dealt_in_runs() -> None:
    merge = PartitionMerge("ab", slack_us=30)
    merge.put("a", deliveries("a", 0, 1, 2), [10, 40, 90], at_end=True)
    merge.put("b", deliveries("b", 0), [20], at_end=True)
    assert dealt(merge.take(100)) == ["a0", "a1", "b0", "a2"]


def test_a_part_that_may_have_older_ones_is_waited_for() -> None:
    merge = PartitionMerge("ab")
    merge.put("a", deliveries("a", 0), [10], at_end=True)
    assert merge.take(100) == []
    merge.put("b", [], [], at_end=True)
    assert dealt(merge.take(100)) == ["a0"]
    merge.put("a", deliveries("a", 1), [20], at_end=False)
    assert dealt(merge.take(100)) == ["a1"]
    merge.put("b", deliveries("b", 0), [15], at_end=True)
    assert merge.take(100) == []


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=30), min_size=1, max_size=4),
    st.integers(1, 7),
    st.integers(0, 20),
)
def test_everything_is_dealt_once_and_in_the_order_of_its_part(
    parts: list[list[tuple[int, bool]]], most: int, slack_us: int
) -> None:
    """Whatever the clock did, and however the pages are cut."""
    merge = PartitionMerge(range(len(parts)), slack_us)
    found: list[Delivery] = []
    pages: list[list[list[tuple[int, int]]]] = []
    for part in parts:
        cut: list[list[tuple[int, int]]] = [[]]
        for offset, (time_us, new_page) in enumerate(part):
            if new_page:
                cut.append([])
            cut[-1].append((offset, time_us))
        pages.append(cut)
    while True:
        while taken := merge.take(most):
            assert len(taken) <= most
            found += taken
        waited = [key for key, cut in enumerate(pages) if cut and not merge.left(key)]
        if not waited:
            break
        for key in waited:
            page = pages[key].pop(0)
            times_us = [time_us for _, time_us in page]
            merge.put(key, deliveries(f"p{key}:", *(o for o, _ in page)), times_us, at_end=not pages[key])
    for key, part in enumerate(parts):
        assert [each.offset for each in found if each.topic == f"p{key}:"] == list(range(len(part)))


@pytest.mark.slow
async def test_a_consumer_that_catches_up_holds_few_blocks(tmp_path: Path) -> None:
    """Goal: partitions with few and with many messages of a block are read at one pace, so that little is held.
    Method: a consumer that may hold no more than 300 incomplete blocks reads 2,000, of which most messages are on one
    topic. Page by page in turn, it would have 1,000 Batch messages before the first blocks' last values."""
    limits = ConsumerLimits(reassembly=ReassemblyLimits(incomplete_max=300))
    application = Application("few", "default", EVERYTHING.prefixes, reorg_threshold=4, limits=limits)
    blocks = []
    for number in range(1, 2_001):
        values = {f"a/{number}/{index}": b"" for index in range(15)}
        parent = "g" if number == 1 else f"x{number - 1}"
        blocks.append(ChainBlock(payload(f"x{number}", parent, number, updates=values | {f"b/{number}": b""})))
    async with served_transport(tmp_path, partitions=1) as (_, transport):
        async with publish(application, transport, redundant=False) as publisher:
            for at in range(0, len(blocks), 50):
                await publisher.send(blocks[at : at + 50])
        added = 0
        events: list[object] = []
        async with consume(
            application, transport, checkpoint=GENESIS, stop_at_end=True, on_event=events.append
        ) as updates:
            async for update in updates:
                added += len(update.added)
                update.done()
    assert events == []
    assert added == len(blocks)
