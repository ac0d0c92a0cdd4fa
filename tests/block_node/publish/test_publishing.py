"""Goal: the acceptance behaviours of publishing, P1 to P10 (facts/block_node.md §6.2), each test named after its
number.

Method: publishers send routed messages to a node on a real database. Where specs/block_publish.md differs from the real
block node, the specification's answer is expected (design.md §2): duplicates and blocks that are too high leave the
stream open.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from block_node.events import NewestBlockKnownToNetwork, PublisherStatus
from block_node.protocol import (
    Acknowledgement,
    Behind,
    DuplicateBlock,
    PublisherEndCode,
    SessionOpened,
    SkipBlock,
)
from tests.block_node.publish.samples import Bench, Publisher, bench, chain_of


async def publish(world: Bench, count: int) -> Publisher:
    """Blocks 0 to count - 1, acknowledged, by a publisher that stays."""
    publisher = await world.publisher()
    for block in chain_of(count):
        publisher.block(block)
    await publisher.wait_for(Acknowledgement(count - 1))
    return publisher


async def test_p1_a_block_is_acknowledged_once_and_the_stream_stays_open(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        publisher = await world.publisher()
        for block in chain_of(2):
            publisher.block(block)
            assert await publisher.expect(Acknowledgement) == Acknowledgement(block.number)
        await world.settle()
        assert not publisher.told
        assert world.stored() == [0, 1]


async def test_p2_everybody_gets_the_acknowledgement(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        publishers = [await world.publisher() for _ in range(3)]
        publishers[1].block(chain_of(1)[0])
        for publisher in publishers:
            assert await publisher.expect(Acknowledgement) == Acknowledgement(0)


async def test_p3_the_first_header_wins_and_who_comes_second_skips(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        first, second = await world.publisher(), await world.publisher()
        block, following = chain_of(2)
        first.items(block.items[:3])
        second.block(block)
        assert await second.expect(SkipBlock) == SkipBlock(0)
        first.items(block.items[3:])
        first.end_block(0)
        assert await first.expect(Acknowledgement) == Acknowledgement(0)
        assert await second.expect(Acknowledgement) == Acknowledgement(0)
        second.block(following)
        assert await second.expect(Acknowledgement) == Acknowledgement(1), "the stream stayed open"


@pytest.mark.parametrize("repeated", [3, 2], ids=["the last", "one before"])
async def test_p4_a_block_again_soon_after_is_a_duplicate_and_the_stream_stays_open(
    tmp_path: Path, repeated: int
) -> None:
    """The real node skips here, within 5 blocks; the specification has one answer for all duplicates."""
    async with bench(tmp_path) as world:
        publisher = await publish(world, 4)
        publisher.block(chain_of(4)[repeated])
        assert await publisher.expect(DuplicateBlock) == DuplicateBlock(repeated, 3)
        publisher.block(chain_of(5)[4])
        assert await publisher.expect(Acknowledgement) == Acknowledgement(4)


async def test_p5_an_old_block_is_a_duplicate_and_the_stream_stays_open(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        await publish(world, 20)
        late = Publisher(world.node)
        assert await late.open() == SessionOpened(b"", 19, 20)
        for number in (0, 19):
            late.block(chain_of(20)[number])
            assert await late.expect(DuplicateBlock) == DuplicateBlock(number, 19)
        late.block(chain_of(21)[20])
        assert await late.expect(Acknowledgement) == Acknowledgement(20)


async def test_p6_how_old_a_duplicate_is_makes_no_difference(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        publisher = await publish(world, 10)
        for distance in (4, 5, 6, 7, 9):
            publisher.header(9 - distance)
            assert await publisher.expect(DuplicateBlock) == DuplicateBlock(9 - distance, 9)


async def test_p7_a_block_that_is_too_high_is_behind_and_the_stream_stays_open(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        publisher = await world.publisher()
        blocks = chain_of(3)
        publisher.block(blocks[2])
        assert await publisher.expect(Behind) == Behind(2, None, 0)
        assert world.publishing.statistics().in_flight.blocks == 0
        publisher.block(blocks[0])
        assert await publisher.expect(Acknowledgement) == Acknowledgement(0)
        publisher.block(blocks[2])
        assert await publisher.expect(Behind) == Behind(2, 0, 1)
        publisher.block(blocks[1])
        assert await publisher.expect(Acknowledgement) == Acknowledgement(1)
        told = world.all_of(NewestBlockKnownToNetwork)
        assert told == [NewestBlockKnownToNetwork(2)] * 2, "at each offer that was too high, and not when it leaves"


@pytest.mark.parametrize("code", list(PublisherEndCode))
async def test_p8_the_end_of_a_stream_is_not_answered(tmp_path: Path, code: PublisherEndCode) -> None:
    async with bench(tmp_path) as world:
        publisher, other = await world.publisher(), await world.publisher()
        session = publisher.to
        assert session is not None
        publisher.end_stream(code)
        await world.settle()
        assert not publisher.told
        assert not world.node.is_registered(session)
        assert world.all_of(PublisherStatus)[-1] == PublisherStatus(1)
        other.block(chain_of(1)[0])
        assert await other.expect(Acknowledgement) == Acknowledgement(0)
        assert not publisher.told


@pytest.mark.parametrize(
    ("code", "latest", "notified"),
    [
        (PublisherEndCode.TOO_FAR_BEHIND, 9, [NewestBlockKnownToNetwork(9)]),
        (PublisherEndCode.TOO_FAR_BEHIND, 2, []),
        (PublisherEndCode.TOO_FAR_BEHIND, None, []),
        (PublisherEndCode.RESET, 9, []),
        (PublisherEndCode.ERROR, 9, []),
    ],
)
async def test_p9_who_is_too_far_ahead_says_what_the_network_knows(
    tmp_path: Path, code: PublisherEndCode, latest: int | None, notified: list[NewestBlockKnownToNetwork]
) -> None:
    async with bench(tmp_path) as world:
        publisher = await publish(world, 3)
        publisher.end_stream(code, 1, latest)
        await world.settle()
        assert world.all_of(NewestBlockKnownToNetwork) == notified


@pytest.mark.parametrize("code", list(PublisherEndCode))
async def test_p9_who_leaves_while_we_are_behind_leaves_us_to_catch_up(tmp_path: Path, code: PublisherEndCode) -> None:
    """The specification: if the publisher ends the stream, the node catches up from elsewhere to what was offered."""
    async with bench(tmp_path) as world:
        publisher = await publish(world, 3)
        publisher.header(8)
        assert await publisher.expect(Behind) == Behind(8, 2, 3)
        publisher.end_stream(code)
        await world.settle()
        assert world.all_of(NewestBlockKnownToNetwork) == [NewestBlockKnownToNetwork(8)]
        assert world.publishing.statistics().target_block == 8


async def test_p10_an_end_with_an_impossible_range_only_closes(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        publisher = await world.publisher()
        publisher.end_stream(PublisherEndCode.TOO_FAR_BEHIND, 9, 4)
        await world.settle()
        assert not publisher.told
        assert world.publishing.machine.publishers == 0
        assert not world.all_of(NewestBlockKnownToNetwork)
