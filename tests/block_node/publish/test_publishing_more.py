"""Goal: the acceptance behaviours of publishing, P23 to P30 (facts/block_node.md §6.2): watermarks, starts,
back-pressure and ends out of place.

Method: as in test_publishing.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from block_node.blocks.items import ItemKind, make_item
from block_node.events import BackfilledBlockNotification, BlockOrigin, ItemsReceived, PersistedNotification
from block_node.persist.plugin import Persistence
from block_node.persist.store import BlockRetention
from block_node.protocol import (
    Acknowledgement,
    Behind,
    DuplicateBlock,
    PublishStatus,
    ResendBlock,
    SessionOpened,
    SkipBlock,
    StreamEnded,
)
from block_node.publish.block_machine import PublishLimits
from ockam.actors.address import local
from tests.block_node.publish.samples import PATIENCE_S, Bench, Publisher, bench, chain_of

TRANSACTION = make_item(ItemKind.SIGNED_TRANSACTION, bytes(100))


def backfill(world: Bench, number: int) -> None:
    items = list(chain_of(number + 1)[number].items)
    world.block_node.facility.publish(BackfilledBlockNotification(number, items, sum(map(len, items))))


async def test_p23_what_is_persisted_already_changes_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        publisher = await world.publisher()
        for block in chain_of(3):
            publisher.block(block)
        await publisher.wait_for(Acknowledgement(2))
        for number in (0, 1, 2):
            for succeeded in (True, False):
                world.block_node.facility.publish(PersistedNotification(number, succeeded, BlockOrigin.HISTORY))
        await world.settle()
        assert not publisher.told
        assert world.publishing.machine.last_block == 2


@pytest.mark.parametrize("holes", [1, 2])
async def test_p24_no_acknowledgement_passes_a_block_on_its_way(tmp_path: Path, holes: int) -> None:
    """The lower blocks are on their way again, for the second time, while those above are complete."""
    async with bench(tmp_path) as world:
        leaving = [await world.publisher() for _ in range(holes)]
        steady, late = await world.publisher(), await world.publisher()
        blocks = chain_of(4)
        for number, publisher in enumerate(leaving):
            publisher.header(number)
        for block in blocks[holes:]:
            steady.block(block)
        for publisher in leaving:
            publisher.end_stream()
        assert await steady.expect(ResendBlock) == ResendBlock(0)
        for number in range(holes):
            (steady, late)[number].items(blocks[number].items[:3])
        await world.settle()
        assert not steady.told
        for number in reversed(range(holes)):
            await world.settle()
            assert Acknowledgement(number) not in steady.told
            (steady, late)[number].items(blocks[number].items[3:])
            (steady, late)[number].end_block(number)
        acknowledged = [0]
        while acknowledged[-1] < 3:
            acknowledged.append((await steady.expect(Acknowledgement)).block_number)
        assert acknowledged == sorted(acknowledged)
        assert world.stored() == [0, 1, 2, 3]


async def test_p25_a_block_that_stalls_and_comes_by_backfill_is_done(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        stalling, steady = await world.publisher(), await world.publisher()
        blocks = chain_of(4)
        stalling.items(blocks[0].items[:4])
        for block in blocks[1:3]:
            steady.block(block)
        backfill(world, 0)
        assert await stalling.expect(SkipBlock) == SkipBlock(0)
        stalling.items(blocks[0].items[4:])
        stalling.end_block(0)
        stalling.block(blocks[3])
        await stalling.wait_for(Acknowledgement(3))
        await steady.wait_for(Acknowledgement(3))
        assert world.stored() == [0, 1, 2, 3]


async def test_p25_blocks_by_backfill_count_like_others(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        publisher = await world.publisher()
        for number in (0, 2, 1, 1):
            backfill(world, number)
        await publisher.wait_for(Acknowledgement(1))
        blocks = chain_of(3)
        publisher.block(blocks[1])
        assert await publisher.expect(DuplicateBlock) == DuplicateBlock(1, 1)
        publisher.block(blocks[2])
        assert await publisher.expect(Acknowledgement) == Acknowledgement(2)


@pytest.mark.parametrize(
    ("first_block", "offered", "answer"),
    [
        (0, 0, None),
        (0, 1, Behind(1, None, 0)),
        (5, 5, None),
        (5, 4, None),
        (5, 0, None),
        (5, 6, Behind(6, None, 5)),
    ],
)
async def test_p26_an_empty_node_begins_where_it_is_told_or_lower(
    tmp_path: Path, first_block: int, offered: int, answer: Behind | None
) -> None:
    async with bench(tmp_path, first_block=first_block) as world:
        publisher, other = await world.publisher(), await world.publisher()
        publisher.header(offered)
        await world.settle()
        assert list(publisher.told) == ([] if answer is None else [answer])
        if answer is None:
            other.header(offered)
            assert await other.expect(SkipBlock) == SkipBlock(offered)
            other.header(offered + 2)
            assert await other.expect(Behind) == Behind(offered + 2, None, offered + 1), "the chain goes on from there"


async def test_p26_a_beginning_that_came_to_nothing_is_none(tmp_path: Path) -> None:
    async with bench(tmp_path, first_block=5) as world:
        publisher, other = await world.publisher(), await world.publisher()
        publisher.header(2)
        publisher.end_stream()
        other.header(6)
        assert await other.expect(Behind) == Behind(6, None, 5)


@pytest.mark.parametrize("start", [3, 2, 0])
async def test_p26_the_first_block_may_be_any_and_the_chain_goes_on_behind_it(tmp_path: Path, start: int) -> None:
    """Below the first block only while there is none; what the first one continues is not known."""
    async with bench(tmp_path, first_block=3) as world:
        publisher = await world.publisher()
        blocks = chain_of(6)
        for block in blocks[start:5]:
            publisher.block(block)
        await publisher.wait_for(Acknowledgement(4))
        publisher.block(blocks[2])
        assert await publisher.expect(DuplicateBlock) == DuplicateBlock(2, 4)
    async with bench(tmp_path, first_block=3) as world:
        publisher = Publisher(world.node)
        assert await publisher.open() == SessionOpened(b"", 4, 5)
        publisher.block(blocks[5])
        assert await publisher.expect(Acknowledgement) == Acknowledgement(5)


async def test_p26_a_first_block_above_what_is_stored_leaves_a_hole(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        publisher = await world.publisher()
        publisher.block(chain_of(1)[0])
        await publisher.expect(Acknowledgement)
    async with bench(tmp_path, first_block=3) as world:
        publisher = Publisher(world.node)
        assert await publisher.open() == SessionOpened(b"", 0, 3)
        publisher.header(0)
        assert await publisher.expect(DuplicateBlock) == DuplicateBlock(0, 0)
        publisher.block(chain_of(4)[3])
        assert await publisher.expect(Acknowledgement) == Acknowledgement(3)
        assert world.stored() == [0, 3]


async def test_p27_a_start_goes_on_behind_what_was_ever_stored(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        assert await Publisher(world.node).open() == SessionOpened(b"", None, 0)
    async with bench(tmp_path, retention=BlockRetention(blocks=2)) as world:
        publisher = await world.publisher()
        for block in chain_of(5):
            publisher.block(block)
        await publisher.wait_for(Acknowledgement(4))
        await world.settle()
        assert world.stored() == [3, 4]
    async with bench(tmp_path) as world:
        publisher = Publisher(world.node)
        assert await publisher.open() == SessionOpened(b"", 4, 5)
        publisher.block(chain_of(6)[5])
        assert await publisher.expect(Acknowledgement) == Acknowledgement(5)


async def test_p28_a_publisher_that_sends_ahead_is_held_until_there_is_room(tmp_path: Path) -> None:
    """In place of a message budget: what waits is bounded by bytes, and only the lowest block is read on."""
    limits = PublishLimits(queued_bytes_max=4_000)
    async with bench(tmp_path, limits) as world:
        slow, eager = await world.publisher(), await world.publisher()
        blocks = chain_of(3)
        slow.items(blocks[0].items[:2])
        eager.block(blocks[1], 1)
        eager.block(blocks[2], 1)
        mailbox = world.node.find_mailbox(eager.to) if eager.to is not None else None
        assert mailbox is not None
        for _ in range(200):
            eager.header(2)
        await world.settle()
        assert len(mailbox) > 100, "it is not read"
        assert world.publishing.statistics().in_flight.queued_bytes < 6_000
        slow.items(blocks[0].items[2:])
        slow.end_block(0)
        await slow.wait_for(Acknowledgement(1))
        await world.settle()
        assert len(mailbox) == 0


async def test_p28_a_plugin_without_room_holds_the_publishers(tmp_path: Path) -> None:
    limits = PublishLimits(queued_bytes_max=20_000)
    async with bench(tmp_path, limits) as world:
        publisher = await world.publisher()
        persistence = world.node.find_worker(local("block_persistence"))
        assert isinstance(persistence, Persistence)
        persistence.inlet.pause()
        assert publisher.to is not None
        block = chain_of(1)[0]
        publisher.items(block.items[:1])
        for _ in range(2_000):
            publisher.items([TRANSACTION])
        await world.settle()
        mailbox = world.node.find_mailbox(publisher.to)
        assert mailbox is not None
        assert len(mailbox) > 500
        assert world.publishing.statistics().in_flight.queued_bytes < 21_000
        persistence.inlet.resume()
        publisher.block(block)
        assert await publisher.expect(Acknowledgement) == Acknowledgement(0)


async def test_the_lowest_block_goes_on_after_a_slice_that_ended_with_its_last_items(tmp_path: Path) -> None:
    """The node read no more from the publisher that all others waited for, and gave its block more time for ever: found
    by the simulation of consensus nodes."""
    lowest, higher = chain_of(2)
    async with bench(tmp_path, PublishLimits(slice_items_max=4, ahead_blocks_max=2)) as world:
        first, second = await world.publisher(), await world.publisher()
        first.items(lowest.items[:4])
        await world.settle()
        # The most blocks are in flight, so only the lowest one is read.
        second.block(higher)
        await world.settle()
        first.items(lowest.items[4:])
        first.end_block(0)
        await first.wait_for(Acknowledgement(1))


async def test_a_publisher_that_is_not_read_is_not_asked_again(tmp_path: Path) -> None:
    """It may be sending what the node wants; the node just does not look."""
    lowest, higher, highest = chain_of(3)
    limits = PublishLimits(ahead_blocks_max=3)
    async with bench(tmp_path, limits) as world:
        first, second, third = [await world.publisher() for _ in range(3)]
        second.header(5)
        await second.expect(Behind)
        first.items(lowest.items[:4])
        await world.settle()
        second.block(higher)
        await world.settle()
        # The most blocks are in flight with this one, so that the second publisher is not read.
        third.items(highest.items[:4])
        await world.settle()
        second.header(3)
        await world.settle()
        assert [each.is_held for each in world.publishing.statistics().sessions] == [False, True, False]
        # As the clock does, after twice the time in which a silent publisher is asked again.
        machine, now_s = world.publishing.machine, trio.current_time()
        machine.tick(now_s + 2 * limits.resend_s, full_at=None)
        world.publishing.perform()
        await world.settle()
        assert not second.told
        first.items(lowest.items[4:])
        first.end_block(0)
        await second.wait_for(Acknowledgement(1))


async def test_p28_what_waited_goes_on_a_slice_at_a_time(tmp_path: Path) -> None:
    """Blocks that waited for a hole, and a mailbox that filled meanwhile, leave everybody else their turns."""
    limits = PublishLimits(slice_items_max=10, slice_bytes_max=1_000, stall_blocks_max=50)
    async with bench(tmp_path, limits) as world:
        slow, eager = await world.publisher(), await world.publisher()
        blocks = chain_of(12)
        slow.items(blocks[0].items[:1])
        for block in blocks[1:6]:
            eager.block(block)
        await world.settle()
        slow.items(blocks[0].items[1:])
        slow.end_block(0)
        for block in blocks[6:]:
            eager.block(block)
        seen = sum(len(event.items) for event in world.all_of(ItemsReceived))
        most = 0
        with trio.fail_after(PATIENCE_S):
            while world.publishing.machine.last_block != 11:
                await trio.lowlevel.checkpoint()
                now = sum(len(event.items) for event in world.all_of(ItemsReceived))
                most, seen = max(most, now - seen), now
        assert 0 < most <= 2 * (10 + len(blocks[0].items)), "of both publishers, a slice and a message"
        assert seen == sum(len(block.items) for block in blocks)


async def test_p28_a_publisher_that_may_go_on_for_two_reasons_goes_on_once(tmp_path: Path) -> None:
    """Its next slice is due, and before that the node lets all publishers go on, as it does at each tick."""
    async with bench(tmp_path, PublishLimits(slice_bytes_max=1_000)) as world:
        publisher = await world.publisher()
        (block,) = chain_of(1)
        with world.node.batch():
            publisher.items(block.items)
            publisher.end_block(0)
        assert world.publishing.statistics().sessions[0].is_held
        world.publishing.tick()
        await publisher.expect(Acknowledgement)
        await world.settle()
        assert not publisher.told


async def test_p28_a_publisher_that_waits_for_a_hole_gives_way_to_it(tmp_path: Path) -> None:
    """It is held with the higher block when the lower one loses its publisher; it must be able to send that one."""
    limits = PublishLimits(queued_bytes_max=4_000)
    async with bench(tmp_path, limits) as world:
        leaving, held = await world.publisher(), await world.publisher()
        blocks = chain_of(2)
        leaving.header(0)
        for _ in range(2):
            held.items(blocks[1].items[:1])
            held.items([TRANSACTION] * 30)
        await world.settle()
        leaving.end_stream()
        assert await held.expect(ResendBlock) == ResendBlock(0)
        for block in blocks:
            held.block(block)
        await held.wait_for(Acknowledgement(1))


async def test_p29_a_block_end_with_a_foreign_number_ends_the_block_on_its_way(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        publisher = await world.publisher()
        publisher.end_block(0)
        blocks = chain_of(2)
        for block in blocks:
            publisher.items(block.items)
            publisher.end_block(block.number + 7)
        publisher.end_block(1)
        await publisher.wait_for(Acknowledgement(1))
        await world.settle()
        assert not publisher.told


async def test_p30_an_ended_stream_takes_nothing_more(tmp_path: Path) -> None:
    """Far duplicates do not end a stream here; a request that is refused does."""
    async with bench(tmp_path) as world:
        publisher = await world.publisher()
        publisher.items([])
        assert (await publisher.expect(StreamEnded)).status is PublishStatus.INVALID_REQUEST
        dropped = world.node.statistics().dropped.get("unknown_address", 0)
        publisher.block(chain_of(1)[0])
        await world.settle()
        assert not publisher.told
        assert world.node.statistics().dropped["unknown_address"] > dropped
        assert world.stored() == []
        await publisher.open(b"another")
        publisher.block(chain_of(1)[0])
        assert await publisher.expect(Acknowledgement) == Acknowledgement(0)
