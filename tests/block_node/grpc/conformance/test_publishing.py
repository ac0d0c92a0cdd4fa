"""Goal: the acceptance behaviours of publishing, P1 to P30 (facts/block_node.md §6.2), over gRPC and by every client
that can, with the answers of issue 33: those of the real block node, each test named after its number.

Method: the clients of `tests/block_node/grpc/foreign/peers.py` at a node on a real database, over real sockets. What a
number of the sheet says of a lower layer alone is shown by what a publisher sees of it. `lacks` has the reason where a
client cannot run a case.
"""

from __future__ import annotations

from typing import Any

import pytest

from block_node.events import (
    BlockOrigin,
    NewestBlockKnownToNetwork,
    NodeFailure,
    PersistedNotification,
    VerificationNotification,
)
from block_node.grpc.limits import GrpcLimits
from block_node.grpc.messages import NO_BLOCK
from block_node.publish.block_machine import PublishLimits
from block_node.publish.publish_machine import PublishMachine
from tests.block_node.grpc.conformance.meeting import SCHEMA_ONLY, Meet, lacks
from tests.block_node.grpc.http2.door import wait_until
from tests.block_node.publish.samples import chain_of, spoilt

SUCCESS, INVALID_REQUEST, ERROR, TIMEOUT, DUPLICATE, BAD_PROOF, NOT_PERSISTED = range(1, 8)
RESET, TOO_FAR_BEHIND = 2, 4


async def test_p1_a_block_is_acknowledged_once_and_the_stream_stays_open(meet: Meet) -> None:
    async with meet() as here:
        one = await here.publisher()
        for block in chain_of(2):
            await one.block(block)
            await one.expect("acknowledgement", block.number)
        assert here.world.stored() == [0, 1]


async def test_p2_everybody_gets_the_acknowledgement(meet: Meet) -> None:
    async with meet() as here:
        publishers = [await here.publisher() for _ in range(3)]
        await publishers[1].block(chain_of(1)[0])
        for one in publishers:
            await one.expect("acknowledgement", 0)


async def test_p3_the_first_header_wins_and_who_comes_second_skips(meet: Meet) -> None:
    async with meet() as here:
        first, second = await here.publisher(), await here.publisher()
        block, following = chain_of(2)
        await first.items(block.items[:3])
        await here.begun(1)
        await second.block(block)
        await second.expect("skip_block", 0)
        await first.items(block.items[3:])
        await first.end_block(0)
        for one in (first, second):
            await one.expect("acknowledgement", 0)
        await second.block(following)
        await second.expect("acknowledgement", 1)


async def test_p4_a_block_again_soon_after_is_skipped_and_the_stream_stays_open(meet: Meet) -> None:
    """hiero-block-node 1516. A new stream is told what is durable, since a consensus node goes on behind that."""
    async with meet() as here:
        await here.published(8)
        late = await here.publisher()
        await late.block(chain_of(8)[2])
        await late.expect("skip_block", 2)
        await late.expect("acknowledgement", 7)
        await late.block(chain_of(8)[7])
        await late.expect("skip_block", 7)
        await late.block(chain_of(9)[8])
        await late.expect("acknowledgement", 8)


async def test_p5_an_old_block_ends_the_stream_and_the_last_one_is_skipped(meet: Meet) -> None:
    """hiero-block-node 2828: the publisher reads the end before anything closes."""
    async with meet() as here:
        await here.published(20)
        late = await here.publisher()
        await late.header(0)
        await late.expect_end(DUPLICATE, 19, 0)
        again = await here.publisher()
        await again.block(chain_of(20)[19])
        await again.expect("skip_block", 19)


async def test_p6_a_block_just_beyond_the_window_ends_the_stream(meet: Meet) -> None:
    async with meet() as here:
        one = await here.published(8)
        await one.header(2)
        await one.expect("skip_block", 2)
        await one.header(1)
        await one.expect_end(DUPLICATE, 7, 1)


async def test_p7_a_block_that_is_too_high_is_behind_and_nothing_of_it_is_kept(meet: Meet) -> None:
    async with meet() as here:
        one = await here.published(2)
        await one.block(chain_of(4)[3])
        await one.expect("node_behind_publisher", 1)
        assert here.world.publishing.statistics().in_flight.blocks == 0
        for block in chain_of(4)[2:]:
            await one.block(block)
        await one.wait_for("acknowledgement", 3)


async def test_p8_the_end_of_a_stream_is_not_answered(meet: Meet) -> None:
    async with meet() as here:
        for code in (0, 1, RESET, 3, TOO_FAR_BEHIND, 99):
            one = await here.publisher()
            await one.items(chain_of(1)[0].items[:2])
            await one.end_stream(code)
            assert await one.ended() == 0
            assert here.publishers == 0
        await here.published(1)


async def test_p9_who_is_too_far_ahead_says_what_the_network_knows(meet: Meet) -> None:
    async with meet() as here:
        await here.published(3)
        for code, latest in ((TOO_FAR_BEHIND, 2), (RESET, 9), (TOO_FAR_BEHIND, 8)):
            one = await here.publisher()
            await one.end_stream(code, 1, latest)
            await one.ended()
        await here.world.settle()
        assert here.world.all_of(NewestBlockKnownToNetwork) == [NewestBlockKnownToNetwork(8)]


async def test_p10_an_end_with_an_impossible_range_only_closes(meet: Meet) -> None:
    async with meet() as here:
        one = await here.publisher()
        await one.end_stream(TOO_FAR_BEHIND, 9, 3)
        assert await one.ended() == 0
        await here.world.settle()
        assert here.world.all_of(NewestBlockKnownToNetwork) == []


async def test_p11_a_bad_block_ends_its_publisher_and_others_are_asked(meet: Meet) -> None:
    async with meet() as here:
        bad, other, idle = [await here.publisher() for _ in range(3)]
        block = chain_of(1)[0]
        await bad.items(block.items[:2])
        await here.begun(1)
        await other.block(block)
        await other.expect("skip_block", 0)
        await bad.items(spoilt(block)[2:])
        await bad.end_block(0)
        await bad.expect_end(BAD_PROOF, NO_BLOCK, 0)
        await other.expect("resend_block", 0)
        await other.block(block)
        await other.expect("acknowledgement", 0)
        # It hears nothing before.
        await idle.expect("acknowledgement", 0)


async def test_p12_failures_that_are_not_a_publishers_change_nothing(meet: Meet) -> None:
    async with meet() as here:
        one = await here.published(1)
        block = chain_of(2)[1]
        await one.items(block.items[:3])
        await here.begun(1)
        for number, attempt, source in (
            (1, 0, BlockOrigin.BACKFILL),
            (0, 1, BlockOrigin.PUBLISHER),
            (7, 3, BlockOrigin.PUBLISHER),
            (1, 99, BlockOrigin.PUBLISHER),
        ):
            here.notify(VerificationNotification(number, attempt, source, False, failure="bad_root"))
        await one.items(block.items[3:])
        await one.end_block(1)
        await one.expect("acknowledgement", 1)


async def test_p13_a_header_that_cannot_be_decoded_ends_the_stream(meet: Meet) -> None:
    async with meet() as here:
        for header in (b"\x0a\x05\x18\x01", b"\x0a\x02\x18\x80", b"\x0a\x01\x07", b"\x0a"):
            one = await here.publisher()
            await one.items([header])
            await one.expect_end(INVALID_REQUEST, NO_BLOCK, 0)
            assert here.publishers == 0


@lacks({"grpcurl": SCHEMA_ONLY})
async def test_p13_what_is_no_message_ends_the_stream(meet: Meet) -> None:
    async with meet() as here:
        for message in (b"\xff\xff", b"\x0a\x05\x0a\x09abc"):
            one = await here.publisher()
            await one.put(message)
            await one.expect_end(INVALID_REQUEST, NO_BLOCK, 0)


async def test_p14_an_empty_set_is_no_request_and_no_request_is_an_error(meet: Meet) -> None:
    async with meet() as here:
        one, other = await here.publisher(), await here.publisher()
        await one.send({"block_items": {}})
        await one.expect_end(INVALID_REQUEST, NO_BLOCK, 0)
        await other.send({})
        await other.expect_end(ERROR, NO_BLOCK, 0)


async def test_p15_an_empty_header_is_an_error(meet: Meet) -> None:
    async with meet() as here:
        one = await here.publisher()
        await one.items([b"\x0a\x00"])
        await one.expect_end(ERROR, NO_BLOCK, 0)


async def test_p16_the_header_of_the_same_block_begins_it_anew(meet: Meet) -> None:
    """hiero-consensus-node PR 26767: after a time-out, the block is sent again on the same stream."""
    async with meet() as here:
        one, other = await here.publisher(), await here.publisher()
        block = chain_of(1)[0]
        await one.items(block.items[:4])
        await one.items(block.items[:4])
        await here.begun(1)
        await other.header(0)
        await other.expect("skip_block", 0)
        await one.items(block.items[4:])
        await one.end_block(0)
        for each in (one, other):
            await each.expect("acknowledgement", 0)


async def test_p16_the_header_of_the_following_block_is_taken_and_the_hole_is_asked_for(meet: Meet) -> None:
    async with meet() as here:
        one = await here.published(2)
        await one.items(chain_of(3)[2].items[:3])
        await one.block(chain_of(4)[3])
        await one.wait_for("resend_block", 2)
        for block in chain_of(4)[2:]:
            await one.block(block)
        await one.wait_for("acknowledgement", 3)
        assert here.world.stored() == [0, 1, 2, 3]


async def test_p16_a_header_that_somebody_else_sends_is_skipped_and_the_hole_is_offered(meet: Meet) -> None:
    async with meet() as here:
        first, second = await here.publisher(), await here.publisher()
        blocks = chain_of(2)
        await first.items(blocks[0].items[:2])
        await here.begun(1)
        await second.items(blocks[1].items[:2])
        await here.begun(2)
        await first.header(1)
        await second.expect("resend_block", 0)
        await first.expect("skip_block", 1)
        await second.items(blocks[1].items[2:])
        await second.end_block(1)
        await second.block(blocks[0])
        await second.wait_for("acknowledgement", 1)


async def test_p17_a_runtime_error_ends_that_stream_alone(meet: Meet, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = PublishMachine.offer

    def failing(self: PublishMachine, publisher: Any, number: int, now_s: float) -> Any:
        if number == 7:
            raise RuntimeError("block 7")
        return offer(self, publisher, number, now_s)

    monkeypatch.setattr(PublishMachine, "offer", failing)
    async with meet() as here:
        unlucky, other = await here.publisher(), await here.publisher()
        await unlucky.header(0)
        await here.begun(1)
        await other.header(0)
        await other.expect("skip_block", 0)
        await unlucky.header(7)
        await unlucky.expect_end(ERROR, NO_BLOCK, 0)
        await other.expect("resend_block", 0)
        await other.block(chain_of(1)[0])
        await other.expect("acknowledgement", 0)


@pytest.mark.parametrize("way", ["reset", "half close", "end of stream"])
async def test_p18_a_partial_block_leaves_nothing_behind(meet: Meet, way: str) -> None:
    """hiero-block-node 2055 and 341. grpcurl has no reset: it is killed, and its connection ends."""
    async with meet() as here:
        first, second, idle = [await here.publisher() for _ in range(3)]
        await first.items(chain_of(1)[0].items[:5])
        await here.begun(1)
        if way == "reset":
            await first.call.cancel()
        elif way == "half close":
            await first.call.end()
        else:
            await first.end_stream(RESET)
        await wait_until(lambda: here.publishers == 2)
        for block in chain_of(2):
            await second.block(block)
            for one in (second, idle):
                await one.expect("acknowledgement", block.number)


async def test_p19_a_block_that_a_publisher_left_is_filled_by_the_next(meet: Meet) -> None:
    async with meet() as here:
        leaving, staying = await here.publisher(), await here.publisher()
        blocks = chain_of(6)
        for block in blocks[:3]:
            await leaving.block(block)
        await staying.wait_for("acknowledgement", 2)
        await leaving.items(blocks[3].items[:2])
        await here.begun(1)
        await staying.block(blocks[4])
        await here.begun(2)
        await leaving.end_stream(RESET)
        await staying.expect("resend_block", 3)
        await staying.block(blocks[3])
        await staying.block(blocks[5])
        before = await staying.wait_for("acknowledgement", 5)
        assert before in ([acknowledged(3), acknowledged(4)], [acknowledged(4)])
        assert here.world.stored() == [0, 1, 2, 3, 4, 5]


def acknowledged(number: int) -> dict[str, dict[str, int]]:
    return {"acknowledgement": {"block_number": number}}


async def test_p20_a_block_that_stalls_is_taken_and_no_acknowledgement_passes_it(meet: Meet) -> None:
    async with meet() as here:
        silent, steady = await here.publisher(), await here.publisher()
        blocks = chain_of(9)
        for block in blocks[:2]:
            await steady.block(block)
        await steady.wait_for("acknowledgement", 1)
        await silent.header(2)
        await here.begun(1)
        for block in blocks[3:7]:
            await steady.block(block)
        await steady.expect("resend_block", 2)
        await silent.wait_for("acknowledgement", 1)
        await silent.expect_end(TIMEOUT, 1, 2)
        await steady.block(blocks[2])
        before = await steady.wait_for("acknowledgement", 6)
        assert before[:1] == [acknowledged(2)]
        for block in blocks[7:]:
            await steady.block(block)
        await steady.wait_for("acknowledgement", 8)
        assert here.world.stored() == list(range(9))


async def test_p21_two_blocks_beyond_is_no_stall(meet: Meet) -> None:
    async with meet() as here:
        slow, steady = await here.publisher(), await here.publisher()
        blocks = chain_of(4)
        await slow.items(blocks[0].items[:2])
        await here.begun(1)
        for block in blocks[1:3]:
            await steady.block(block)
        await here.begun(3)
        await slow.items(blocks[0].items[2:])
        await slow.end_block(0)
        await steady.expect("acknowledgement", 0)
        await slow.expect("acknowledgement", 0)
        await steady.wait_for("acknowledgement", 2)


async def test_p21_several_that_stall_are_all_ended(meet: Meet) -> None:
    async with meet() as here:
        stalling = [await here.publisher() for _ in range(3)]
        steady = await here.publisher()
        blocks = chain_of(8)
        for number, one in enumerate(stalling):
            await one.header(number)
            await here.begun(number + 1)
        for block in blocks[3:7]:
            await steady.block(block)
        await steady.wait_for("resend_block", 0)
        for one in stalling:
            # One that is not ended yet may be asked for the block of another.
            while "end_stream" not in (answer := await one.next()):
                assert "resend_block" in answer
            assert answer["end_stream"]["status"] == TIMEOUT
        for block in blocks[:3]:
            await steady.block(block)
        await steady.wait_for("acknowledgement", 6)


async def test_p22_a_block_that_cannot_be_stored_ends_every_stream(meet: Meet) -> None:
    async with meet() as here:
        sender, idle = await here.publisher(), await here.publisher()
        blocks = chain_of(3)
        await sender.block(blocks[0])
        for one in (sender, idle):
            await one.expect("acknowledgement", 0)
        here.world.runner.full = True
        await sender.block(blocks[1])
        for one in (sender, idle):
            await one.expect_end(NOT_PERSISTED, 0, 1)
        assert here.world.all_of(NodeFailure)[0].persistence
        here.world.runner.full = False
        again = await here.publisher()
        for block in blocks[1:]:
            await again.block(block)
        await again.wait_for("acknowledgement", 2)


async def test_p23_what_is_persisted_already_changes_nothing(meet: Meet) -> None:
    async with meet() as here:
        one = await here.published(3)
        for number in range(3):
            for succeeded in (True, False):
                here.notify(PersistedNotification(number, succeeded, BlockOrigin.HISTORY))
        await one.block(chain_of(4)[3])
        await one.expect("acknowledgement", 3)


@pytest.mark.parametrize("holes", [1, 2])
async def test_p24_no_acknowledgement_passes_a_block_on_its_way(meet: Meet, holes: int) -> None:
    """The lower blocks are on their way again, for the second time, while those above are complete."""
    async with meet() as here:
        leaving = [await here.publisher() for _ in range(holes)]
        steady, late = await here.publisher(), await here.publisher()
        blocks = chain_of(4)
        for number, one in enumerate(leaving):
            await one.header(number)
            await here.begun(number + 1)
        for block in blocks[holes:]:
            await steady.block(block)
        await here.begun(4)
        for one in leaving:
            await one.end_stream(RESET)
            await one.ended()
        await steady.expect("resend_block", 0)
        senders = (steady, late)[:holes]
        for number, one in enumerate(senders):
            await one.items(blocks[number].items[:3])
            await here.begun(4 - holes + number + 1)
        for number, one in reversed(list(enumerate(senders))):
            await one.items(blocks[number].items[3:])
            await one.end_block(number)
        answers = [*await steady.wait_for("acknowledgement", 3)]
        numbers = [each["acknowledgement"].get("block_number", 0) for each in answers if "acknowledgement" in each]
        assert numbers[0] == 0
        assert numbers == sorted(numbers)
        assert here.world.stored() == [0, 1, 2, 3]


async def test_p25_a_block_that_stalls_and_comes_by_backfill_is_done(meet: Meet) -> None:
    async with meet() as here:
        stalling, steady = await here.publisher(), await here.publisher()
        blocks = chain_of(4)
        await stalling.items(blocks[0].items[:4])
        await here.begun(1)
        for block in blocks[1:3]:
            await steady.block(block)
        await here.begun(3)
        here.backfill(0)
        await stalling.expect("skip_block", 0)
        await stalling.items(blocks[0].items[4:])
        await stalling.end_block(0)
        await stalling.block(blocks[3])
        for one in (stalling, steady):
            await one.wait_for("acknowledgement", 3)


@pytest.mark.parametrize("first_block", [0, 5])
async def test_p26_an_empty_node_begins_where_it_is_told_or_lower(meet: Meet, first_block: int) -> None:
    async with meet(first_block=first_block, grpc=GrpcLimits(behind_again_s=0.0)) as here:
        one, other = await here.publisher(), await here.publisher()
        await one.header(first_block + 1)
        await one.expect("node_behind_publisher", NO_BLOCK)
        await one.header(first_block // 2)
        await here.begun(1)
        await other.header(first_block // 2)
        await other.expect("skip_block", first_block // 2)
        # The chain goes on from there.
        await other.header(first_block // 2 + 2)
        await other.expect("node_behind_publisher", NO_BLOCK)


async def test_p26_a_first_block_above_what_is_stored_leaves_a_hole(meet: Meet) -> None:
    async with meet() as here:
        await here.published(1)
    async with meet(first_block=3) as here:
        one = await here.publisher()
        await one.header(0)
        await one.expect("skip_block", 0)
        await one.expect("acknowledgement", 0)
        await one.block(chain_of(4)[3])
        await one.expect("acknowledgement", 3)
        assert here.world.stored() == [0, 3]


async def test_p27_a_start_goes_on_behind_what_was_stored(meet: Meet) -> None:
    async with meet() as here:
        await here.published(3)
    async with meet() as here:
        one = await here.publisher()
        await one.block(chain_of(4)[3])
        await one.expect("acknowledgement", 2)
        await one.expect("acknowledgement", 3)


async def test_p28_a_publisher_that_sends_ahead_is_held_until_there_is_room(meet: Meet) -> None:
    async with meet(PublishLimits(queued_bytes_max=4_000)) as here:
        slow, eager = await here.publisher(), await here.publisher()
        blocks = chain_of(3)
        await slow.items(blocks[0].items[:2])
        await here.begun(1)
        for block in blocks[1:]:
            await eager.block(block, 1)
        await wait_until(lambda: any(each.is_held for each in here.world.publishing.statistics().sessions))
        assert here.world.publishing.statistics().in_flight.queued_bytes < 6_000
        await slow.items(blocks[0].items[2:])
        await slow.end_block(0)
        for one in (slow, eager):
            await one.wait_for("acknowledgement", 2)


async def test_p29_a_block_end_with_a_foreign_number_ends_the_block_on_its_way(meet: Meet) -> None:
    async with meet() as here:
        one = await here.publisher()
        await one.end_block(0)
        for block in chain_of(2):
            await one.items(block.items)
            await one.end_block(block.number + 7)
            await one.end_block(block.number)
            await one.expect("acknowledgement", block.number)


@lacks({"grpcurl": "it tells the end of a call only when its own half has ended"})
async def test_p30_an_ended_stream_takes_nothing_more(meet: Meet) -> None:
    async with meet() as here:
        one = await here.published(8)
        await one.header(0)
        await one.expect_end(DUPLICATE, 7, 0)
        other = await here.publisher()
        block = chain_of(9)[8]
        # Its client may refuse to send it.
        await one.block(block)
        await here.world.settle()
        assert here.world.publishing.statistics().in_flight.blocks == 0
        await other.block(block)
        await other.wait_for("acknowledgement", 8)
        assert here.world.stored() == list(range(9))
