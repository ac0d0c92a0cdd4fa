"""Goal: the acceptance behaviours of publishing, P11 to P22 (facts/block_node.md §6.2): bad blocks, publishers that
fail or stall, and a disk that is full.

Method: as in test_publishing.py; time is virtual.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio.testing

from block_node.events import BackfilledBlockNotification, BlockOrigin, NodeFailure, VerificationNotification
from block_node.protocol import (
    PUBLISH,
    Acknowledgement,
    Behind,
    PublisherEndCode,
    PublishStatus,
    ResendBlock,
    SkipBlock,
    StreamEnded,
)
from block_node.publish.publish_machine import PublishMachine
from ockam.actors.message import Message, Origin
from ockam.quotas.memory import Holdings, PeerMemory
from tests.block_node.publish.samples import Publisher, bench, chain_of, spoilt


async def test_p11_a_bad_block_ends_its_publisher_and_others_are_asked(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        bad, other, idle = [await world.publisher() for _ in range(3)]
        block = chain_of(1)[0]
        bad.items(block.items[:2])
        other.block(block)
        assert await other.expect(SkipBlock) == SkipBlock(0)
        bad.items(spoilt(block)[3:])
        bad.end_block(0)
        ended = await bad.expect(StreamEnded)
        assert (ended.status, ended.last_block, ended.block_number) == (PublishStatus.BAD_BLOCK_PROOF, None, 0)
        assert await other.expect(ResendBlock) == ResendBlock(0)
        other.block(block)
        assert await other.expect(Acknowledgement) == Acknowledgement(0)
        assert await idle.expect(Acknowledgement) == Acknowledgement(0), "and nothing before it"


@pytest.mark.parametrize(
    "failure",
    [
        VerificationNotification(1, 0, BlockOrigin.BACKFILL, False, failure="cancelled", informational=True),
        VerificationNotification(1, 0, BlockOrigin.BACKFILL, False, failure="bad_root"),
        VerificationNotification(0, 1, BlockOrigin.PUBLISHER, False, failure="bad_root"),
        VerificationNotification(7, 3, BlockOrigin.PUBLISHER, False, failure="bad_root"),
        VerificationNotification(1, 99, BlockOrigin.PUBLISHER, False, failure="bad_root"),
    ],
    ids=["cancelled", "backfilled", "acknowledged", "not begun", "another attempt"],
)
async def test_p12_failures_that_are_not_a_publishers_change_nothing(
    tmp_path: Path, failure: VerificationNotification
) -> None:
    async with bench(tmp_path) as world:
        publisher = await world.publisher()
        first, second = chain_of(2)
        publisher.block(first)
        await publisher.expect(Acknowledgement)
        publisher.items(second.items[:3])
        world.block_node.facility.publish(failure)
        publisher.items(second.items[3:])
        publisher.end_block(1)
        assert await publisher.expect(Acknowledgement) == Acknowledgement(1)


@pytest.mark.parametrize("header", [b"\x0a\x05\x18\x01", b"\x0a\x02\x18\x80", b"\x0a\x01\x07", b"\x0a"])
async def test_p13_a_header_that_cannot_be_decoded_ends_the_stream(tmp_path: Path, header: bytes) -> None:
    async with bench(tmp_path) as world:
        publisher = await world.publisher()
        publisher.items([header])
        assert (await publisher.expect(StreamEnded)).status is PublishStatus.INVALID_REQUEST
        assert not world.node.is_registered(publisher.to)  # type: ignore[arg-type]


async def test_p14_an_empty_set_is_no_request(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        publisher = await world.publisher()
        publisher.items([])
        assert (await publisher.expect(StreamEnded)).status is PublishStatus.INVALID_REQUEST


async def test_p14_what_is_none_of_the_requests_is_an_error(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        publisher = await world.publisher()
        assert publisher.to is not None
        world.node.send(Message((publisher.to,), (publisher.address,), PUBLISH.tag + b"\x01\x09"))
        assert (await publisher.expect(StreamEnded)).status is PublishStatus.ERROR


async def test_p15_an_empty_header_is_an_error(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        publisher = await world.publisher()
        publisher.items([b"\x0a\x00"])
        assert (await publisher.expect(StreamEnded)).status is PublishStatus.ERROR


async def test_p16_the_header_of_the_same_block_begins_it_anew(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        publisher, other = await world.publisher(), await world.publisher()
        block = chain_of(1)[0]
        other.header(0)
        other.header(0)
        publisher.header(0)
        assert await publisher.expect(SkipBlock) == SkipBlock(0)
        other.items(block.items[:4])
        other.items(block.items[:4])
        other.items(block.items[4:])
        other.end_block(0)
        assert await other.expect(Acknowledgement) == Acknowledgement(0)
        assert await publisher.expect(Acknowledgement) == Acknowledgement(0), "nobody was asked to resend"


async def test_p16_the_header_of_another_block_gives_up_the_one_before(tmp_path: Path) -> None:
    """Block 0 is missing then, so that 1 is too early; the specification says behind, the real node takes it."""
    async with bench(tmp_path) as world:
        publisher = await world.publisher()
        blocks = chain_of(2)
        publisher.items(blocks[0].items[:4])
        publisher.block(blocks[1])
        assert await publisher.expect(Behind) == Behind(1, None, 0)
        publisher.block(blocks[0])
        publisher.block(blocks[1])
        assert await publisher.wait_for(Acknowledgement(1)) == [Acknowledgement(0)]


async def test_p16_a_header_that_somebody_else_sends_is_skipped_and_the_hole_is_offered(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        first, second = await world.publisher(), await world.publisher()
        blocks = chain_of(2)
        first.items(blocks[0].items[:2])
        second.items(blocks[1].items[:2])
        first.header(1)
        assert await second.expect(ResendBlock) == ResendBlock(0)
        assert await first.expect(SkipBlock) == SkipBlock(1)
        second.items(blocks[1].items[2:])
        second.end_block(1)
        second.block(blocks[0])
        assert await second.wait_for(Acknowledgement(1)) == [Acknowledgement(0)]


async def test_p17_a_runtime_error_ends_that_stream_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = PublishMachine.offer

    def failing(self: PublishMachine, publisher: Any, number: int, now_s: float) -> Any:
        if number == 7:
            raise RuntimeError("block 7")
        return offer(self, publisher, number, now_s)

    monkeypatch.setattr(PublishMachine, "offer", failing)
    async with bench(tmp_path) as world:
        unlucky, other = await world.publisher(), await world.publisher()
        unlucky.header(0)
        other.header(0)
        assert await other.expect(SkipBlock) == SkipBlock(0)
        unlucky.header(7)
        assert (await unlucky.expect(StreamEnded)).status is PublishStatus.ERROR
        assert await other.expect(ResendBlock) == ResendBlock(0)
        other.block(chain_of(1)[0])
        assert await other.expect(Acknowledgement) == Acknowledgement(0)


@pytest.mark.parametrize("way", ["reset", "vanish"])
async def test_p18_a_partial_block_leaves_nothing_behind(
    tmp_path: Path, way: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with bench(tmp_path) as world:
        first, second, idle = [await world.publisher() for _ in range(3)]
        blocks = chain_of(2)
        first.items(blocks[0].items[:5])
        if way == "reset":
            first.end_stream(PublisherEndCode.RESET)
        else:
            first.vanish()
        with trio.fail_after(10):
            while world.publishing.machine.publishers == 3:
                await trio.sleep(0.1)
        for block in blocks:
            second.block(block)
            for publisher in (second, idle):
                assert await publisher.expect(Acknowledgement) == Acknowledgement(block.number)


async def test_a_publisher_with_a_secure_channel_leaves_with_its_connection(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The channel, with which the way back begins, is there for a minute after its connection. Its publisher is asked
    for nothing any more; one whose channel came through another node may still come back."""
    async with bench(tmp_path) as world:
        staying, gone, far = [await world.publisher() for _ in range(3)]
        for publisher, hops in ((gone, 0), (far, 1)):
            holdings = Holdings(PeerMemory(), lambda: None, lambda: None)
            publisher.origin = Origin("channel", hops=hops, holdings=holdings)
        far.header(5)
        assert isinstance(await far.next(), Behind)
        gone.items(chain_of(1)[0].items[:5])
        staying.header(0)
        assert await staying.expect(SkipBlock) == SkipBlock(0)
        for publisher in (gone, far):
            publisher.origin.holdings.end()
        with trio.fail_after(5):
            assert await staying.expect(ResendBlock) == ResendBlock(0)
        assert world.publishing.machine.publishers == 2


async def test_p19_a_block_that_a_publisher_left_is_filled_by_the_next(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        leaving, staying = await world.publisher(), await world.publisher()
        blocks = chain_of(6)
        for block in blocks[:3]:
            leaving.block(block)
        await staying.wait_for(Acknowledgement(2))
        leaving.items(blocks[3].items[:2])
        staying.block(blocks[4])
        leaving.end_stream(PublisherEndCode.RESET)
        assert await staying.expect(ResendBlock) == ResendBlock(3)
        for block in (blocks[3], blocks[5]):
            staying.block(block)
        before = await staying.wait_for(Acknowledgement(5))
        assert before in ([Acknowledgement(3), Acknowledgement(4)], [Acknowledgement(4)])
        assert world.stored() == [0, 1, 2, 3, 4, 5]


async def test_p20_a_block_that_stalls_is_taken_and_no_acknowledgement_passes_it(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        silent, steady = await world.publisher(), await world.publisher()
        blocks = chain_of(9)
        for block in blocks[:2]:
            steady.block(block)
        await steady.wait_for(Acknowledgement(1))
        silent.header(2)
        for block in blocks[3:6]:
            steady.block(block)
        await world.settle()
        assert not steady.told
        steady.block(blocks[6])
        assert await steady.expect(ResendBlock) == ResendBlock(2)
        await silent.wait_for(Acknowledgement(1))
        ended = await silent.expect(StreamEnded)
        assert (ended.status, ended.block_number) == (PublishStatus.TIMEOUT, 2)
        steady.block(blocks[2])
        acknowledged = [response async for response in _until(steady, 6)]
        assert acknowledged[0] == 2
        assert acknowledged == sorted(acknowledged)
        for block in blocks[7:]:
            steady.block(block)
        await steady.wait_for(Acknowledgement(8))
        assert world.stored() == list(range(9))


async def _to_the_end(publisher: Publisher) -> AsyncIterator[StreamEnded]:
    """What ends its stream; what comes before is passed over."""
    while True:
        response = await publisher.next()
        if isinstance(response, StreamEnded):
            yield response
            return


async def _until(publisher: Publisher, block_number: int) -> AsyncIterator[int]:
    """The numbers acknowledged up to this one."""
    number = -1
    while number < block_number:
        number = (await publisher.expect(Acknowledgement)).block_number
        yield number


async def test_p21_two_blocks_beyond_is_no_stall_and_a_lone_publisher_has_a_deadline(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The real node never takes a block from a lone publisher; here the clock does."""
    async with bench(tmp_path) as world:
        slow, steady = await world.publisher(), await world.publisher()
        blocks = chain_of(4)
        slow.items(blocks[0].items[:2])
        for block in blocks[1:3]:
            steady.block(block)
        await trio.sleep(20)
        slow.items(blocks[0].items[2:])
        slow.end_block(0)
        assert (await steady.expect(Acknowledgement)).block_number == 0
        await steady.wait_for(Acknowledgement(2))
        steady.end_stream()
        slow.items(blocks[3].items[:2])
        await trio.sleep(40)
        await slow.wait_for(Acknowledgement(2))
        ended = await slow.expect(StreamEnded)
        assert (ended.status, ended.last_block, ended.block_number) == (PublishStatus.TIMEOUT, 2, 3)
        assert world.publishing.statistics().in_flight.expired == 1


async def test_p21_several_that_stall_are_all_ended(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        stalling = [await world.publisher() for _ in range(3)]
        gone, steady = await world.publisher(), await world.publisher()
        blocks = chain_of(8)
        for number, publisher in enumerate([*stalling, gone]):
            publisher.header(number)
        gone.end_stream()
        for block in blocks[3:7]:
            steady.block(block)
        await steady.wait_for(ResendBlock(0))
        for publisher in stalling:
            assert [ended.status async for ended in _to_the_end(publisher)] == [PublishStatus.TIMEOUT]
        for block in blocks[:3]:
            steady.block(block)
        await steady.wait_for(Acknowledgement(6))


async def test_p22_a_block_that_cannot_be_stored_ends_every_stream(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        sender, idle = await world.publisher(), await world.publisher()
        blocks = chain_of(3)
        sender.block(blocks[0])
        await sender.expect(Acknowledgement)
        await idle.expect(Acknowledgement)
        world.runner.full = True
        sender.block(blocks[1])
        sender.block(blocks[2])
        for publisher in (sender, idle):
            ended = await publisher.expect(StreamEnded)
            assert (ended.status, ended.last_block, ended.block_number) == (PublishStatus.PERSISTENCE_FAILED, 0, 1)
        await world.settle()
        assert world.all_of(NodeFailure)[0].persistence
        assert world.stored() == [0]
        world.runner.full = False
        assert (await idle.open(b"again")).next_block == 1
        for block in blocks[1:]:
            idle.block(block)
        await idle.wait_for(Acknowledgement(2))
        assert not sender.told


async def test_p22_a_backfilled_block_that_cannot_be_stored_ends_no_stream(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        publisher = await world.publisher()
        block = chain_of(1)[0]
        world.runner.full = True
        size_bytes = sum(map(len, block.items))
        world.block_node.facility.publish(BackfilledBlockNotification(0, list(block.items), size_bytes))
        await world.settle()
        assert not publisher.told
        world.runner.full = False
        publisher.block(block)
        assert await publisher.expect(Acknowledgement) == Acknowledgement(0)
