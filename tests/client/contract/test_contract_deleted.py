"""Goal: who uses a stream that somebody else deletes is told so soon, and a reader never makes it anew.

Method: one scenario each, against a real server, through every shell; the other one is a blocking client in a thread.
The clients look for what has no answer twice as often as they do by default.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable

import pytest

from stream_client import PositionBeyondEnd, StreamClient, StreamNotFound, blocking
from stream_client.consume import reader
from stream_client.shell import async_shell as async_client
from stream_client.shell import blocking_shell
from tests.client.shells import Tools, World

CHECK_INTERVAL_S = 1.0
"""Not less: a connection without an answer for eight of these is taken for dead, and a node may hold one for 5 s."""
SOON_S = 0.3
"""Until the stream is deleted: long enough for a reader to wait for its messages by then; also right if it does not."""


@pytest.fixture(autouse=True)
def frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (async_client, blocking_shell, reader):
        monkeypatch.setattr(module, "CHECK_INTERVAL_S", CHECK_INTERVAL_S)


def delete(address: str, name: str) -> None:
    with blocking.connect(address) as client:
        client.get_stream(name).delete()


async def exists(client: StreamClient, name: str) -> bool:
    return await client.find_stream(name) is not None


def test_a_stream_that_was_found_and_is_gone_tells_every_request_so(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            await client.create(world.name)
        async with tools.connect() as client:
            (stream,) = (await client.get_stream(world.name)).partitions
            delete(tools.address, world.name)
            async with stream.publisher(keep_failed=True) as publisher:
                pushes = [await publisher.push(b"%d" % number) for number in range(3)]
            assert all(isinstance(push.error, StreamNotFound) for push in pushes)
            asks: list[Callable[[], Awaitable[object]]] = [
                stream.info,
                stream.pull,
                lambda: stream.push(b"x"),
                lambda: stream.truncate(1),
                lambda: anext(stream.follow()),
                lambda: anext(stream.consumer(tools.saved_indexes(client, "c")).messages()),
            ]
            for ask in asks:
                with pytest.raises(StreamNotFound):
                    await ask()
            assert client.statistics().connections == 1, "silence of a stream is not that of the node"
            assert not await exists(client, world.name)

    world.run(scenario)


def test_a_waiting_reader_is_told_and_does_not_make_the_stream_anew(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await client.create(world.name)
            await stream.push(b"x")
            follower = stream.follow()
            assert (await anext(follower)).index == 0
            threading.Timer(SOON_S, delete, (tools.address, world.name)).start()
            with pytest.raises(StreamNotFound):
                await anext(follower)
            assert not await exists(client, world.name)
            assert await stream.push(b"made again, by design, for a push of its maker") == 0

    world.run(scenario)


def test_a_follower_never_goes_on_in_a_stream_made_anew(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await client.create(world.name)
            async with stream.publisher() as publisher:
                await publisher.push_many([b"x"] * 5)
            follower = stream.follow()
            assert [(await anext(follower)).index for _ in range(5)] == list(range(5))
            delete(tools.address, world.name)
            with blocking.connect(tools.address) as other:
                other.create(world.name).push(b"anew")
            with pytest.raises((StreamNotFound, PositionBeyondEnd)):
                await anext(follower)

    world.run(scenario)


def test_a_stream_whose_messages_are_all_gone_ends(world: World) -> None:
    """Goal: who reads it from the first message on to the end is told that this is the end, and does not wait."""

    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await client.create(world.name)
            for _ in range(3):
                await stream.push(b"x")
            await stream.truncate(3)
            assert [each async for each in stream.follow(stop_at_end=True)] == []
            await stream.push(b"y")
            assert [each.index async for each in stream.follow(stop_at_end=True)] == [3]

    world.run(scenario)
