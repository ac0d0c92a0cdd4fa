"""Goal: the acceptance behaviours of reading, S1 to S12, A1, T1 and T2 (facts/block_node.md §6.3), over gRPC and by
every client that can, with the answers of issue 33: those of the real block node, each test named after its number.

Method: the clients of `tests/block_node/grpc/foreign/peers.py` at a node on a real database, over real sockets.
"""

from __future__ import annotations

import pytest

from block_node.blocks.errors import Level
from block_node.blocks.items import make_item
from block_node.blocks.settings import VerifierSettings
from block_node.events import NodeFailure
from block_node.grpc.http2.limits import Http2Limits
from block_node.grpc.messages import NO_BLOCK, WireMessage
from block_node.read.feed import SubscribeLimits
from tests.block_node.grpc.calls.block_door import DETAIL, GET, STATUS, blocks_of
from tests.block_node.grpc.conformance.meeting import Meet, lacks
from tests.block_node.grpc.http2.door import wait_until
from tests.block_node.publish.samples import chain_of

SUCCESS, INVALID_REQUEST, ERROR, INVALID_START, INVALID_END, NOT_AVAILABLE = range(1, 7)
GET_SUCCESS, GET_INVALID, GET_NOT_AVAILABLE = 1, 2, 5
MIB = 1024 * 1024


async def test_s1_live_from_the_next_block_on_also_in_the_middle_of_one(meet: Meet) -> None:
    async with meet() as here:
        one = await here.published(2)
        blocks = chain_of(4)
        await one.items(blocks[2].items[:3])
        await here.begun(1)
        subscriber = await here.following(NO_BLOCK, NO_BLOCK)
        await one.items(blocks[2].items[3:])
        await one.end_block(2)
        await one.block(blocks[3])
        await subscriber.until_block(3)
        assert subscriber.blocks() == [2, 3]


async def test_s1_live_on_an_empty_node_begins_with_what_comes(meet: Meet) -> None:
    async with meet(first_block=1) as here:
        subscriber = await here.following(NO_BLOCK, NO_BLOCK)
        await here.published(3, first=1)
        await subscriber.until_block(2)
        assert subscriber.blocks() == [1, 2]


async def test_s2_a_closed_range(meet: Meet) -> None:
    async with meet() as here:
        await here.published(6)
        for start, end in ((1, 3), (0, 5), (4, 4)):
            subscriber = await here.subscribe(start, end)
            assert await subscriber.until_status() == SUCCESS
            assert subscriber.blocks() == list(range(start, end + 1))


async def test_s3_from_the_first_available_to_an_end(meet: Meet) -> None:
    async with meet(first_block=2) as here:
        early = await here.following(NO_BLOCK, 4)
        await here.published(6, first=2)
        late = await here.subscribe(NO_BLOCK, 4)
        for subscriber in (early, late):
            assert await subscriber.until_status() == SUCCESS
            assert subscriber.blocks() == [2, 3, 4]


async def test_s4_history_then_live_without_gap_or_repetition(meet: Meet) -> None:
    """The last publisher leaves, and nothing is said of it: a mirror node would count an error."""
    async with meet() as here:
        await here.published(3)
        subscriber = await here.subscribe(1, NO_BLOCK)
        await subscriber.until_block(1)
        leaving = await here.published(8, first=3)
        await leaving.end_stream()
        await leaving.ended()
        await subscriber.until_block(7)
        assert subscriber.blocks() == [1, 2, 3, 4, 5, 6, 7]


async def test_s5_a_start_in_the_future_waits(meet: Meet) -> None:
    async with meet() as here:
        await here.published(1)
        alone, batch = await here.following(3, NO_BLOCK), await here.following(2, 4)
        await here.published(5, first=1)
        assert await batch.until_status() == SUCCESS
        await alone.until_block(4)
        assert (batch.blocks(), alone.blocks()) == ([2, 3, 4], [3, 4])


async def test_s6_what_is_not_available_is_refused_at_once(meet: Meet) -> None:
    async with meet(first_block=2, plan=SubscribeLimits(ahead_blocks_max=10)) as here:
        await here.published(4, first=2)
        for start, end in ((1, 3), (1, NO_BLOCK), (14, NO_BLOCK), (NO_BLOCK, 1)):
            subscriber = await here.subscribe(start, end)
            assert await subscriber.until_status() == NOT_AVAILABLE
            assert len(subscriber.parts) == 1


async def test_s7_the_longest_duration_ends_with_success(meet: Meet) -> None:
    async with meet(plan=SubscribeLimits(duration_s_max=0.2, tick_s=0.02)) as here:
        await here.published(1)
        subscriber = await here.subscribe(0, NO_BLOCK)
        assert await subscriber.until_status() == SUCCESS


async def test_s8_numbers_that_cannot_be(meet: Meet) -> None:
    async with meet() as here:
        await here.published(2)
        for start, end, status in (
            (3, 2, INVALID_END),
            (2**63, 2, INVALID_START),
            (NO_BLOCK - 1, NO_BLOCK, INVALID_START),
            (0, 2**63, INVALID_END),
        ):
            assert await (await here.subscribe(start, end)).until_status() == status


@pytest.mark.parametrize("point", ["before the first block", "between blocks", "live"])
async def test_s9_a_subscriber_that_goes_away_is_forgotten(meet: Meet, point: str) -> None:
    async with meet() as here:
        one = await here.published(2)
        other = await here.following(0, NO_BLOCK)
        await other.until_block(1)
        leaving = await here.following(3 if point == "before the first block" else 0, NO_BLOCK)
        if point != "before the first block":
            await leaving.until_block(0 if point == "between blocks" else 1)
        await leaving.call.cancel()
        await wait_until(lambda: here.door.services.statistics().subscribe.sessions == 1)
        await one.block(chain_of(3)[2])
        await other.until_block(2)
        assert other.blocks() == [0, 1, 2]


async def test_s10_when_the_node_fails_every_subscription_ends(meet: Meet) -> None:
    async with meet() as here:
        await here.published(1)
        both = [await here.following(0, NO_BLOCK), await here.following(NO_BLOCK, NO_BLOCK)]
        await both[0].until_block(0)
        here.notify(NodeFailure("the disk said no"))
        for subscriber in both:
            assert await subscriber.until_status() == ERROR
        assert await (await here.subscribe(0, 0)).until_status() == SUCCESS


async def test_s11_a_small_block_is_one_message_and_a_large_item_comes_alone(meet: Meet) -> None:
    """hiero-block-node 2102 and 3666: an item of more than 4 MB ended the subscription without a word."""
    block, following = chain_of(2)
    few = [make_item(4, bytes(100_000)) for _ in range(25)]
    large = make_item(4, bytes(4_300_000))
    items = [*block.items[:2], *few, large, *block.items[2:]]
    verifier = VerifierSettings(levels=Level.STRUCTURE, item_bytes_max=8_000_000)
    async with meet(verifier=verifier) as here:
        one = await here.publisher()
        for at in range(0, len(items), 5):
            await one.items(items[at : at + 5])
        await one.end_block(0)
        await one.expect("acknowledgement", 0)
        await one.block(following)
        await one.expect("acknowledgement", 1)
        subscriber = await here.subscribe(0, 1)
        assert await subscriber.until_status() == SUCCESS
        parts = [part for part in subscriber.parts if "status" not in part]
        assert blocks_of(parts) == {0: items, 1: list(following.items)}
        sets = [part["block_items"]["block_items"] for part in parts if "block_items" in part]
        assert [large] in sets
        assert max(sum(map(len, each)) for each in sets if each != [large]) <= MIB
        assert len(sets) <= 8
        assert sets[-1] == list(following.items)


async def test_s12_history_has_the_same_items_as_were_published(meet: Meet) -> None:
    async with meet() as here:
        live, other = await here.following(NO_BLOCK, NO_BLOCK), await here.publisher()
        await here.published(2)
        await other.wait_for("acknowledgement", 1)
        await live.until_block(1)
        history = await here.subscribe(0, 1)
        assert await history.until_status() == SUCCESS
        assert live.blocks() == history.blocks() == [0, 1]
        assert [part for part in history.parts if "status" not in part] == live.parts


@lacks({"grpcurl": "it is a process for each call"})
async def test_a_hundred_streams_at_once(meet: Meet) -> None:
    """The calls of a library share one connection, which may have so many."""
    async with meet() as here:
        one = await here.published(2)
        subscribers = [await here.subscribe(1, 2) for _ in range(Http2Limits().streams_max - 1)]
        await one.block(chain_of(3)[2])
        for subscriber in subscribers:
            assert await subscriber.until_status() == SUCCESS
            assert subscriber.blocks() == [1, 2]


async def test_a1_each_way_of_asking_for_a_block(meet: Meet) -> None:
    async with meet(first_block=1) as here:
        for asked in ({"retrieve_latest": True}, {"block_number": NO_BLOCK}, {"block_number": 1}):
            assert await here.ask(GET, asked) == {"status": GET_NOT_AVAILABLE}
        await here.published(4, first=1)
        answers: list[tuple[WireMessage, int]] = [
            ({"block_number": 2}, 2),
            ({"retrieve_latest": True}, 3),
            ({"block_number": NO_BLOCK}, 3),
        ]
        for asked, number in answers:
            items = list(chain_of(4)[number].items)
            assert await here.ask(GET, asked) == {"status": GET_SUCCESS, "block": {"items": items}}
        for asked in ({"block_number": 0}, {"block_number": 4}, {"block_number": 2**63}):
            assert await here.ask(GET, asked) == {"status": GET_NOT_AVAILABLE}
        for asked in ({}, {"retrieve_latest": False}):
            assert await here.ask(GET, asked) == {"status": GET_INVALID}


async def test_t1_the_status_of_an_empty_node_and_of_one_with_blocks(meet: Meet) -> None:
    """hiero-mirror-node 13938: a node with blocks said that it had none."""
    async with meet() as here:
        status = {"only_latest_state": True}
        empty = {"first_available_block": NO_BLOCK, "last_available_block": NO_BLOCK}
        assert await here.ask(STATUS) == {**status, **empty}
        one = await here.published(1)
        assert await here.ask(STATUS) == {**status, "next_expected_block": 1}
        await one.block(chain_of(2)[1])
        await one.expect("acknowledgement", 1)
        assert await here.ask(STATUS) == {**status, "last_available_block": 1, "next_expected_block": 2}


async def test_t2_the_detail_names_ranges_and_versions(meet: Meet) -> None:
    async with meet() as here:
        await here.published(2)
    async with meet(first_block=3) as here:
        await here.published(5, first=3)
        found = await here.ask(DETAIL)
        # The last range ends where the node is.
        assert found["available_ranges"] == [{"range_end": 1}, {"range_start": 3, "range_end": 4}]
        assert found["stored_ranges"] == found["available_ranges"]
        versions = found["version_information"]
        assert versions["block_node_version"] == {"minor": 1}
        assert {"persistence", "publish"} <= {each["plugin_id"] for each in versions["installed_plugin_versions"]}
