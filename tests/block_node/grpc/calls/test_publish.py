"""Goal: a publisher over gRPC gets the answers of issue 33 ("The answers"), also where only bare frames or the inside
of the node show it. tests/block_node/grpc/conformance has what every client can see.

Method: publishers with PBJ's headers and frames, over real sockets, at a node on a real database.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import trio

from block_node.blocks.generator import BlockShape
from block_node.blocks.items import item_prefix
from block_node.blocks.protobuf import bytes_field
from block_node.events import NewestBlockKnownToNetwork
from block_node.grpc.calls.publish import PARTIES_MAX, BehindTold
from block_node.grpc.http2.limits import Http2Limits
from block_node.grpc.http2.message_reader import MessageBudget
from block_node.grpc.limits import GrpcLimits
from block_node.grpc.messages import NO_BLOCK, write_message
from block_node.protocol import Piece
from block_node.publish.block_machine import PublishLimits
from block_node.publish.session import HEADER_TAG, PublisherSession
from tests.block_node.grpc.calls.block_door import PUBLISH, STATUS, BlockDoor, GrpcPublisher, block_door, publisher
from tests.block_node.grpc.http2.door import wait_until
from tests.block_node.grpc.http2.raw_client import framed, pbj_headers, raw_client, zstd_stream
from tests.block_node.publish.samples import chain_of, header_of
from tests.block_node.publish.test_node_faults import plugin

SUCCESS, INVALID_REQUEST, ERROR, TIMEOUT, DUPLICATE, BAD_PROOF, NOT_PERSISTED = range(1, 8)


async def publish(first: GrpcPublisher, count: int) -> None:
    for block in chain_of(count):
        await first.block(block)
    await first.wait_for("acknowledgement", count - 1)


def set_of(item: bytes) -> bytes:
    return write_message("PublishStreamRequest", {"block_items": {"block_items": [item]}})


def budget_of(door: BlockDoor) -> MessageBudget:
    return door.connections[0]._machine._budget


def feeding(door: BlockDoor) -> int:
    return door.world.publishing.machine.publishers


async def test_blocks_are_acknowledged_and_the_stream_stays(tmp_path: Path) -> None:
    async with block_door(tmp_path) as door, publisher(door) as first:
        for block in chain_of(3):
            await first.block(block)
            await first.expect("acknowledgement", block.number)
        assert door.world.stored() == [0, 1, 2]
        assert first.answer.headers["grpc-encoding"] == "zstd"


async def test_an_older_block_ends_the_stream_and_the_connection_stays(tmp_path: Path) -> None:
    """hiero-block-node 2828: the end was sent, the socket closed, and the publisher never read it."""
    async with block_door(tmp_path) as door, publisher(door) as first, publisher(door) as late:
        await publish(first, 8)
        await late.wait_for("acknowledgement", 7)
        await late.header(1)
        assert "block 1 is here" in await late.expect_end(DUPLICATE, 7, 1)
        # The same connection goes on, with another stream.
        again = GrpcPublisher(late.client, await late.client.open(pbj_headers(PUBLISH)))
        await again.block(chain_of(9)[8])
        await again.wait_for("acknowledgement", 8)
        assert late.client.answers[1].reset is None


async def test_a_block_that_is_too_high_is_behind_and_the_stream_stays(tmp_path: Path) -> None:
    async with block_door(tmp_path) as door, publisher(door) as first:
        blocks = chain_of(3)
        await first.block(blocks[2])
        await first.expect("node_behind_publisher", NO_BLOCK)
        # The same block again soon is answered in another way: a consensus node leaves at the second one within 30 s.
        await first.block(blocks[2])
        await first.expect("resend_block", 0)
        await first.block(blocks[0])
        await first.expect("acknowledgement", 0)
        await first.block(blocks[1])
        await first.block(blocks[2])
        await first.wait_for("acknowledgement", 2)


async def test_a_publisher_that_comes_back_is_not_told_again_that_the_node_is_behind(tmp_path: Path) -> None:
    """A consensus node counts over all its streams to a block node (hiero-consensus-node, `BlockNodeStats`)."""
    async with block_door(tmp_path) as door:
        for kind, number in (("node_behind_publisher", NO_BLOCK), ("resend_block", 0), ("resend_block", 0)):
            async with publisher(door) as first:
                await first.header(7)
                await first.expect(kind, number)


def test_a_party_is_told_once_in_a_time_that_the_node_is_behind() -> None:
    told = BehindTold(40.0)
    assert told.may_tell("a", 0.0)
    assert told.may_tell("b", 10.0)
    assert not told.may_tell("a", 39.9)
    assert told.may_tell("a", 40.0)
    assert not told.may_tell("b", 41.0)
    # The number of parties has a bound: the one that was told first is forgotten first.
    for number in range(PARTIES_MAX - 1):
        assert told.may_tell(f"p{number}", 42.0)
    assert not told.may_tell("a", 43.0)
    assert told.may_tell("b", 43.0)


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 99])
async def test_the_end_of_a_stream_has_no_answer_but_the_trailers(tmp_path: Path, code: int) -> None:
    async with block_door(tmp_path) as door, publisher(door) as first:
        await first.items(chain_of(1)[0].items[:2])
        await first.end_stream(code)
        answer = await first.client.until_end(first.stream_id)
        assert (answer.messages(), answer.status) == ([], 0)
        assert feeding(door) == 0
        assert door.world.publishing.statistics().in_flight.blocks == 0


@pytest.mark.parametrize(("latest", "newest"), [(9, 9), (NO_BLOCK, None), (2**63, None), (2**63 - 1, 2**63 - 1)])
async def test_a_publisher_that_is_too_far_ahead_names_the_newest_block(
    tmp_path: Path, latest: int, newest: int | None
) -> None:
    """A consensus node that has nothing acknowledged sends the largest number."""
    async with block_door(tmp_path) as door, publisher(door) as first:
        await first.end_stream(4, 2, latest)
        await first.client.until_end(first.stream_id)
        await door.world.settle()
        told = [each.block_number for each in door.world.all_of(NewestBlockKnownToNetwork)]
        assert told == ([] if newest is None else [newest])


async def test_items_while_no_block_is_open_are_dropped_in_silence(tmp_path: Path) -> None:
    async with block_door(tmp_path) as door, publisher(door) as first:
        block = chain_of(1)[0]
        await first.items(block.items[1:])
        await first.end_block(0)
        await first.block(block)
        await first.expect("acknowledgement", 0)


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (write_message("PublishStreamRequest", {"block_items": {"block_items": [header_of(2**63)]}}), INVALID_REQUEST),
        (b"\xf8\x07\x01", ERROR),
    ],
    ids=["high number", "unknown kind"],
)
async def test_requests_that_break_the_protocol_end_the_stream(tmp_path: Path, message: bytes, status: int) -> None:
    async with block_door(tmp_path) as door, publisher(door) as first:
        await first.client.send(first.stream_id, framed(message))
        assert await first.expect_end(status, NO_BLOCK, 0)
        assert feeding(door) == 0


async def test_a_publisher_whose_connection_is_lost_in_a_block_gives_it_up_at_once(tmp_path: Path) -> None:
    """hiero-block-node 2055 and 341: it came back, and the node waited for ever for the block of the old stream."""
    async with block_door(tmp_path) as door, publisher(door) as second:
        async with publisher(door) as first:
            await first.items(chain_of(1)[0].items[:3])
            await wait_until(lambda: door.world.publishing.statistics().in_flight.blocks == 1)
            await first.client.stream.aclose()
            await wait_until(lambda: door.world.publishing.statistics().in_flight.blocks == 0)
        await second.block(chain_of(1)[0])
        await second.expect("acknowledgement", 0)


async def test_a_stream_that_is_opened_and_reset_at_once_leaves_nothing(tmp_path: Path) -> None:
    """Both frames come in one read: the call is over before a handler is made for it."""
    async with block_door(tmp_path) as door, raw_client(door.port) as client:
        stream_id = client.h2.get_next_available_stream_id()
        client.h2.send_headers(stream_id, pbj_headers(PUBLISH))
        client.h2.reset_stream(stream_id, 8)
        await client.flush()
        await client.ask(pbj_headers(STATUS), framed(b""))
        assert feeding(door) == 0


async def test_a_flood_of_resets_gives_up_every_stream_of_its_connection(tmp_path: Path) -> None:
    async with block_door(tmp_path, http2=Http2Limits(resets_max=5)) as door, raw_client(door.port) as client:
        streams = [await client.open(pbj_headers(PUBLISH)) for _ in range(10)]
        await wait_until(lambda: feeding(door) == 10)
        for stream_id in streams:
            client.h2.reset_stream(stream_id, 8)
        await client.flush()
        await client.until_closed()
        await wait_until(lambda: feeding(door) == 0)


async def test_a_block_that_is_taken_by_a_silent_publisher_is_asked_from_another(tmp_path: Path) -> None:
    """hiero-block-node 1841: the winner of a block goes silent, and every acknowledgement stops."""
    limits = PublishLimits(block_s_max=0.3, tick_s=0.05, resend_s=0.1)
    async with block_door(tmp_path, limits) as door, publisher(door) as silent, publisher(door) as other:
        await silent.items(chain_of(1)[0].items[:2])
        await wait_until(lambda: door.world.publishing.statistics().in_flight.blocks == 1)
        await other.block(chain_of(1)[0])
        await other.expect("skip_block", 0)
        assert "not complete after" in await silent.expect_end(TIMEOUT, NO_BLOCK, 0)
        await other.wait_for("resend_block", 0)
        await other.block(chain_of(1)[0])
        await other.wait_for("acknowledgement", 0)


async def test_a_node_that_stops_ends_each_stream_with_success(tmp_path: Path) -> None:
    async with block_door(tmp_path) as door, publisher(door) as first:
        await publish(first, 1)
        door.world.block_node.stop()
        assert "the node stops" in await first.expect_end(SUCCESS, 0, 0)


async def test_a_node_without_room_on_its_disk_says_so(tmp_path: Path) -> None:
    async with block_door(tmp_path) as door:
        door.world.block_node.store.refusal = "the disk is full"
        async with publisher(door) as first:
            assert "the disk is full" in await first.expect_end(NOT_PERSISTED, NO_BLOCK, 0)


async def test_more_publishers_than_there_is_room_for_are_told(tmp_path: Path) -> None:
    async with block_door(tmp_path, PublishLimits(sessions_max=1)) as door, publisher(door) as first:
        await wait_until(lambda: feeding(door) == 1)
        async with publisher(door) as second:
            assert "1 publishers are connected already" in await second.expect_end(ERROR, NO_BLOCK, 0)
        await publish(first, 1)


async def test_one_hundred_and_fifty_blocks_at_once_are_taken_in_a_bounded_memory(tmp_path: Path) -> None:
    """hiero-block-node 1563: a publisher dumps its whole buffer, and the node locks up."""
    limits = PublishLimits(queued_bytes_max=64 * 1024, ahead_blocks_max=8)
    async with block_door(tmp_path, limits) as door, publisher(door) as first:
        blocks = chain_of(150)
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                while True:
                    statistics = door.world.publishing.statistics().in_flight
                    assert statistics.queued_bytes < 64 * 1024 + 300_000
                    await trio.sleep(0.001)

            nursery.start_soon(watch)
            for block in blocks:
                await first.block(block, set_size=100)
            await first.wait_for("acknowledgement", 149)
            nursery.cancel_scope.cancel()


async def test_a_legal_block_larger_than_a_message_comes_in_several(tmp_path: Path) -> None:
    """hiero-block-node 3587: one limit for messages and blocks refused a legal block for ever."""
    block = chain_of(1)[0]
    largest = max(len(item) for item in block.items)
    grpc = GrpcLimits(message_bytes_max=largest + 100)
    assert sum(map(len, block.items)) > grpc.message_bytes_max
    async with block_door(tmp_path, grpc=grpc) as door, publisher(door) as first:
        await first.block(block, set_size=1)
        await first.expect("acknowledgement", 0)


async def test_many_streams_that_do_nothing_hold_nothing_and_end_with_their_connection(tmp_path: Path) -> None:
    async with block_door(tmp_path, http2=Http2Limits(streams_max=1_000)) as door, raw_client(door.port) as client:
        client.h2.remote_settings.max_concurrent_streams = 1_000
        client.h2.remote_settings.acknowledge()
        for _ in range(300):
            await client.open(pbj_headers(PUBLISH))
        await wait_until(lambda: feeding(door) == 300)
        machine = door.connections[0]._machine
        assert not sum(call.pending_bytes + call.reader.waiting_bytes for call in machine.calls.values())
        await client.stream.aclose()
        await wait_until(lambda: feeding(door) == 0)


class Parts(trio.abc.Instrument):
    """What calls hand on: the call, the number of items each time, and in which turn of the event loop. pieces: those
    of items that come in pieces."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[tuple[PublisherSession, int, int]] = []
        self.pieces: list[tuple[Piece, bytes]] = []
        self.turns = 0
        hand_on = PublisherSession.items

        def note(intake: PublisherSession, items: list[bytes], piece: Piece = Piece.WHOLE) -> None:
            self.found.append((intake, len(items), self.turns))
            if piece is not Piece.WHOLE:
                self.pieces.append((piece, items[0]))
            hand_on(intake, items, piece)

        monkeypatch.setattr(PublisherSession, "items", note)
        trio.lowlevel.add_instrument(self)

    def after_io_wait(self, timeout: float) -> None:
        self.turns += 1


async def test_a_large_request_is_handed_on_in_parts_between_which_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = Parts(monkeypatch)
    block = chain_of(1, BlockShape(item_count=100))[0]
    async with block_door(tmp_path, PublishLimits(slice_items_max=16)) as door, publisher(door) as first:
        await first.block(block, set_size=len(block.items))
        await first.expect("acknowledgement", 0)
        _, sizes, turns = zip(*parts.found, strict=True)
        assert sizes == (16,) * (len(block.items) // 16) + (len(block.items) % 16,)
        assert len({*turns}) == len(turns)
        assert door.world.publishing.unread_bytes == 0


async def test_a_call_hands_on_one_part_in_a_turn_also_beside_another_call_of_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a part that the reading task hands on is not followed by one of the writing task in the same turn. Method:
    a request of many parts has the writing task run in each turn, while requests of another call come."""
    parts = Parts(monkeypatch)
    blocks = chain_of(2, BlockShape(item_count=1_600))
    async with block_door(tmp_path, PublishLimits(slice_items_max=16)) as door, raw_client(door.port) as client:
        first, second = [GrpcPublisher(client, await client.open(pbj_headers(PUBLISH))) for _ in range(2)]
        await first.block(blocks[0], set_size=len(blocks[0].items))
        await second.block(blocks[1], set_size=32)
        await second.wait_for("acknowledgement", 1)
    assert sum(size for _, size, _ in parts.found) == sum(len(block.items) for block in blocks)
    assert max(Counter((call, turn) for call, _, turn in parts.found).values()) == 1


async def test_many_small_requests_that_come_at_once_are_taken_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: compressed requests, of which one read brings thousands, do not stop the whole node. Method: requests of 10
    items in one piece, with parts of 16 items."""
    parts = Parts(monkeypatch)
    block = chain_of(1, BlockShape(item_count=400))[0]
    requests = [
        write_message("PublishStreamRequest", {"block_items": {"block_items": list(block.items[start : start + 10])}})
        for start in range(0, len(block.items), 10)
    ]
    async with block_door(tmp_path, PublishLimits(slice_items_max=16)) as door, raw_client(door.port) as client:
        first = GrpcPublisher(client, await client.open(pbj_headers(PUBLISH, "zstd")))
        packed = b"".join(framed(zstd_stream(each), compressed=True) for each in requests)
        await client.send(first.stream_id, packed)
        await first.end_block(0)
        await first.expect("acknowledgement", 0)
    assert [size for _, size, _ in parts.found] == [10] * 40
    assert max(Counter(turn for *_, turn in parts.found).values()) <= 2


async def test_a_large_set_that_is_dropped_counts_once(tmp_path: Path) -> None:
    """Claim: `stream_sets_dropped` counts requests, and not those whose header was refused. Method: a stored block
    again, in one request of several parts, and its items without the header in another one."""
    block, following = chain_of(2, BlockShape(item_count=100))
    async with block_door(tmp_path, PublishLimits(slice_items_max=16)) as door, publisher(door) as first:
        await first.block(block)
        await first.expect("acknowledgement", 0)
        await first.items(block.items)
        await first.items(block.items[1:])
        await first.expect("skip_block", 0)
        await first.block(following)
        await first.expect("acknowledgement", 1)
        assert door.services.statistics().counted["publisher_stream_sets_dropped"] == 1


async def test_an_item_larger_than_a_part_is_handed_on_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An item of 100 MB was copied out of its message as a whole, and again for the hash."""
    parts = Parts(monkeypatch)
    block = chain_of(1, BlockShape(item_count=200, item_bytes=5_000))[0]
    async with block_door(tmp_path, PublishLimits(slice_bytes_max=1_000)) as door, publisher(door) as first:
        await first.block(block, set_size=len(block.items))
        await first.expect("acknowledgement", 0)
        assert max(len(piece) for _, piece in parts.pieces) == 1_000
        large = [item for item in block.items if len(item) > 1_000]
        assert b"".join(piece for _, piece in parts.pieces) == b"".join(large)
        assert sum(piece is Piece.FIRST for piece, _ in parts.pieces) == len(large)
        assert any(data.startswith(HEADER_TAG) for piece, data in parts.pieces if piece is not Piece.FIRST)
        assert door.world.publishing.unread_bytes == 0


async def test_a_large_request_waits_where_it_is_while_the_plugins_are_full(tmp_path: Path) -> None:
    """Its items would else be in memory a second time: in the queue of the block."""
    block = chain_of(1, BlockShape(item_count=200, item_bytes=100_000))[0]
    async with block_door(tmp_path) as door, publisher(door) as first:
        publishing = door.world.publishing
        persistence = plugin(door.world, "persistence")
        persistence.inlet.pause()
        await first.block(block, set_size=len(block.items))
        await wait_until(lambda: any(each.publisher.is_held for each in publishing.sessions()))
        assert publishing.unread_bytes > 19_000_000
        assert door.world.publishing.statistics().in_flight.queued_bytes < 2 * publishing.limits.slice_bytes_max
        persistence.inlet.resume()
        await first.expect("acknowledgement", 0)
        assert publishing.unread_bytes == 0


async def test_the_rest_of_a_large_request_comes_before_the_end_of_its_half(tmp_path: Path) -> None:
    block = chain_of(1, BlockShape(item_count=100))[0]
    async with block_door(tmp_path, PublishLimits(slice_items_max=16)) as door, raw_client(door.port) as client:
        first = GrpcPublisher(client, await client.open(pbj_headers(PUBLISH)))
        end = write_message("PublishStreamRequest", {"end_of_block": {"block_number": 0}})
        whole = write_message("PublishStreamRequest", {"block_items": {"block_items": list(block.items)}})
        await client.send(first.stream_id, framed(whole) + framed(end), end=True)
        await wait_until(lambda: door.world.stored() == [0])
        assert door.world.publishing.unread_bytes == 0


async def test_a_fault_in_a_later_part_of_a_request_ends_the_stream(tmp_path: Path) -> None:
    block = chain_of(1, BlockShape(item_count=100))[0]
    async with block_door(tmp_path, PublishLimits(slice_items_max=16)) as door, publisher(door) as first:
        items = b"".join(item_prefix(len(item)) + item for item in block.items) + b"\x12\x00"
        await first.client.send(first.stream_id, framed(bytes_field(1, items)))
        assert "something else than an item" in await first.expect_end(INVALID_REQUEST, NO_BLOCK, 0)
        assert door.world.publishing.unread_bytes == 0
        assert door.world.publishing.statistics().in_flight.blocks == 0


async def test_a_large_request_has_nothing_beside_its_items(tmp_path: Path) -> None:
    """A request with a million fields that nobody knows would hold the event loop for seconds."""
    async with block_door(tmp_path) as door, publisher(door) as first:
        await first.client.send(first.stream_id, framed(b"\x78\x00" * 20_000))
        assert "beside a set of items" in await first.expect_end(INVALID_REQUEST, NO_BLOCK, 0)


async def test_rests_of_large_requests_count_as_waiting_but_for_the_next_block(tmp_path: Path) -> None:
    """Many publishers could else each hold a request of 125 MB."""
    async with block_door(tmp_path) as door, publisher(door) as first, publisher(door) as second:
        publishing = door.world.publishing
        block, following = chain_of(2)
        await first.items(block.items[:2])
        await second.items(following.items[:2])
        await wait_until(lambda: door.world.publishing.statistics().in_flight.blocks == 2)
        publishing.unread_bytes += publishing.limits.queued_bytes_max
        await second.items(following.items[2:])
        await second.end_block(1)
        # The block that all wait for comes all the same.
        await first.items(block.items[2:])
        await first.end_block(0)
        await first.expect("acknowledgement", 0)
        publishing.unread_bytes -= publishing.limits.queued_bytes_max
        door.world.publishing.machine.admit_due = True
        publishing.perform()
        await second.wait_for("acknowledgement", 1)


async def test_the_next_block_waits_for_no_unfinished_message_and_who_waits_has_time(tmp_path: Path) -> None:
    """A publisher that stays within a large message holds the whole budget. Another one sends the block that is
    verified next, and goes on; a third one sends the block after that, waits, and is held."""
    http2 = Http2Limits(unfinished_bytes_max=100_000)
    shape = BlockShape(item_count=20, item_bytes=50_000)
    async with (
        block_door(tmp_path, http2=http2) as door,
        publisher(door) as staying,
        publisher(door) as first,
        publisher(door) as second,
    ):
        block, following = chain_of(2, shape)
        await staying.client.send(staying.stream_id, framed(bytes(1_000_000))[:150_000])
        await wait_until(lambda: budget_of(door).held_bytes == 149_995)
        await first.items(block.items[:1])
        await wait_until(lambda: door.world.publishing.statistics().in_flight.blocks == 1)
        await second.items(following.items[:1])
        await wait_until(lambda: door.world.publishing.statistics().in_flight.blocks == 2)
        # Its items are sent when block 1 is the next one.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(second.items, following.items[1:])
            await wait_until(lambda: any(each.is_held for each in door.world.publishing.statistics().sessions))
            await first.items(block.items[1:])
            await first.end_block(0)
            await first.expect("acknowledgement", 0)
        await second.wait_for("acknowledgement", 0)
        await second.end_block(1)
        await second.expect("acknowledgement", 1)
