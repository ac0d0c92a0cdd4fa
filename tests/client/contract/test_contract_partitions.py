"""Goal: a stream that lost a partition is used for what it is: nothing goes to, or comes from, the wrong partition.

Method: one scenario each, against a real server, through every shell.
"""

from __future__ import annotations

import pytest

from stream_client import PartitionedStream, StreamClient, StreamNotFound
from stream_service.names import partition_of
from tests.client.shells import Tools, World

PARTITIONS, LOST = 4, 1


def key_of(partition: int) -> bytes:
    return next(b"%d" % number for number in range(1_000) if partition_of(b"%d" % number, PARTITIONS) == partition)


async def lame(tools: Tools, client: StreamClient, name: str) -> PartitionedStream:
    """A stream of four whose second partition is deleted, each of the others with one message."""
    async with tools.connect() as other:
        stream = await other.create_partitioned(name, PARTITIONS)
        for part in stream.partitions:
            await part.push(b"in %d" % part.partition)
        await stream.partitions[LOST].delete()
    return await client.get_stream(name)


def test_keys_go_to_their_partition_or_nowhere(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await lame(tools, client, world.name)
            assert ([part.partition for part in stream.partitions], stream.count) == ([0, 2, 3], PARTITIONS)
            assert stream.partition_for(key_of(3)).partition == 3
            assert await stream.push(b"by key", key=key_of(2)) == 1
            async with stream.publisher() as publisher:
                assert (await publisher.push(b"by key", key=key_of(3))).partition == 3
                with pytest.raises(StreamNotFound, match="partition 1"):
                    await publisher.push(b"nowhere", key=key_of(LOST))
                in_turn = [(await publisher.push(b"in turn")).partition for _ in range(6)]
            assert in_turn == [0, 2, 3, 0, 2, 3]
            with pytest.raises(StreamNotFound, match="partition 1"):
                stream.partition_for(key_of(LOST))
            with pytest.raises(StreamNotFound, match="partition 1"):
                stream.get_partition(LOST)
            with pytest.raises(StreamNotFound, match="partition 1"):
                await stream.push(b"nowhere", partition_key=key_of(LOST))

    world.run(scenario)


def test_partitions_are_read_by_number(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await lame(tools, client, world.name)
            positions = tools.saved_indexes(client, "c")
            async with stream.consumer(positions, partitions=[2]) as consumer:
                found = [(at, each.data) async for at, each in consumer.messages(stop_at_end=True)]
            assert found == [(2, b"in 2")]
            with pytest.raises(StreamNotFound, match="partition 1"):
                stream.consumer(positions, partitions=[0, LOST])
            with pytest.raises(StreamNotFound, match="partition 1"):
                stream.shared_consumer(tools.lease_member(client, "c", "m"))
            async with stream.consumer(positions) as consumer:
                found = [(at, each.data) async for at, each in consumer.messages(stop_at_end=True)]
            assert sorted(found) == [(0, b"in 0"), (3, b"in 3")]

    world.run(scenario)


def test_a_partition_that_never_was_is_an_error_and_is_not_made(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await client.create_partitioned(world.name, 2)
            for missing in (2, 9, -1):
                with pytest.raises(
                    StreamNotFound, match=f"no partition {missing}: it has 0 to 1; `create_partitioned`"
                ):
                    stream.get_partition(missing)
            found = await client.get_stream(world.name)
            assert [part.partition for part in found.partitions] == [0, 1]

    world.run(scenario)


def test_who_asks_for_fewer_partitions_than_there_are_sends_keys_where_everybody_does(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            await client.create_partitioned(world.name, PARTITIONS)
            stream = await client.create_partitioned(world.name, 2)
            assert [part.partition for part in stream.partitions] == list(range(PARTITIONS))
            for partition in range(PARTITIONS):
                assert stream.partition_for(key_of(partition)).partition == partition

    world.run(scenario)
