"""Goal: who reads or writes a whole stream goes on with the partitions that it gets later, and all agree on the
partition of a key.

Method: one scenario each, against a real server, through every shell; the other one is a blocking client of its own.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterable

import pytest

from stream_client import blocking, partitions
from stream_service.extensions import RichMessage
from stream_service.names import partition_of
from tests.client.shells import Tools, World

PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def frequent_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "WATCH_S", 0.05)


def fill(address: str, name: str, partitions: int, messages: int, first: int = 0) -> None:
    """Makes sure that the stream has these partitions, and pushes messages to those from `first` on."""
    with blocking.connect(address) as client:
        for stream in client.create_partitioned(name, partitions).partitions[first:]:
            with stream.publisher() as publisher:
                publisher.push_many([b"%d" % number for number in range(messages)])


def ends(address: str, name: str) -> list[int]:
    with blocking.connect(address) as client:
        return [each.next_index for each in client.get_stream(name).info()]


async def read_while_it_grows(address: str, name: str, reader: AsyncIterable[tuple[int, RichMessage]]) -> None:
    """Reads two partitions with three messages each, and the two with five that are added when these are read."""
    seen = []
    async for partition, message in reader:
        seen.append((partition, message.index))
        if len(seen) == 6:
            fill(address, name, 4, 5, first=2)
        if len(seen) == 16:
            break
    assert sorted(seen) == [(at, index) for at in range(4) for index in range(3 if at < 2 else 5)]


@pytest.mark.parametrize("makes", [False, True])
def test_a_running_consumer_of_all_partitions_reads_those_that_are_added(world: World, makes: bool) -> None:
    """Also if the client has made the stream, and so got the routes of the first partitions from the node."""

    async def scenario(tools: Tools) -> None:
        fill(tools.address, world.name, 2, 3)
        async with tools.connect() as client:
            stream = await (client.create_partitioned(world.name, 2) if makes else client.get_stream(world.name))
            async with stream.consumer("c") as consumer:
                await read_while_it_grows(tools.address, world.name, consumer)
            saved = await tools.saved_indexes(client, "c").load(world.name, range(4))
            assert list(saved) == [3, 3, 5, 5]
            # A consumer of chosen partitions keeps to them.
            async with stream.consumer("d", partitions=[1]) as chosen:
                assert [at async for at, _ in chosen.messages(stop_at_end=True)] == [1] * 3

    world.run(scenario)


def test_a_running_group_shares_partitions_that_are_added(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        fill(tools.address, world.name, 2, 3)
        async with tools.connect() as client:
            jobs = await client.get_stream(world.name)
            async with jobs.shared_consumer("c") as group:
                await read_while_it_grows(tools.address, world.name, group)

    world.run(scenario)


@pytest.mark.parametrize("by", ["publisher", "push"])
def test_all_publishers_agree_on_the_partition_of_a_key_soon_after_it_has_changed(world: World, by: str) -> None:
    """Method: a key that belongs to one of the first two partitions, and to a third one when there are five. It is
    pushed until a push lies in the new partition; from then on all do."""
    keys = (b"%d" % number for number in range(1_000))
    key = next(each for each in keys if partition_of(each, 2) == 1 and partition_of(each, 5) > 1)

    async def scenario(tools: Tools) -> None:
        fill(tools.address, world.name, 2, 0)
        async with tools.connect() as client:
            stream = await client.get_stream(world.name)
            async with stream.publisher() as publisher:

                async def push() -> None:
                    if by == "publisher":
                        await publisher.push(b"x", key=key)
                        await publisher.flush()
                    else:
                        await stream.push(b"x", key=key)

                await push()
                assert ends(tools.address, world.name)[1] == 1
                fill(tools.address, world.name, 5, 0)
                deadline_s = time.monotonic() + PATIENCE_S
                while not any(ends(tools.address, world.name)[2:]):
                    assert time.monotonic() < deadline_s, "the publisher keeps the old number of partitions"
                    await push()
                before = ends(tools.address, world.name)
                for _ in range(5):
                    await push()
                with blocking.connect(tools.address) as other:
                    other.get_stream(world.name).push(b"x", key=key)
                grown = [after - then for after, then in zip(ends(tools.address, world.name), before, strict=True)]
            assert grown == [6 if at == partition_of(key, 5) else 0 for at in range(5)]

    world.run(scenario)
