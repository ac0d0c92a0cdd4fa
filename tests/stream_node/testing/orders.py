"""The tests of a user's program, which `tests/stream_node/testing/test_pytest_plugin.py` runs against both nodes."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio

import stream_client
from stream_client import StreamNotFound, blocking


def test_a_push_is_read(stream_client: Any) -> None:
    orders = stream_client.create("orders")
    assert orders.push(b"one", key=b"k", headers={"a": "b"}) == 0
    (message,) = orders.pull_page(0).messages
    assert (message.data, message.key, [(h.name, h.value) for h in message.headers]) == (b"one", b"k", [("a", b"b")])
    assert abs(datetime.now(UTC) - datetime.fromtimestamp(message.time_us / 1e6, UTC)) < timedelta(minutes=5)


def test_each_test_has_an_empty_node(stream_client: Any) -> None:
    assert list(stream_client.list_streams()) == []
    assert stream_client.find_stream("orders") is None
    with pytest.raises(StreamNotFound):
        stream_client.get_stream("orders")
    stream_client.create("orders")


def test_a_consumer_goes_on_where_it_was(stream_client: Any) -> None:
    orders = stream_client.create("orders")
    with orders.publisher() as publisher:
        for number in range(100):
            publisher.push(b"%d" % number)
    seen: list[int] = []
    for until in (30, 100):
        with orders.consumer("billing") as consumer:
            for message in consumer:
                seen.append(int(message.data))
                if len(seen) == until:
                    break
    assert seen == list(range(100))


def test_members_of_a_group_share_the_partitions(stream_client: Any) -> None:
    orders = stream_client.create_partitioned("orders", 4)
    for number in range(20):
        orders.push(b"%d" % number, key=b"%d" % number)
    with orders.shared_consumer("billing") as member:
        seen = {int(message.data) for _, (_, message) in zip(range(20), member, strict=False)}
    assert seen == set(range(20))


def test_old_messages_are_removed(stream_client: Any) -> None:
    orders = stream_client.create("orders")
    for number in range(10):
        orders.push(b"%d" % number)
    orders.truncate(7)
    info = orders.info()
    assert (info.first_index, info.next_index) == (7, 10)
    assert [each.index for each in orders.pull(0)] == [7, 8, 9]


def test_a_reader_waits_for_another_thread(stream_node: Any, stream_client: Any) -> None:
    orders = stream_client.create("orders")

    def push() -> None:
        with blocking.connect(stream_node.address) as other:
            other.create("orders").push(b"late")

    thread = threading.Timer(0.05, push)
    thread.start()
    assert [each.data for each in orders.pull_page(0, wait_s=30).messages] == [b"late"]
    thread.join()


def test_large_messages(stream_client: Any) -> None:
    orders = stream_client.create("orders")
    large = bytes(range(256)) * 4096
    assert [orders.push(large) for _ in range(3)] == [0, 1, 2]
    assert [orders.pull(index, 1)[0].data for index in range(3)] == [large] * 3


async def test_async_in_trio(async_stream_client: Any) -> None:
    orders = await async_stream_client.create("orders")
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(orders.push, b"%d" % number)
    assert sorted(int(each.data) for each in await orders.pull(0, 100)) == list(range(20))


def test_async_in_asyncio(stream_node: Any) -> None:
    async def main() -> list[bytes]:
        async with stream_client.connect(stream_node.address) as client:
            orders = await client.create("orders")
            await asyncio.gather(*(orders.push(b"x") for _ in range(10)))
            return [each.data for each in await orders.pull(0, 100)]

    assert asyncio.run(main()) == [b"x"] * 10


def test_a_client_that_goes_is_noticed(stream_node: Any) -> None:
    with blocking.connect(stream_node.address) as one, blocking.connect(stream_node.address):
        one.create("orders").push(b"kept")
    with blocking.connect(stream_node.address) as three:
        assert [each.data for each in three.create("orders").pull(0)] == [b"kept"]
