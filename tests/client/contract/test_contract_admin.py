"""Goal: the three clients do the same. Method: one scenario each, against a real server, through every shell.

Here: what an administrator does with streams and positions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

import stream_client
from stream_client import RequestRefused, Retention, StreamClient, StreamNotFound, blocking
from stream_client.arguments import microseconds
from tests.client.shells import Tools, View, World, hidden


async def listed(tools: Tools, client: StreamClient, **filters: Any) -> list[tuple[str, str, int, int]]:
    """Client id, stream, partition and index of saved positions."""
    positions: AsyncIterator[Any]
    if tools.shell == "blocking":
        positions = View(blocking.list_positions(hidden(client), **filters)).__aiter__()
    else:
        positions = stream_client.list_positions(client, **filters)
    return [(each.client_id, each.stream_name, each.partition, each.index) async for each in positions]


async def set_position(tools: Tools, client: StreamClient, *where: Any) -> int | None:
    if tools.shell == "blocking":
        return blocking.set_position(hidden(client), *where)
    return await stream_client.set_position(client, *where)


def test_a_stream_tells_about_itself(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            before_us = microseconds(datetime.now(UTC))
            stream = await client.create(world.name)
            info = await stream.info()
            assert (info.stream_name, info.partition, info.first_index, info.next_index) == (world.name, 0, 0, 0)
            assert (info.first_time_us, info.last_time_us, info.retention) == (None, None, None)
            await stream.push(b"12345")
            await stream.push(b"678")
            info = await stream.info()
            assert (info.next_index, info.count, info.size_bytes) == (2, 2, 8)
            assert info.first_time_us is not None
            assert info.last_time_us is not None
            assert before_us <= info.created_us <= info.first_time_us <= info.last_time_us
            parts = await (await client.create_partitioned(world.name, 3)).info()
            assert [(each.partition, each.next_index) for each in parts] == [(0, 2), (1, 0), (2, 0)]

    world.run(scenario)


def test_streams_are_listed_in_pages_by_prefix_and_found_by_name(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            for name in ("b", "a", "ab"):
                await client.create_partitioned(f"{world.name}/{name}", 2)
            expected = [(f"{world.name}/{name}", part) for name in ("a", "ab", "b") for part in (0, 1)]
            for page_streams in (1, 2, 5, 1_000):
                infos = client.list_streams(f"{world.name}/", page_streams=page_streams)
                assert [(each.stream_name, each.partition) async for each in infos] == expected
            found = await client.find_stream(f"{world.name}/a")
            assert found is not None
            assert [part.partition for part in found.partitions] == [0, 1]
            assert await found.partitions[1].push(b"x") == 0
            assert await client.find_stream(f"{world.name}/") is None
            with pytest.raises(StreamNotFound):
                await client.get_stream(f"{world.name}/c")
            assert (await client.get_stream(f"{world.name}/b")).name == f"{world.name}/b"
            unknown = client.list_streams(f"{world.name}/c")
            assert [each async for each in unknown] == []

    world.run(scenario)


def test_messages_are_truncated_before_an_index_or_a_time(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await client.create(world.name)
            for number in range(6):
                await stream.push(b"%d" % number)
            answer = await stream.truncate(2)
            assert (answer.deleted, answer.first_index) == (2, 2)
            assert (await stream.truncate(1)).deleted == 0
            await stream.truncate(datetime(2020, 1, 1, tzinfo=UTC))
            assert [each.index for each in await stream.pull()] == [2, 3, 4, 5]
            answer = await stream.truncate(datetime(2200, 1, 1, tzinfo=UTC))
            assert (answer.deleted, answer.first_index, list(await stream.pull())) == (4, 6, [])
            assert await stream.push(b"next") == 6

    world.run(scenario)


def test_a_deleted_stream_is_gone_until_it_is_made_again(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await client.create_partitioned(world.name, 2)
            for part in stream.partitions:
                await part.push(b"x")
            assert await stream.delete() == 2
            assert await client.find_stream(world.name) is None
            again = await client.create(world.name)
            assert await again.push(b"new") == 0
            assert [each.data for each in await again.pull()] == [b"new"]

    world.run(scenario)


def test_retention_is_set_and_taken_back(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            stream = await client.create(world.name)
            retention = Retention(age_s=3_600, size_bytes=1_000_000)
            assert (await stream.set_retention(retention)).retention == retention
            assert (await stream.info()).retention == retention
            assert (await stream.set_retention(None)).retention is None

    world.run(scenario)


def test_positions_are_listed_and_set(world: World) -> None:
    async def scenario(tools: Tools) -> None:
        async with tools.connect() as client:
            mine, other = world.name + " a", world.name + " b"
            await tools.saved_indexes(client, mine).save(world.name, {0: 5, 1: 6})
            await tools.saved_indexes(client, other).save(world.name, {0: 7})
            rows = [(mine, world.name, 0, 5), (mine, world.name, 1, 6), (other, world.name, 0, 7)]
            for page_positions in (1, 2, 1_000):
                assert await listed(tools, client, stream_name=world.name, page_positions=page_positions) == rows
            assert await listed(tools, client, client_id=other) == rows[2:]
            assert await listed(tools, client, stream_name=world.name, client_id=mine) == rows[:2]
            assert await set_position(tools, client, mine, world.name, 0, 2) == 5
            assert await tools.saved_indexes(client, mine).get(world.name) == 2
            assert await set_position(tools, client, mine, world.name, 0, None) == 2
            assert await set_position(tools, client, mine, world.name, 0, 1) is None
            with pytest.raises(RequestRefused):
                await set_position(tools, client, mine, world.name, 0, 2**63)

    world.run(scenario)
