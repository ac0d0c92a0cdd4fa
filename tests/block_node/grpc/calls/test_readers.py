"""Goal: subscribers, readers of single blocks and askers of the status get the real node's answers over gRPC
(facts/block_node.md §1.4 to §1.6, §4.3), also where only bare frames or the inside of the node show it.
tests/block_node/grpc/conformance has what every client can see.

Method: bare h2 with PBJ's frames, and grpcio, at a node on a real database, over real sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from block_node.blocks.errors import Level
from block_node.blocks.items import make_item
from block_node.blocks.settings import VerifierSettings
from block_node.events import NodeFailure
from block_node.grpc.http2.limits import Http2Limits
from block_node.grpc.limits import GrpcLimits
from block_node.grpc.messages import (
    BLOCK_NODE,
    HEALTH,
    NO_BLOCK,
    REFLECTION,
    REFLECTION_ALPHA,
    WireMessage,
    read_message,
    write_message,
)
from tests.block_node.grpc.calls.block_door import (
    GET,
    STATUS,
    SUBSCRIBE,
    BlockDoor,
    ask,
    block_door,
    blocks_of,
    publisher,
    range_of,
)
from tests.block_node.grpc.http2.door import wait_until
from tests.block_node.grpc.http2.raw_client import Answer, framed, pbj_headers, raw_client
from tests.block_node.publish.samples import chain_of
from tests.block_node.publish.test_node_faults import plugin

SUCCESS, INVALID_REQUEST, ERROR, INVALID_START, INVALID_END, NOT_AVAILABLE = range(1, 7)
INTERNAL = 13


async def publish(door: BlockDoor, count: int, first: int = 0) -> None:
    async with publisher(door) as one:
        for block in chain_of(count)[first:]:
            await one.block(block, set_size=50)
        await one.wait_for("acknowledgement", count - 1)


async def publish_items(door: BlockDoor, items: list[bytes]) -> None:
    """Publishes block 0, each item in a message of its own."""
    async with publisher(door) as one:
        for item in items:
            await one.items([item])
        await one.end_block(0)
        await one.expect("acknowledgement", 0)


def parts_of(answer: Answer) -> list[WireMessage]:
    return [read_message("SubscribeStreamResponse", message) for message in answer.messages()]


async def test_a_subscription_that_follows_gets_each_new_block(tmp_path: Path) -> None:
    async with block_door(tmp_path) as door, raw_client(door.port) as client:
        await publish(door, 2)
        stream_id = await client.open(pbj_headers(SUBSCRIBE))
        await client.send(stream_id, framed(range_of(0, NO_BLOCK)), end=True)
        answer = client.answers[stream_id]
        await client.until(lambda: len(blocks_of(parts_of(answer))) == 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish, door, 6, 2)
            await client.until(lambda: any("end_of_block" in part and part["end_of_block"].get("block_number") == 5
                                           for part in parts_of(answer)))  # fmt: skip
        assert list(blocks_of(parts_of(answer))) == [0, 1, 2, 3, 4, 5]
        # The last publisher has gone, and the subscription goes on: no error, which a mirror node would count.
        assert not answer.has_ended
        door.world.block_node.stop()
        await client.until_end(stream_id)
        assert parts_of(answer)[-1] == {"status": SUCCESS}


@pytest.mark.parametrize(
    ("start", "end", "status"),
    [
        (3, 2, INVALID_END),
        (2**63, 2, INVALID_START),
        (0, 2**63, INVALID_END),
        (NO_BLOCK - 1, NO_BLOCK, INVALID_START),
        (5_000, NO_BLOCK, NOT_AVAILABLE),
    ],
)
async def test_ranges_that_cannot_be_are_refused_with_their_code(
    tmp_path: Path, start: int, end: int, status: int
) -> None:
    async with block_door(tmp_path) as door:
        await publish(door, 2)
        answer = await ask(door, SUBSCRIBE, range_of(start, end))
        assert parts_of(answer) == [{"status": status}]
        assert answer.status == 0
        assert answer.text


async def test_a_filter_of_a_later_version_is_ignored(tmp_path: Path) -> None:
    async with block_door(tmp_path) as door:
        await publish(door, 2)
        answer = await ask(door, SUBSCRIBE, range_of(0, 1) + b"\x1a\x04\x08\x01\x10\x04")
        assert list(blocks_of(parts_of(answer))) == [0, 1]


async def test_large_items_come_whole(tmp_path: Path) -> None:
    """hiero-block-node 2102 and 3666: an item of more than 4 MB ended the subscription without a word."""
    block = chain_of(1)[0]
    large = [make_item(4, bytes(size)) for size in (2_000_000, 4_200_000, 10_000_000, 36_000_000)]
    items = [block.items[0], *large, *block.items[1:]]
    verifier = VerifierSettings(levels=Level.STRUCTURE, item_bytes_max=64_000_000)
    async with block_door(tmp_path, verifier=verifier) as door:
        await publish_items(door, items)
        answer = await ask(door, SUBSCRIBE, range_of(0, 0))
        assert blocks_of(parts_of(answer)) == {0: items}
        got = await ask(door, GET, write_message("BlockRequest", {"block_number": 0}))
        assert read_message("BlockResponse", got.messages()[0]) == {"status": 1, "block": {"items": items}}


async def test_a_subscriber_that_takes_nothing_is_ended_and_told(tmp_path: Path) -> None:
    block = chain_of(1)[0]
    items = [block.items[0], *[make_item(4, Random(0).randbytes(900_000)) for _ in range(8)], *block.items[1:]]
    http2, verifier = Http2Limits(send_s_max=0.3), VerifierSettings(levels=Level.STRUCTURE)
    async with block_door(tmp_path, http2=http2, verifier=verifier) as door, raw_client(door.port) as client:
        await publish_items(door, items)
        client.keeps = False
        answer = await client.ask(pbj_headers(SUBSCRIBE), framed(range_of(0, 0)))
        assert (answer.received_bytes, answer.status) == (65_535, 8)
        assert door.services.statistics().subscribe.ended == {"LEFT": 1}
        assert door.counts.calls["RESOURCE_EXHAUSTED"] == 1


async def test_a_node_that_fails_within_a_large_item_ends_the_call_with_a_status_of_grpc(tmp_path: Path) -> None:
    """The status of a subscription is a message of its own, and would be read as bytes of the item."""
    block = chain_of(1)[0]
    items = [block.items[0], make_item(4, Random(0).randbytes(8_000_000)), *block.items[1:]]
    verifier = VerifierSettings(levels=Level.STRUCTURE)
    async with block_door(tmp_path, verifier=verifier) as door, raw_client(door.port) as client:
        async with publisher(door) as one:
            await one.items(items)
            await one.end_block(0)
            await one.expect("acknowledgement", 0)
        client.keeps = False
        stream_id = await client.open(pbj_headers(SUBSCRIBE))
        await client.send(stream_id, framed(range_of(0, 0)), end=True)
        await client.until(lambda: client.answers[stream_id].received_bytes == 65_535)
        door.world.block_node.facility.publish(NodeFailure("the disk said no"))
        answer = await client.until_end(stream_id)
        assert (answer.status, answer.text) == (INTERNAL, "the disk said no")
        assert len(answer.messages()) == 1, "only the header is complete"
        await wait_until(lambda: door.services.statistics().subscribe.ended == {"ERROR": 1})


async def test_a_subscriber_within_a_block_gets_its_end_before_that_of_the_node(tmp_path: Path) -> None:
    """A mirror node throws at a block that is not whole. Method: its window closes within a block that is larger than
    what the node keeps unsent."""
    first = chain_of(1)[0]
    items = [first.items[0], *[make_item(4, Random(0).randbytes(900_000)) for _ in range(8)], *first.items[1:]]
    verifier = VerifierSettings(levels=Level.STRUCTURE)
    async with block_door(tmp_path, verifier=verifier) as door, raw_client(door.port) as client:
        await publish_items(door, items)
        client.keeps = False
        stream_id = await client.open(pbj_headers(SUBSCRIBE))
        await client.send(stream_id, framed(range_of(0, NO_BLOCK)), end=True)
        answer = client.answers[stream_id]
        await client.until(lambda: answer.received_bytes == 65_535)
        door.world.block_node.stop()
        client.keeps = True
        client.h2.increment_flow_control_window(16 * 1024 * 1024)
        client.h2.increment_flow_control_window(16 * 1024 * 1024, stream_id)
        await client.flush()
        await client.until_end(stream_id)
        *parts, status = parts_of(answer)
        assert (blocks_of(parts), status) == ({0: items}, {"status": SUCCESS})


async def test_a_reader_that_comes_and_goes_leaves_nothing_behind(tmp_path: Path) -> None:
    """hiero-block-node 3150: a mirror node that came in the middle of a block got an item that is no header, and came
    again. Each reconnect leaked, until storage stopped."""
    last = chain_of(3)[2]
    async with block_door(tmp_path) as door, publisher(door) as one:
        await publish(door, 2)
        await one.items(last.items[:3])
        await wait_until(lambda: door.world.publishing.statistics().in_flight.blocks == 1)
        for number in range(100):
            async with raw_client(door.port) as client:
                stream_id = await client.open(pbj_headers(SUBSCRIBE))
                await client.send(stream_id, framed(range_of(1, NO_BLOCK)))
                answer = client.answers[stream_id]
                await client.until(lambda answer=answer: any("end_of_block" in part for part in parts_of(answer)))  # type: ignore[misc]
                assert list(blocks_of(parts_of(answer))) == [1]
                # Every second one only loses its connection.
                if number % 2:
                    client.h2.reset_stream(stream_id, 8)
                    await client.flush()
        await wait_until(lambda: door.services.statistics().subscribe.sessions == 0)
        assert door.services.statistics().subscribe.ended == {"LEFT": 100}
        await one.items(last.items[3:])
        await one.end_block(2)
        await one.wait_for("acknowledgement", 2)


async def test_why_a_call_was_refused_is_in_the_log(tmp_path: Path) -> None:
    """Its peer may show no `grpc-message`. Once each, also where the answer has a code of its own."""
    async with block_door(tmp_path, grpc=GrpcLimits(message_bytes_max=1_000)) as door, publisher(door) as one:
        with capture_logs() as lines:
            answers = [
                await ask(door, SUBSCRIBE, range_of(5_000, NO_BLOCK)),
                await ask(door, GET, write_message("BlockRequest", {"block_number": 3})),
                await ask(door, f"{STATUS}s", b""),
            ]
            await one.items([bytes(2_000)])
            answers.append(await one.client.until_end(one.stream_id))
            await ask(door, STATUS, b"")
        told = [line for line in lines if line["event"] == "grpc_call_ended"]
        assert [line["reason"] for line in told] == [answer.text for answer in answers]
        assert [line["status"] for line in told] == ["OK", "OK", "UNIMPLEMENTED", "INVALID_ARGUMENT"]
        assert "one message has at most 1000 here" in told[-1]["reason"]


@pytest.mark.parametrize(
    ("request_", "number", "status"),
    [
        ({"block_number": 1}, 1, 1),
        ({}, None, 2),
        ({"block_number": 3}, None, 5),
    ],
)
async def test_one_block(tmp_path: Path, request_: WireMessage, number: int | None, status: int) -> None:
    async with block_door(tmp_path) as door:
        await publish(door, 3)
        answer = await ask(door, GET, write_message("BlockRequest", request_))
        found = read_message("BlockResponse", answer.messages()[0])
        assert found["status"] == status
        if number is not None:
            assert found["block"]["items"] == list(chain_of(3)[number].items)
        assert (answer.status, answer.text == "") == (0, status == SUCCESS), "a refusal says why"


async def test_the_status_is_answered_while_a_publisher_sends_at_full_speed(tmp_path: Path) -> None:
    """The publisher never stops, so who waited for all that it has sent would wait for ever. A mirror node waits
    400 ms; what a machine takes is a figure of the bench."""
    items = [make_item(4, bytes(8_000))] * 100
    async with block_door(tmp_path) as door, publisher(door) as one, raw_client(door.port) as other:
        sent = 0
        async with trio.open_nursery() as nursery:

            async def publish() -> None:
                nonlocal sent
                await one.items(chain_of(1)[0].items[:2])
                while True:
                    await one.items(items)
                    sent += 1

            nursery.start_soon(publish)
            for before in range(0, 100, 10):
                await wait_until(lambda before=before: sent > before)  # type: ignore[misc]
                assert (await other.ask(pbj_headers(STATUS), framed(b""))).status == 0
            nursery.cancel_scope.cancel()


async def test_the_status_does_not_wait_for_what_a_publisher_has_sent(tmp_path: Path) -> None:
    """The plugins take nothing, so that the publisher's backlog fills its window. The status is asked over its own
    connection."""
    async with block_door(tmp_path) as door, publisher(door) as one:
        await one.items(chain_of(1)[0].items[:2])
        plugin(door.world, "persistence").inlet.pause()
        message = {"block_items": {"block_items": [make_item(4, bytes(8_000))] * 100}}
        data = framed(write_message("PublishStreamRequest", message)) * 200
        client, at = one.client, 0

        def is_held() -> bool:
            return any(each.is_held for each in door.world.publishing.statistics().sessions)

        while not is_held() or client.h2.local_flow_control_window(one.stream_id):
            room = min(client.h2.local_flow_control_window(one.stream_id), client.h2.max_outbound_frame_size)
            client.h2.send_data(one.stream_id, data[at : at + room])
            at += room
            await client.flush()
            with trio.move_on_after(0 if room else 0.05):
                await client.receive()
        assert (await client.ask(pbj_headers(STATUS), framed(b""))).status == 0
        assert is_held()
        assert at < len(data)
        plugin(door.world, "persistence").inlet.resume()


async def test_an_empty_node_expects_its_first_block_also_before_it_takes_publishers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with block_door(tmp_path, first_block=7) as door:
        for _ in range(2):
            found = read_message("ServerStatusResponse", (await ask(door, STATUS, b"")).messages()[0])
            assert found["next_expected_block"] == 7
            monkeypatch.setattr(door.world.block_node, "publishing", None)
        monkeypatch.undo()


async def in_thread(door: BlockDoor, act: Callable[[Any], Any]) -> Any:
    grpc = pytest.importorskip("grpc", reason="grpcio comes with the extra spark-connect")

    def run() -> Any:
        with grpc.insecure_channel(
            f"127.0.0.1:{door.port}", options=[("grpc.max_receive_message_length", -1)]
        ) as channel:
            return act(channel)

    return await trio.to_thread.run_sync(run)


async def test_health_and_reflection_answer_without_any_right(tmp_path: Path) -> None:
    def act(channel: Any) -> None:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert read_message("HealthCheckResponse", check(b""), HEALTH) == {"status": 1}
        for file in (REFLECTION, REFLECTION_ALPHA):
            [method] = file.methods()
            asked = [
                {"list_services": ""},
                {"file_containing_symbol": "org.hiero.block.api.BlockNodeService"},
                {"file_containing_symbol": "org.hiero.block.api.PublishStreamResponse.EndOfStream"},
                {"file_by_filename": "block_node.proto"},
                {"file_containing_symbol": "no.Thing"},
            ]
            requests = [write_message("ServerReflectionRequest", each, file) for each in asked]
            answers = [
                read_message("ServerReflectionResponse", each, file)
                for each in channel.stream_stream(method.path)(iter(requests))
            ]
            names = [each["name"] for each in answers[0]["list_services_response"]["service"]]
            assert "org.hiero.block.api.BlockStreamPublishService" in names
            assert "grpc.health.v1.Health" in names
            for answer in answers[1:4]:
                assert answer["file_descriptor_response"]["file_descriptor_proto"] == [BLOCK_NODE.descriptor()]
            assert answers[4]["error_response"]["error_code"] == 5

    async with block_door(tmp_path) as door:
        await in_thread(door, act)
