"""Goal: a subscriber gets the blocks it asked for, each once, whole and in order (S1 to S8, S11, S12).

Method: the service on a node with real storage; blocks are persisted by the test, subscribers are workers of the node.
"""

from __future__ import annotations

import pytest

from block_node.protocol import Piece
from block_node.protocol_reading import SubscribedItems, SubscribeStatus
from block_node.read.subscribe import CHUNK_BYTES
from ockam.actors.message import Origin
from tests.block_node.persist.block_samples import items_of
from tests.block_node.read.conftest import Open
from tests.block_node.read.probe import check_blocks, persist

SUCCESS, NOT_AVAILABLE = SubscribeStatus.SUCCESS, SubscribeStatus.NOT_AVAILABLE


async def test_s1_live_from_the_next_block_on(opened: Open) -> None:
    async with opened() as (subscribers, _):
        made = subscribers.made
        await persist(made, 0, 1)
        attempt = made.send(2, items_of(2))
        subscriber = subscribers.subscribe(None, None)
        await subscriber.wait_subscribed()
        made.verify(2, attempt, items_of(2))
        await persist(made, 3)
        await subscriber.wait_ends(2)
        check_blocks(subscriber, [2, 3])


async def test_s1_live_on_an_empty_node_begins_with_what_comes(opened: Open) -> None:
    async with opened() as (subscribers, _):
        subscriber = subscribers.subscribe(None, None)
        await subscriber.wait_subscribed()
        await persist(subscribers.made, 17, 18)
        await subscriber.wait_ends(2)
        check_blocks(subscriber, [17, 18])


async def test_s1_joining_early_in_the_middle_of_a_block_waits_for_the_next_header(opened: Open) -> None:
    """The block that it joined in comes whole when it is stored; the next one comes while it is received."""
    async with opened() as (subscribers, _):
        made = subscribers.made
        await persist(made, 0)
        attempt = made.begin(1)
        subscriber = subscribers.subscribe(None, None, early=True)
        await subscriber.wait_subscribed()
        made.add(1, attempt, items_of(1))
        assert subscriber.of(SubscribedItems) == []
        made.finish(1, attempt)
        await subscriber.wait_ends(1)
        attempt = made.begin(2)
        made.add(2, attempt, items_of(2))
        assert [each.verified for each in subscriber.of(SubscribedItems)] == [True, False, False, False]
        made.finish(2, attempt)
        await subscriber.wait_ends(2)
        assert subscriber.blocks() == {1: items_of(1), 2: items_of(2)}


async def test_s2_a_closed_range(opened: Open) -> None:
    async with opened() as (subscribers, _):
        await persist(subscribers.made, *range(10))
        for start, end in ((2, 5), (0, 9), (4, 4)):
            subscriber = subscribers.subscribe(start, end)
            assert await subscriber.wait_status() is SUCCESS
            check_blocks(subscriber, list(range(start, end + 1)))


async def test_s3_from_the_first_available_to_an_end(opened: Open) -> None:
    async with opened() as (subscribers, _):
        early = subscribers.subscribe(None, 8)
        await persist(subscribers.made, 6, 7, 8, 9)
        late = subscribers.subscribe(None, 8)
        for subscriber in (early, late):
            assert await subscriber.wait_status() is SUCCESS
            check_blocks(subscriber, [6, 7, 8])


async def test_s3_the_first_available_turns_out_to_be_above_the_end(opened: Open) -> None:
    async with opened() as (subscribers, _):
        subscriber = subscribers.subscribe(None, 3)
        await persist(subscribers.made, 6)
        assert await subscriber.wait_status() is NOT_AVAILABLE
        assert subscriber.ends() == []


async def test_s4_history_then_live_without_gap_or_repetition(opened: Open) -> None:
    """Blocks are persisted at every moment of the way from the first page of history to the end."""
    async with opened() as (subscribers, _):
        made = subscribers.made
        await persist(made, *range(30))
        subscriber = subscribers.subscribe(3, None, window_bytes=64 * 1024)
        for number in range(30, 60):
            await persist(made, number)
        await subscriber.wait_ends(57)
        check_blocks(subscriber, list(range(3, 60)))


@pytest.mark.parametrize("order", [[3, 2, 1], [2, 3, 1], [1, 3, 2]])
async def test_s4_blocks_that_are_stored_out_of_order_are_sent_in_order(opened: Open, order: list[int]) -> None:
    """Backfill fills holes in any order; nothing is sent across a hole, and nothing twice."""
    async with opened() as (subscribers, _):
        await persist(subscribers.made, 0)
        subscriber = subscribers.subscribe(0, None)
        for number in order:
            await persist(subscribers.made, number)
        await subscriber.wait_ends(4)
        check_blocks(subscriber, [0, 1, 2, 3])


async def test_s5_a_start_in_the_future_waits(opened: Open) -> None:
    async with opened() as (subscribers, _):
        await persist(subscribers.made, 0)
        alone, batch = subscribers.subscribe(3, None), subscribers.subscribe(2, 4)
        await alone.wait_subscribed()
        for number in range(1, 5):
            await persist(subscribers.made, number)
        assert await batch.wait_status() is SUCCESS
        await alone.wait_ends(2)
        check_blocks(alone, [3, 4])
        check_blocks(batch, [2, 3, 4])


async def test_s6_what_is_not_available_is_refused_at_once(opened: Open) -> None:
    async with opened(ahead_blocks_max=10) as (subscribers, _):
        await persist(subscribers.made, 5, 6)
        for start, end in ((4, 6), (4, None), (17, None), (None, 4)):
            subscriber = subscribers.subscribe(start, end)
            assert await subscriber.wait_status() is NOT_AVAILABLE
            assert len(subscriber.probe.seen) == 1
        assert subscribers.service.statistics().sessions == 0


async def test_s7_the_longest_duration_ends_with_success(opened: Open) -> None:
    async with opened(duration_s_max=60.0) as (subscribers, clock):
        await persist(subscribers.made, 0)
        subscriber = subscribers.subscribe(0, None)
        await subscriber.wait_ends(1)
        clock.now_s += 59.0
        assert subscriber.status is None
        clock.now_s += 1.0
        assert await subscriber.wait_status() is SUCCESS
        check_blocks(subscriber, [0])


@pytest.mark.parametrize(
    ("start", "end", "status"),
    [
        (2**64 - 1, None, SubscribeStatus.INVALID_START_BLOCK),
        (0, 2**64 - 1, SubscribeStatus.INVALID_END_BLOCK),
        (5, 4, SubscribeStatus.INVALID_END_BLOCK),
    ],
)
async def test_s8_numbers_that_cannot_be(opened: Open, start: int, end: int | None, status: SubscribeStatus) -> None:
    async with opened() as (subscribers, _):
        assert await subscribers.subscribe(start, end).wait_status() is status


async def test_s11_large_blocks_come_in_messages_that_the_way_back_bears(opened: Open) -> None:
    items = [b"a" * 10, b"b" * (3 * CHUNK_BYTES), *[b"c" * 1_000] * 500]
    async with opened() as (subscribers, _):
        made = subscribers.made
        made.persist(0, items)
        await made.persisted(1)
        for frame_bytes_max in (16 * 1024 * 1024, 65_000):
            origin = Origin("tcp", frame_bytes_max=frame_bytes_max)
            subscriber = subscribers.subscribe(0, 0, origin=origin)
            assert await subscriber.wait_status() is SUCCESS
            assert subscriber.blocks() == {0: items}
            sizes = [sum(map(len, each.items)) for each in subscriber.of(SubscribedItems)]
            assert max(sizes) <= min(CHUNK_BYTES, frame_bytes_max)
            assert {each.piece for each in subscriber.of(SubscribedItems)} == set(Piece)


async def test_s12_history_has_the_same_items_as_were_published(opened: Open) -> None:
    async with opened() as (subscribers, _):
        made = subscribers.made
        live = subscribers.subscribe(None, None)
        await live.wait_subscribed()
        await persist(made, 0, 1)
        await live.wait_ends(2)
        history = subscribers.subscribe(0, 1)
        assert await history.wait_status() is SUCCESS
        check_blocks(live, [0, 1])
        check_blocks(history, [0, 1])
