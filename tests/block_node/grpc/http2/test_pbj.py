"""Goal: what PBJ's client sends is served: the consensus node, and backfill of block nodes (facts/grpc_peers.md §1.2).

Method: a client on bare h2 sends PBJ's headers and frames over a real socket.
"""

from __future__ import annotations

import gzip

import h2.events
import pytest
import trio

from block_node.grpc.http2.limits import Http2Limits
from block_node.grpc.http2.status import GrpcStatus
from tests.block_node.grpc.http2.door import CountHandler, HeldHandler, opened_door, wait_until
from tests.block_node.grpc.http2.raw_client import PATIENCE_S, Headers, framed, pbj_headers, raw_client, zstd_stream

ECHO, SMALL = "/test.Test/echo", "/test.Test/small"


async def test_a_request_without_te_and_with_an_empty_authority_is_served() -> None:
    async with opened_door() as door, raw_client(door.port) as client:
        answer = await client.ask(pbj_headers(SMALL), framed(b"block"))
        assert (bytes(answer.data), answer.status) == (framed(b"block"), 0)
        assert answer.headers == {
            ":status": "200",
            "content-type": "application/grpc",
            "grpc-encoding": "identity",
            "grpc-accept-encoding": "identity,gzip,zstd",
        }


@pytest.mark.parametrize("content_type", ["application/grpc+proto", "application/grpc;charset=utf-8"])
async def test_other_names_of_the_content_and_unknown_metadata_are_served(content_type: str) -> None:
    headers = [(name, content_type if name == "content-type" else value) for name, value in pbj_headers(SMALL)]
    headers += [("hiero-correlation-id", "N1-STR1-BLK7-REQ2"), ("x-odd", " spaces around ")]
    async with opened_door() as door, raw_client(door.port) as client:
        answer = await client.ask(headers, framed(b"block"))
        assert answer.status == 0


@pytest.mark.parametrize("encoding", ["zstd", "gzip"])
async def test_messages_compressed_without_asking_are_read(encoding: str) -> None:
    """Consensus nodes send zstd by default since hiero-consensus-node PR 26937."""
    message = b"item" * 100_000
    packed = zstd_stream(message) if encoding == "zstd" else gzip.compress(message)
    async with opened_door() as door, raw_client(door.port) as client:
        stream_id = await client.open(pbj_headers("/test.Test/count", encoding))
        await client.send(stream_id, framed(packed, compressed=True) + framed(b"plain") + framed(zstd_stream(b"") if
            encoding == "zstd" else gzip.compress(b""), compressed=True), end=True)  # fmt: skip
        answer = await client.until_end(stream_id)
        assert answer.data == framed(b"3")
        assert door.last(CountHandler).messages == [message, b"plain", b""]


async def test_an_unknown_encoding_is_unimplemented_and_names_the_known_ones() -> None:
    async with opened_door() as door, raw_client(door.port) as client:
        answer = await client.ask(pbj_headers(SMALL, "snappy"), framed(b"x", compressed=True))
        assert answer.status == GrpcStatus.UNIMPLEMENTED
        assert answer.headers["grpc-accept-encoding"] == "identity,gzip,zstd"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (framed(b"x", compressed=True), GrpcStatus.INTERNAL),
        (b"\x02\0\0\0\1x", GrpcStatus.INTERNAL),
        (b"\0\0\0\0\5ab", GrpcStatus.INTERNAL),
        (b"", GrpcStatus.INVALID_ARGUMENT),
    ],
    ids=["flag without an encoding", "unknown flag", "cut short", "no message"],
)
async def test_bytes_that_are_no_message_end_their_call_only(body: bytes, status: GrpcStatus) -> None:
    async with opened_door() as door, raw_client(door.port) as client:
        answer = await client.ask(pbj_headers(SMALL), body)
        assert answer.status == status
        assert (await client.ask(pbj_headers(SMALL), framed(b"x"))).status == 0


@pytest.mark.parametrize("encoding", ["zstd", "gzip"])
@pytest.mark.parametrize("spoil", ["garbage", "cut", "tail"])
async def test_damaged_compression_ends_its_call_only(encoding: str, spoil: str) -> None:
    good = zstd_stream(b"block" * 1000) if encoding == "zstd" else gzip.compress(b"block" * 1000)
    bad = {"garbage": b"garbage", "cut": good[:-3], "tail": good + b"!"}[spoil]
    async with opened_door() as door, raw_client(door.port) as client:
        answer = await client.ask(pbj_headers(SMALL, encoding), framed(bad, compressed=True))
        assert answer.status == GrpcStatus.INTERNAL
        assert "a message is not" in answer.text
        assert (await client.ask(pbj_headers(SMALL), framed(b"x"))).status == 0


async def test_pings_at_each_time_out_are_answered_without_end() -> None:
    """PBJ pings whenever a read times out; gRPC's own server would end the connection (`too_many_pings`)."""
    async with opened_door() as door, raw_client(door.port) as client:
        stream_id = await client.open(pbj_headers(ECHO))
        for number in range(100):
            client.h2.ping(b"%08d" % number)
        await client.flush()
        await client.send(stream_id, framed(b"still here"))
        answer = client.answers[stream_id]
        await client.until(lambda: answer.data == framed(b"still here"))
        assert not client.goaways


async def test_the_window_of_a_call_is_that_of_http2_and_grows_as_messages_are_taken() -> None:
    async with opened_door() as door, raw_client(door.port) as client:
        stream_id = await client.open(pbj_headers("/test.Test/count"))
        assert client.h2.local_flow_control_window(stream_id) == 65_535
        await client.send(stream_id, framed(bytes(3_000_000)), end=True)
        assert (await client.until_end(stream_id)).data == framed(b"1")
        # All of the connection's window is given back, whatever the call did.
        assert client.h2.outbound_flow_control_window > 8 * 1024 * 1024


async def test_a_held_call_stops_at_its_window_and_its_neighbour_goes_on() -> None:
    """h2's `acknowledge_received_data` gives both windows back together: a held call would take its connection's."""
    async with opened_door(Http2Limits(connection_window_bytes=100_000)) as door, raw_client(door.port) as client:
        held = await client.open(pbj_headers("/test.Test/hold"))
        room = client.h2.local_flow_control_window(held)
        sent = 0
        while room and sent < 65_535:
            step = min(room, 16_384)
            client.h2.send_data(held, (framed(bytes(995)) * 100)[sent % 1000 : sent % 1000 + step])
            await client.flush()
            sent += step
            room = client.h2.local_flow_control_window(held)
        assert sent == 65_535
        # The neighbour sends more than the connection's window, which would be used up.
        answer = await client.ask(pbj_headers("/test.Test/count"), framed(bytes(50_000)) * 10)
        assert answer.data == framed(b"10")
        assert client.h2.local_flow_control_window(held) == 0
        handler = next(each for each in door.handlers if isinstance(each, HeldHandler))
        assert not handler.messages
        handler.let()
        await client.until(lambda: client.h2.local_flow_control_window(held) > 40_000)
        assert len(handler.messages) == 65
        assert door.connections[0]._machine.calls[held].closed_s_longest > 0


async def test_a_widened_call_may_send_at_once() -> None:
    async with opened_door() as door, raw_client(door.port) as client:
        stream_id = await client.open(pbj_headers("/test.Test/hold"))
        await wait_until(lambda: bool(door.handlers))
        door.last(HeldHandler).call.widen(8 * 1024 * 1024)
        await client.until(lambda: client.h2.local_flow_control_window(stream_id) == 8 * 1024 * 1024)


async def test_a_call_that_the_node_ends_is_reset_only_after_its_peer_had_time_to_read() -> None:
    async with opened_door(Http2Limits(linger_s=0.1)) as door, raw_client(door.port) as client:
        stream_id = await client.open(pbj_headers(SMALL))
        await client.send(stream_id, framed(b"x"))
        answer = client.answers[stream_id]
        await client.until(lambda: answer.reset is not None)
        # The trailers came before, and the connection goes on.
        assert (answer.has_ended, answer.status, answer.reset) == (True, 0, 0)
        assert (await client.ask(pbj_headers(SMALL), framed(b"y"))).status == 0
        assert len(door.connections) == 1


async def test_the_bytes_of_an_ended_call_are_not_read_and_cost_its_neighbours_nothing() -> None:
    async with opened_door(Http2Limits(connection_window_bytes=100_000)) as door, raw_client(door.port) as client:
        stream_id = await client.open(pbj_headers("/test.Test/nothing"))
        answer = client.answers[stream_id]
        await client.until(lambda: answer.has_ended)
        client.h2.send_data(stream_id, bytes(16_384))
        for _ in range(2):
            client.h2.send_data(stream_id, bytes(16_384))
        await client.flush()
        assert (await client.ask(pbj_headers("/test.Test/count"), framed(bytes(200_000)))).data == framed(b"1")
        assert client.h2.local_flow_control_window(stream_id) == 65_535 - 3 * 16_384, "no window for what is over"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([(":method", "GET"), ("content-type", "application/grpc")], "405"),
        ([(":method", "POST"), ("content-type", "application/json")], "415"),
        ([(":method", "POST"), ("content-type", "application/grpc+json")], "415"),
        ([(":method", "POST"), ("content-type", "application/grpc-web+proto")], "415"),
        ([(":method", "POST")], "415"),
    ],
)
async def test_what_is_not_grpc_gets_an_answer_of_http(headers: Headers, status: str) -> None:
    headers = [*headers[:1], (":path", SMALL), (":scheme", "http"), (":authority", "x"), *headers[1:]]
    async with opened_door() as door, raw_client(door.port) as client:
        stream_id = await client.open(headers)
        answer = await client.until_end(stream_id)
        assert answer.headers == {":status": status}
        assert (await client.ask(pbj_headers(SMALL), framed(b"x"))).status == 0


async def test_a_peer_that_says_goaway_still_gets_its_answers() -> None:
    """h2 alone refuses to send anything after a GOAWAY, in either direction."""
    async with opened_door() as door, raw_client(door.port) as client:
        stream_id = await client.open(pbj_headers("/test.Test/hold"))
        await client.send(stream_id, framed(b"x"), end=True)
        await client.stream.send_all(b"\0\0\x08\x07\0\0\0\0\0" + bytes(8))
        await wait_until(lambda: door.connections[0]._machine.peer_leaves)
        door.last(HeldHandler).let()
        answer = await client.until_end(stream_id)
        assert (bytes(answer.data), answer.status) == (framed(b"1"), 0)


async def test_a_peer_that_is_gone_is_found_by_a_ping() -> None:
    async with opened_door(Http2Limits(ping_s=0.05, ping_answer_s=0.1)) as door, raw_client(door.port) as client:
        stream_id = await client.open(pbj_headers("/test.Test/hold"))
        await wait_until(lambda: bool(door.handlers))
        # It answers nothing more; its socket stays open.
        await wait_until(lambda: door.counts.closed["silent"] == 1)
        assert "PING" in door.last(HeldHandler).reasons[0]
        assert stream_id == 1


async def test_an_idle_connection_ends_and_an_open_call_is_never_idle() -> None:
    limits = Http2Limits(idle_s_max=0.2, ping_s=0.05)
    async with opened_door(limits) as door, raw_client(door.port) as idle, raw_client(door.port) as busy:
        stream_id = await busy.open(pbj_headers("/test.Test/hold"))
        async with trio.open_nursery() as nursery:

            async def answer_pings() -> None:
                while True:
                    await busy.receive()

            nursery.start_soon(answer_pings)
            await idle.until_closed()
            assert isinstance(idle.goaways[0], h2.events.ConnectionTerminated)
            assert idle.goaways[0].error_code == 0
            await wait_until(lambda: busy.pings >= 8)
            nursery.cancel_scope.cancel()
        await busy.send(stream_id, framed(b"x"), end=True)
        door.last(HeldHandler).let()
        assert (await busy.until_end(stream_id)).status == 0


async def test_a_message_that_does_not_come_to_its_end_is_given_up() -> None:
    async with opened_door(Http2Limits(message_s_max=0.1)) as door, raw_client(door.port) as client:
        stream_id = await client.open(pbj_headers("/test.Test/count"))
        await client.send(stream_id, framed(bytes(100_000))[:90_000])
        assert (await client.until_end(stream_id)).status == GrpcStatus.DEADLINE_EXCEEDED
        assert door.budget.held_bytes == 0
        assert "not complete" in door.last(CountHandler).reasons[0]


async def test_unfinished_messages_share_a_budget_and_wait_for_each_other() -> None:
    async with opened_door(Http2Limits(unfinished_bytes_max=90_000)) as door, raw_client(door.port) as client:
        first = await client.open(pbj_headers("/test.Test/count"))
        second = await client.open(pbj_headers("/test.Test/count"))
        await client.send(first, framed(bytes(200_000))[:100_005])
        await wait_until(lambda: door.budget.held_bytes == 100_000)
        await client.send(second, framed(bytes(200_000))[:100_005])
        await wait_until(lambda: door.budget.held_bytes == 200_000)
        assert door.connections[0]._machine.calls[second].reader.must_wait
        # Small messages need nothing of the budget.
        assert (await client.ask(pbj_headers(SMALL), framed(b"x"))).status == 0
        await client.send(first, bytes(100_000), end=True)
        assert (await client.until_end(first)).data == framed(b"1")
        await client.send(second, bytes(100_000), end=True)
        assert (await client.until_end(second)).data == framed(b"1")
        assert door.budget.held_bytes == 0


async def test_who_only_announces_large_messages_stops_nobody() -> None:
    async with opened_door(Http2Limits(unfinished_bytes_max=250_000)) as door, raw_client(door.port) as client:
        for _ in range(4):
            announcing = await client.open(pbj_headers("/test.Test/count"))
            await client.send(announcing, framed(bytes(125_000))[:20])
        with trio.fail_after(PATIENCE_S):
            answer = await client.ask(pbj_headers("/test.Test/count"), framed(bytes(200_000)))
        assert answer.data == framed(b"1")
