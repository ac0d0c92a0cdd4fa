"""Goal: the three clients do the same. Method: one scenario each, against a real server, through every shell.

Here: following a stream, and consumers with saved positions.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from stream_client import (
    FIRST,
    LAST,
    NEW,
    FromEnd,
    FromTime,
    PositionBeyondEnd,
    Stream,
    StreamClient,
)
from tests.client.shells import Tools, World, pause


async def numbered(client: StreamClient, name: str, count: int) -> Stream:
    """A stream of that many messages, each its index as text."""
    stream = await client.create(name)
    async with stream.publisher() as publisher:
        await publisher.push_many([b"%d" % number for number in range(count)])
    return stream


def test_follow_gives_every_message_whatever_the_page(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await numbered(client, world.name, 25)
            for page_messages in (1, 7, 25, 1_000):
                follower = stream.follow(stop_at_end=True, page_messages=page_messages)
                seen = [(each.index, each.data) async for each in follower]
                assert seen == [(number, b"%d" % number) for number in range(25)]
                assert (follower.next_index, follower.holes) == (25, 0)
                assert [each async for each in follower] == []
            empty = await client.create(world.name + " empty")
            assert [each async for each in empty.follow(stop_at_end=True)] == []

    world.run(scenario)


def test_a_page_of_no_messages_says_where_the_next_one_begins(world: World) -> None:
    """Goal: limit 0 finds an index by time or from the end. Method: compare with a page of one message."""

    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await numbered(client, world.name, 5)
            pause(0.002)
            later = datetime.now(UTC)
            for number in range(5, 8):
                await stream.push(b"%d" % number)
            for start, index in ((later, 5), (FromTime(0), 0), (FromEnd(2), 6), (FromEnd(99), 0), (NEW, 8), (3, 3)):
                page = await stream.pull_page(start, 0)
                assert (page.messages, page.resume_index) == ([], index)
                assert [each.index for each in (await stream.pull_page(start, 1)).messages] == [index][: index < 8]

    world.run(scenario)


def test_follow_begins_where_it_is_told(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await numbered(client, world.name, 5)
            middle_us = (await stream.pull_page(3, 1)).messages[0].time_us
            pause(0.002)
            later = datetime.now(UTC)
            for number in range(5, 10):
                await stream.push(b"%d" % number)
            for start, expected in (
                (FIRST, range(10)),
                (7, range(7, 10)),
                (LAST, [9]),
                (FromEnd(3), range(7, 10)),
                (later, range(5, 10)),
                (NEW, []),
                (FromTime(2**63), []),
            ):
                follower = stream.follow(start, stop_at_end=True, page_messages=2)
                assert [each.index async for each in follower] == list(expected), start
                assert await stream.find_index(start) == next(iter(expected), 10)
            first_at_that_time = await stream.find_index(FromTime(middle_us))
            assert 0 <= first_at_that_time <= 3
            with pytest.raises(ValueError, match="no time zone"):
                stream.follow(datetime(2026, 1, 1))

    world.run(scenario)


def test_follow_waits_for_what_comes(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client, tools.connect() as other:
            stream = await numbered(client, world.name, 3)
            publisher = await other.create(world.name)
            follower, first_page = stream.follow(3), stream.follow(2)
            assert [each.index for each in await first_page.next_page()] == [2]
            for number in range(3, 6):
                await publisher.push(b"%d" % number)
                message = await anext(follower)
                assert (message.index, message.data) == (number, b"%d" % number)
            assert [each.index for each in await first_page.next_page()][:1] == [3]
            first_page.stop()
            follower.stop()
            assert list(await follower.next_page()) == []

    world.run(scenario)


def test_a_follower_can_be_left_and_taken_up_again(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await numbered(client, world.name, 10)
            follower = stream.follow(stop_at_end=True, page_messages=4)
            seen = []
            async for message in follower:
                seen.append(message.index)
                if message.index == 2:
                    break
            async for message in follower:
                seen.append(message.index)
                if message.index == 5:
                    break
            assert [each.index for each in await follower.next_page()] == [6, 7]
            seen += [each.index async for each in follower]
            assert seen == [0, 1, 2, 3, 4, 5, 8, 9]

    world.run(scenario)


def test_holes_are_counted_and_told(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await numbered(client, world.name, 10)
            told: list[tuple[int, int, int]] = []

            def on_hole(partition: int, first_missing: int, next_there: int) -> None:
                told.append((partition, first_missing, next_there))

            follower = stream.follow(page_messages=2, on_hole=on_hole)
            indexes = [each.index for each in await follower.next_page()]
            positions = tools.saved_indexes(client, "c")
            await positions.save(world.name, {0: 2})
            await stream.truncate(7)
            # One page is ahead of the reader.
            while len(indexes) < 7:
                indexes += [each.index for each in await follower.next_page()]
            assert indexes == [0, 1, 2, 3, 7, 8, 9]
            assert (told, follower.holes) == ([(0, 4, 7)], 3)
            told.clear()
            async with stream.consumer(positions, on_hole=on_hole) as consumer:
                assert [each.index async for each in consumer.messages(stop_at_end=True)] == [7, 8, 9]
                assert (told, consumer.holes) == ([(0, 2, 7)], 5)

    world.run(scenario)


def test_a_consumer_resumes_where_it_stopped(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await numbered(client, world.name, 10)
            positions = tools.saved_indexes(client, "c")
            async with stream.consumer(positions, page_messages=4) as consumer:
                assert consumer.next_index is None
                async for message in consumer:
                    if message.index == 5:
                        assert consumer.next_index == 5
                        break
            assert await positions.get(world.name) == 6
            async with stream.consumer(positions) as consumer:
                assert [each.index async for each in consumer.messages(stop_at_end=True)] == [6, 7, 8, 9]
                assert (consumer.next_index, consumer.processed, consumer.holes) == (10, 4, 0)
            async with stream.consumer(positions) as consumer:
                assert [each.index async for each in consumer.messages(stop_at_end=True)] == []
                await stream.push(b"10")
                assert [each.index async for each in consumer.messages(stop_at_end=True)] == [10]
            assert await positions.get(world.name) == 11

    world.run(scenario)


def test_a_message_whose_processing_failed_comes_again(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await numbered(client, world.name, 10)
            positions = tools.saved_indexes(client, "c")

            async def process() -> None:
                async with stream.consumer(positions, page_messages=4) as consumer:
                    async for message in consumer:
                        if message.index == 6:
                            raise KeyError("cannot be processed")

            with pytest.raises(KeyError):
                await process()
            # It was saved without waiting, in order with what this client asks behind it.
            assert await positions.get(world.name) == 6
            async with stream.consumer(positions) as consumer:
                assert (await anext(consumer.messages())).index == 6

    world.run(scenario)


def test_a_consumer_saves_on_a_count_and_a_time(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client, tools.connect() as other:
            stream = await numbered(client, world.name, 10)
            positions, seen_by_other = (tools.saved_indexes(each, "c") for each in (client, other))
            by_count = stream.consumer(positions, save_messages=3, save_interval_s=1e6)
            kept = []
            async for _ in by_count.messages(stop_at_end=True):
                kept.append(await positions.get(world.name))
            assert kept == [0, 0, 0, 3, 3, 3, 6, 6, 6, 9]
            assert await positions.get(world.name) == 10
            by_time = (await numbered(client, world.name + " slow", 3)).consumer(
                positions, save_messages=1_000, save_interval_s=0.05
            )
            messages = by_time.messages()
            for _ in range(3):
                await anext(messages)
            pause(0.06)
            await client.create(world.name)
            assert await seen_by_other.get(world.name + " slow") == 0
            # The message behind those that have come is waited for; meanwhile the time is over.
            publisher = await other.create(world.name + " slow")
            await publisher.push(b"3")
            await anext(messages)
            assert await positions.get(world.name + " slow") == 3

    world.run(scenario)


def test_a_position_beyond_the_end_is_told(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await numbered(client, world.name, 3)
            positions = tools.saved_indexes(client, "c")
            await positions.save(world.name, {0: 9})
            consumer = stream.consumer(positions)
            with pytest.raises(PositionBeyondEnd, match="is 9, and the stream ends at 3") as caught:
                await anext(consumer.messages(stop_at_end=True))
            assert not caught.value.retriable

    world.run(scenario)


def test_a_partitioned_consumer_resumes_each_partition(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await client.create_partitioned(world.name, 3)
            for part, count in zip(stream.partitions, (40, 8, 4), strict=True):
                async with part.publisher() as publisher:
                    await publisher.push_many([b"%d" % number for number in range(count)])
            positions = tools.saved_indexes(client, "c")
            seen: list[tuple[int, int]] = []
            async with stream.consumer(positions, page_messages=4) as consumer:
                async for partition, message in consumer:
                    seen.append((partition, message.index))
                    if len(seen) == 24:
                        break
            async with stream.consumer(positions) as consumer:
                seen += [(part, each.index) async for part, each in consumer.messages(stop_at_end=True)]
                assert consumer.next_indexes == {0: 40, 1: 8, 2: 4}
            for partition, count in enumerate((40, 8, 4)):
                assert [index for part, index in seen if part == partition] == list(range(count))
            await stream.partitions[0].push(b"late")
            await stream.partitions[2].push(b"late")
            async with stream.consumer(positions, partitions=[1, 2]) as consumer:
                found = [(part, each.data) async for part, each in consumer.messages(stop_at_end=True)]
            assert found == [(2, b"late")]
            assert [await positions.get(world.name, part) for part in range(3)] == [40, 8, 5]

    world.run(scenario)


def test_a_long_poll_ends_when_there_is_something(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await client.create(world.name)
            started_s = time.monotonic()
            page = await stream.pull_page(0, wait_s=0.05)
            assert (list(page.messages), page.resume_index) == ([], 0)
            assert time.monotonic() - started_s >= 0.04
            await stream.push(b"x")
            page = await stream.pull_page(0, wait_s=60.0)
            assert [each.data for each in page.messages] == [b"x"]

    world.run(scenario)
