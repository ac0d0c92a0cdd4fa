"""Goal: what the official gRPC library sends is served, and it understands every answer.

Method: grpcio's client in a thread, over a real socket, at methods that echo, count and send.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import trio

from block_node.grpc.http2.limits import Http2Limits
from tests.block_node.grpc.http2.door import Door, EchoHandler, HeldHandler, opened_door, wait_until

grpc = pytest.importorskip("grpc", reason="grpcio comes with the extra spark-connect")

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.enable_retries", 0)]


async def with_channel(door: Door, act: Callable[[Any], Any], **options: Any) -> Any:
    """Runs `act` with a channel in a thread, and returns its result."""

    def run() -> Any:
        with grpc.insecure_channel(door.address, options=OPTIONS, **options) as channel:
            return act(channel)

    return await trio.to_thread.run_sync(run)


def call(channel: Any, method: str, messages: Iterable[bytes], **options: Any) -> list[bytes]:
    return list(channel.stream_stream(f"/test.Test/{method}")(iter(messages), **options))


async def test_messages_of_all_sizes_come_back() -> None:
    sizes = [0, 1, 4, 5, 1000, 16_384, 65_535, 65_536, 300_000, 5_000_000]
    messages = [bytes(range(256)) * (size // 256) + bytes(size % 256) for size in sizes]
    async with opened_door() as door:
        assert await with_channel(door, lambda channel: call(channel, "echo", messages)) == messages
        assert door.counts.calls == {"OK": 1}


@pytest.mark.parametrize("compression", ["Gzip", "NoCompression"])
async def test_compressed_messages_come_back(compression: str) -> None:
    messages = [b"block" * 100_000, b"", b"short"]
    async with opened_door(prefers=("zstd", "gzip")) as door:
        kind = getattr(grpc.Compression, compression)
        assert await with_channel(door, lambda channel: call(channel, "echo", messages), compression=kind) == messages


async def test_an_unknown_method_is_unimplemented() -> None:
    def act(channel: Any) -> tuple[Any, str]:
        with pytest.raises(grpc.RpcError) as raised:
            channel.unary_unary("/test.Test/nothing")(b"")
        return raised.value.code(), raised.value.details()

    async with opened_door() as door:
        code, details = await with_channel(door, act)
        assert (code, details) == (grpc.StatusCode.UNIMPLEMENTED, "/test.Test/nothing is not served here")


async def test_a_message_above_the_limit_of_its_method_is_refused_and_the_connection_stays() -> None:
    def act(channel: Any) -> tuple[Any, str, bytes]:
        with pytest.raises(grpc.RpcError) as raised:
            channel.unary_unary("/test.Test/small")(bytes(65_537))
        return raised.value.code(), raised.value.details(), channel.unary_unary("/test.Test/small")(bytes(65_536))

    async with opened_door() as door:
        code, details, answer = await with_channel(door, act)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert details == "a message of 65537 bytes; one message has at most 65536 here"
        assert len(answer) == 65_536
        assert len(door.connections) == 1


async def test_a_handler_that_fails_ends_its_call_only() -> None:
    def act(channel: Any) -> tuple[Any, bytes]:
        with pytest.raises(grpc.RpcError) as raised:
            channel.unary_unary("/test.Test/fail")(b"")
        return raised.value.code(), channel.unary_unary("/test.Test/small")(b"on")

    async with opened_door() as door:
        assert await with_channel(door, act) == (grpc.StatusCode.INTERNAL, b"on")
        assert len(door.connections) == 1


async def test_a_deadline_ends_a_call_that_is_held() -> None:
    def act(channel: Any) -> Any:
        # The connection is there before the time begins.
        channel.unary_unary("/test.Test/small")(b"first")
        with pytest.raises(grpc.RpcError) as raised:
            call(channel, "hold", [b"x"], timeout=2)
        return raised.value.code()

    async with opened_door() as door:
        assert await with_channel(door, act) is grpc.StatusCode.DEADLINE_EXCEEDED
        await wait_until(lambda: bool(door.last(HeldHandler).reasons))


async def test_a_cancelled_call_is_told_to_its_handler() -> None:
    begun = threading.Event()

    def requests() -> Iterator[bytes]:
        yield b"first"
        begun.wait()

    def act(channel: Any) -> None:
        answers = channel.stream_stream("/test.Test/echo")(requests())
        assert next(answers) == b"first"
        answers.cancel()
        begun.set()

    async with opened_door() as door:
        await with_channel(door, act)
        await wait_until(lambda: bool(door.last(EchoHandler).reasons))


async def test_a_large_answer_goes_out_as_its_reader_takes_it() -> None:
    def act(channel: Any) -> int:
        answers = channel.unary_stream("/test.Test/source")(b"40:1000000")
        return sum(len(each) for each in answers)

    async with opened_door() as door:
        assert await with_channel(door, act) == 40_000_000
        assert door.last(EchoHandler).rooms > 1


async def test_a_thousand_calls_on_one_connection() -> None:
    def act(channel: Any) -> int:
        echo = channel.unary_unary("/test.Test/small")
        return sum(len(echo(b"%d" % each)) for each in range(1_000))

    async with opened_door() as door:
        assert await with_channel(door, act) == 2_890
        assert len(door.connections) == 1
        assert door.counts.calls == {"OK": 1_000}


async def test_more_calls_at_once_than_streams_are_allowed() -> None:
    """grpcio opens as many as it likes before it has seen the settings; h2 alone would end the connection."""

    def act(channel: Any) -> int:
        echo = channel.unary_unary("/test.Test/small")
        futures = [echo.future(b"%d" % each, wait_for_ready=True) for each in range(60)]
        return sum(len(future.result()) for future in futures)

    async with opened_door(Http2Limits(streams_max=8)) as door:
        assert await with_channel(door, act) == 110


async def test_one_hundred_megabytes_in_one_message() -> None:
    def act(channel: Any) -> list[bytes]:
        return call(channel, "count", [bytes(100_000_000)])

    async with opened_door() as door:
        assert await with_channel(door, act) == [b"1"]


async def test_a_drained_connection_serves_what_it_has_and_the_channel_connects_again() -> None:
    half_way = threading.Event()
    go_on = threading.Event()

    def requests() -> Iterator[bytes]:
        yield b"one"
        go_on.wait()
        yield b"two"

    def act(channel: Any) -> tuple[list[bytes], bytes]:
        answers = channel.stream_stream("/test.Test/echo")(requests())
        found = [next(answers)]
        half_way.set()
        found += list(answers)
        return found, channel.unary_unary("/test.Test/small")(b"again", wait_for_ready=True)

    async with opened_door() as door, trio.open_nursery() as nursery:
        found: list[Any] = []

        async def run() -> None:
            found.append(await with_channel(door, act))

        nursery.start_soon(run)
        await trio.to_thread.run_sync(half_way.wait)
        door.connections[0].drain()
        # The first GOAWAY, its PING and the second GOAWAY have left before the call goes on.
        await wait_until(lambda: door.connections[0]._machine.stage.value == "leaving")
        go_on.set()
        await wait_until(lambda: bool(found))
        assert found == [([b"one", b"two"], b"again")]
        assert len(door.connections) == 2
        # Behind its last call, grpcio closes a drained connection, too: either side may be the first. The other
        # connection ends with its channel.
        await wait_until(lambda: sum(door.counts.closed.values()) == 2)
        assert set(door.counts.closed) <= {"shutdown", "peer", "broken"}
