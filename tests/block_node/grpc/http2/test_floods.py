"""Goal: a peer that sends much of what costs a server more than itself is cut off, and costs nobody else anything.

Method: frames that no library sends, written byte by byte, over a real socket. Each limit is also kept exactly.
"""

from __future__ import annotations

import gzip
import resource
from collections.abc import Awaitable, Callable
from contextlib import suppress

import h2.settings
import pytest
import trio
import trio.lowlevel
import zstandard
from h2.exceptions import ProtocolError

from block_node.grpc.http2.limits import Http2Limits
from block_node.grpc.http2.status import GrpcStatus
from tests.block_node.grpc.http2.door import CountHandler, Door, HeldHandler, SourceHandler, opened_door, wait_until
from tests.block_node.grpc.http2.raw_client import RawClient, framed, pbj_headers, raw_client, zstd_stream

SMALL = "/test.Test/small"
ENHANCE_YOUR_CALM = 11
LIMITS = Http2Limits(resets_max=20, pings_max=20, settings_max=20, priorities_max=20, empty_frames_max=20)


def frame(kind: int, flags: int, stream_id: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big") + body


async def is_cut_off(door: Door, client: RawClient, error_code: int = ENHANCE_YOUR_CALM) -> None:
    await client.until_closed()
    assert [each.error_code for each in client.goaways] == [error_code]
    # Another connection is served as before.
    async with raw_client(door.port) as other:
        assert (await other.ask(pbj_headers(SMALL), framed(b"x"))).status == 0


async def floods(door: Door, client: RawClient, act: Callable[[], Awaitable[object]]) -> None:
    """Repeats an act until the node has cut the client off."""

    async def repeat() -> None:
        # A client that has read its GOAWAY can open no call any more.
        with suppress(trio.BrokenResourceError, ProtocolError):
            while True:
                await act()
                await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(repeat)
        await is_cut_off(door, client)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "one",
    [
        frame(6, 0, 0, b"12345678"),
        frame(4, 0, 0, b""),
        frame(4, 0, 0, b"\0\4\0\1\0\0" * 20),
        frame(2, 0, 1, b"\0\0\0\0\1"),
        frame(0xBB, 0, 0, b""),
    ],
    ids=["ping", "empty settings", "settings", "priority", "unknown frames"],
)
async def test_a_flood_of_control_frames_is_cut_off(one: bytes) -> None:
    async with opened_door(LIMITS) as door, raw_client(door.port) as client:
        # The client has sent its own settings before.
        await client.put(one * 19)
        assert (await client.ask(pbj_headers(SMALL), framed(b"x"))).status == 0
        await floods(door, client, lambda: client.put(one * 200))
        await wait_until(lambda: door.counts.closed["flood"] == 1)


async def test_a_flood_of_empty_data_is_cut_off() -> None:
    async with opened_door(LIMITS) as door, raw_client(door.port) as client:
        stream_id = await client.open(pbj_headers("/test.Test/count"))
        await client.put(frame(0, 0, stream_id, b"") * 200)
        await is_cut_off(door, client)


async def test_rapid_resets_are_cut_off() -> None:
    """CVE-2023-44487: each call is reset at once, so the most open calls bound nothing."""
    async with opened_door(LIMITS) as door, raw_client(door.port) as client:

        async def open_and_reset() -> None:
            stream_id = await client.open(pbj_headers("/test.Test/hold"))
            client.h2.reset_stream(stream_id, 8)
            await client.flush()

        await floods(door, client, open_and_reset)
        assert len(door.handlers) <= 21
        assert all(handler.reasons for handler in door.handlers)


async def test_errors_that_make_the_node_reset_calls_are_cut_off() -> None:
    """CVE-2025-8671: a window that overflows makes the server reset the call, which counts like a reset by the peer."""
    async with opened_door(LIMITS) as door, raw_client(door.port) as client:

        async def open_and_overflow() -> None:
            stream_id = await client.open(pbj_headers("/test.Test/hold"))
            await client.put(frame(8, 0, stream_id, b"\x7f\xff\xff\xff"))

        await floods(door, client, open_and_overflow)
        assert len(door.handlers) <= 21


async def test_calls_above_the_limit_are_refused_and_too_many_of_them_are_cut_off() -> None:
    limits = Http2Limits(streams_max=3, refused_max=10)
    async with opened_door(limits) as door, raw_client(door.port) as client:
        held = [await client.open(pbj_headers("/test.Test/hold")) for _ in range(3)]
        refused = await client.until_end(await client.open(pbj_headers("/test.Test/hold")))
        assert refused.reset == 7, "REFUSED_STREAM, so a client may try again"
        await client.send(held[0], framed(b"x"), end=True)
        await wait_until(lambda: len(door.handlers) == 3)
        for handler in door.handlers:
            assert isinstance(handler, HeldHandler)
            handler.let()
        assert (await client.until_end(held[0])).status == 0
        # From here on the client does not obey the setting of the node.
        client.h2.remote_settings.max_concurrent_streams = 1_000_000
        client.h2.remote_settings.acknowledge()
        await floods(door, client, lambda: client.open(pbj_headers("/test.Test/hold")))


async def test_a_header_block_that_does_not_end_is_cut_off_before_it_is_kept() -> None:
    async with opened_door() as door, raw_client(door.port) as client:
        # The settings are exchanged before, because a header block stands no other frame inside it.
        await client.ask(pbj_headers(SMALL), framed(b"x"))
        await client.put(frame(1, 0, 3, b"\0\1a" * 100))
        await floods(door, client, lambda: client.put(frame(9, 0, 3, bytes(1000))))


async def test_a_header_block_that_unpacks_to_much_is_cut_off() -> None:
    async with opened_door() as door, raw_client(door.port) as client:
        # One large header in the table of HPACK, and then its number, one byte for each copy.
        name = b"\x40" + b"\x01x" + b"\x7f\x81\x1e" + b"y" * 4000
        await client.put(frame(1, 5, 1, name + b"\xbe" * 4000))
        await is_cut_off(door, client)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01" + bytes(400), bytes(100_000)])
async def test_bytes_that_are_not_http2_end_their_connection(data: bytes) -> None:
    async with opened_door() as door, await trio.open_tcp_stream("127.0.0.1", door.port) as stream:
        await stream.send_all(data)
        with trio.fail_after(10):
            try:
                while await stream.receive_some():
                    pass
            except trio.BrokenResourceError:
                pass
        await wait_until(lambda: sum(door.counts.closed.values()) == 1)


async def test_a_frame_above_the_limit_ends_its_connection() -> None:
    async with opened_door() as door, raw_client(door.port) as client:
        stream_id = await client.open(pbj_headers("/test.Test/count"))
        await client.put(frame(0, 0, stream_id, bytes(256 * 1024 + 1)))
        await is_cut_off(door, client, 6)


def high_water_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("encoding", ["zstd", "gzip"])
async def test_a_bomb_costs_what_it_weighs_and_one_buffer(encoding: str) -> None:
    bomb = zstd_stream(bytes(400_000_000)) if encoding == "zstd" else gzip.compress(bytes(400_000_000), 1)
    async with opened_door() as door, raw_client(door.port) as client:
        before = high_water_bytes()
        stream_id = await client.open(pbj_headers("/test.Test/count", encoding))
        await client.send(stream_id, framed(bomb, compressed=True))
        answer = await client.until_end(stream_id)
        assert answer.status == GrpcStatus.INVALID_ARGUMENT
        assert "when it is decompressed" in answer.text
        assert high_water_bytes() - before < 48 * 1024 * 1024


async def test_a_message_that_is_small_when_packed_and_legal_is_read() -> None:
    message = bytes(100_000_000)
    async with opened_door() as door, raw_client(door.port) as client:
        stream_id = await client.open(pbj_headers("/test.Test/count", "zstd"))
        await client.send(stream_id, framed(zstandard.compress(message), compressed=True), end=True)
        assert (await client.until_end(stream_id)).data == framed(b"1")
        assert len(door.last(CountHandler).messages[0]) == len(message)


async def test_a_reader_that_stops_costs_its_window_and_two_buffers() -> None:
    async with opened_door() as door, raw_client(door.port) as client:
        client.keeps = False
        client.h2.increment_flow_control_window(4 * 1024 * 1024)
        await client.flush()
        stream_id = await client.open(pbj_headers("/test.Test/source"))
        await client.send(stream_id, framed(b"1000:1000000"))
        answer = client.answers[stream_id]
        await client.until(lambda: answer.received_bytes == 65_535)
        await wait_until(lambda: bool(door.connections[0]._machine._blocked))
        machine = door.connections[0]._machine
        call = machine.calls[stream_id]
        handler = door.last(SourceHandler)
        for _ in range(20):
            await trio.sleep(0.01)
            assert call.pending_bytes <= 2 * 1024 * 1024
            assert machine.unsent_bytes <= 1024 * 1024 + 70_000
        assert handler.left >= 997
        # A neighbour on the same connection is answered meanwhile.
        assert (await client.ask(pbj_headers(SMALL), framed(b"x"))).status == 0
        client.h2.reset_stream(stream_id, 8)
        await client.flush()
        await wait_until(lambda: bool(handler.reasons))


async def test_a_peer_that_takes_nothing_from_its_socket_is_given_up() -> None:
    async with opened_door(Http2Limits(send_s_max=0.3, ping_s=100)) as door, raw_client(door.port) as client:
        client.h2.increment_flow_control_window(1 << 30)
        client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1 << 30})
        await client.flush()
        stream_id = await client.open(pbj_headers("/test.Test/source"))
        await client.send(stream_id, framed(b"1000:1000000"))
        await wait_until(lambda: door.counts.closed["stuck"] == 1)
        assert "has taken nothing" in door.last(SourceHandler).reasons[0]


async def test_frames_of_one_byte_cost_little_memory() -> None:
    async with opened_door(Http2Limits(stream_window_bytes=1024 * 1024)) as door, raw_client(door.port) as client:
        stream_id = await client.open(pbj_headers("/test.Test/hold"))
        await wait_until(lambda: bool(door.handlers))
        reader = door.connections[0]._machine.calls[stream_id].reader
        body = framed(bytes(49_995))
        for start in range(0, len(body), 1000):
            for at in range(start, start + 1000):
                client.h2.send_data(stream_id, body[at : at + 1])
            await client.flush()
        await wait_until(lambda: reader.waiting_bytes == 50_000)
        assert len(reader._chunks) < 20
        door.last(HeldHandler).let()
        await wait_until(lambda: door.last(HeldHandler).messages == [bytes(49_995)])


async def test_who_asks_and_reads_no_answers_is_read_no_more() -> None:
    """The answers are larger than the questions, and their reader keeps its window shut."""
    limits = Http2Limits(pending_bytes_max=20_000)
    async with opened_door(limits) as door, raw_client(door.port) as client:
        client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
        stream_id = await client.open(pbj_headers("/test.Test/echo"))
        await wait_until(lambda: bool(door.handlers))
        call = door.connections[0]._machine.calls[stream_id]
        async with trio.open_nursery() as nursery:

            async def talk() -> None:
                await client.send(stream_id, framed(bytes(995)) * 1_000)
                await client.until(lambda: client.answers[stream_id].received_bytes == 1_000_000)

            nursery.start_soon(talk)
            # The window of its questions closes, too.
            await wait_until(lambda: call.window_left_bytes < 1_000)
            assert call.pending_bytes == 20_000
            # It goes on as soon as the answers are read.
            client.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 65_535})
            await client.flush()


async def test_the_headers_of_answers_are_remembered_in_a_bounded_memory() -> None:
    """A peer can allow gigabytes for it, and each answer has a text of its own."""
    async with opened_door() as door, raw_client(door.port) as client:
        client.h2.update_settings({h2.settings.SettingCodes.HEADER_TABLE_SIZE: 2**30})
        await client.flush()
        for number in range(100):
            answer = await client.ask(pbj_headers(f"/nothing/{number}{'x' * 150}"), b"")
            assert answer.status == GrpcStatus.UNIMPLEMENTED
        assert door.connections[0]._machine._h2.encoder.header_table_size == 4096
