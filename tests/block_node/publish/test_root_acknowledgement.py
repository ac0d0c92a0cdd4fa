"""Goal: an acknowledgement names the root under which a block is stored, and whose block it was.

Method: publishers on a whole block node; what is stored is read from the store, past the publishing.
"""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from block_node.events import BackfilledBlockNotification
from block_node.protocol import (
    PUBLISH,
    Acknowledgement,
    DurableBlock,
    OpenRootSession,
    RootAcknowledgement,
    SessionOpened,
    SkipBlock,
)
from block_node.publish.block_machine import NAMED_MAX, DurableRoots, named
from ockam.actors.address import local
from ockam.transport.wire_legacy import LEGACY
from tests.block_node.publish.samples import Bench, Publisher, bench, chain_of


async def publisher_of(world: Bench) -> Publisher:
    publisher = Publisher(world.node)
    publisher.send_to(local("block_publish"), OpenRootSession(b""))
    await publisher.expect(SessionOpened)
    return publisher


async def test_each_session_is_told_the_root_and_whether_the_block_is_its_own(tmp_path: Path) -> None:
    blocks = chain_of(2)
    async with bench(tmp_path) as world:
        sender, other, old = await publisher_of(world), await publisher_of(world), await world.publisher()
        for block in blocks:
            sender.block(block)
            for publisher, own in ((sender, True), (other, False)):
                told = await publisher.expect(RootAcknowledgement)
                assert told == RootAcknowledgement(block.number, [DurableBlock(block.number, block.root, own)])
            assert await old.expect(Acknowledgement) == Acknowledgement(block.number)
            place = world.block_node.store.newest
            assert place is not None
            assert place.root == block.root


async def test_a_block_that_came_in_another_way_is_not_the_sessions_own(tmp_path: Path) -> None:
    """Block 0 was begun by this very session, and is fetched from elsewhere meanwhile."""
    blocks = chain_of(2)
    async with bench(tmp_path) as world:
        sender = await publisher_of(world)
        sender.items(blocks[0].items[:3])
        await world.settle()
        size_bytes = sum(map(len, blocks[0].items))
        world.block_node.facility.publish(BackfilledBlockNotification(0, list(blocks[0].items), size_bytes))
        await sender.expect(SkipBlock)
        sender.block(blocks[1])
        for block, own in zip(blocks, (False, True), strict=True):
            told = await sender.expect(RootAcknowledgement)
            assert told == RootAcknowledgement(block.number, [DurableBlock(block.number, block.root, own)])


@given(st.lists(st.integers(0, 2 * NAMED_MAX), unique=True), st.integers(0, 2 * NAMED_MAX))
def test_the_roots_above_a_hole_are_bounded_and_the_lowest_stay(numbers: list[int], last: int) -> None:
    roots = DurableRoots()
    for number in numbers:
        roots.note(number, number.to_bytes(48), number % 3)
    kept = sorted(numbers)[:NAMED_MAX]
    told = named(roots.take(last), 1)
    assert told == [DurableBlock(each, each.to_bytes(48), each % 3 == 1) for each in kept if each <= last]
    assert list(roots.take(3 * NAMED_MAX)) == [each for each in kept if each > last]


def test_the_largest_acknowledgement_fits_into_the_smallest_frame() -> None:
    blocks = [DurableBlock(2**64 - 1, bytes(48), True)] * NAMED_MAX
    assert len(PUBLISH.encode_response(RootAcknowledgement(2**64 - 1, blocks))) < LEGACY.send_bytes_max / 2
