"""Goal: the specification's rules about reliable delivery, saved indexes and partitions.

Method: raw requests to a whole server; our consumer, where the rule is the client's. Each docstring begins with the
chapter and the words of the rule (see `test_specification.py`).
"""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import TypeAlias

import pytest

from ockam.actors.address import Route, local
from ockam.actors.message import Message
from ockam.protocol import Protocol, error_payload
from stream_client import Consumer, SavedIndexes, StreamClient, connect
from stream_service.protocol import (
    CREATE_PARTITIONED,
    CREATE_PARTITIONS,
    PUSH,
    CreatePartitions,
    PartitionCreated,
    PushConfirm,
    Status,
)
from tests.support.data_dir import truncate_before
from tests.support.fake_node import Answers, fake_node
from tests.support.served import served

pytestmark = pytest.mark.usefixtures("each_database")

Partitioned: TypeAlias = Protocol[CreatePartitions, PartitionCreated]


async def read_some(client: StreamClient, count: int, *, page_messages: int = 1_000) -> tuple[Consumer, list[int]]:
    """A consumer "c" of the stream "s" that stops, as if killed, with its `count`-th message in hand."""
    consumer = Consumer(await client.create("s"), SavedIndexes(client, "c"), page_messages=page_messages)
    indexes: list[int] = []
    async with aclosing(consumer.messages(stop_at_end=True)) as messages:
        async for message in messages:
            indexes.append(message.index)
            if len(indexes) == count:
                break
    return consumer, indexes


async def push_numbers(client: StreamClient, count: int) -> None:
    async with (await client.create("s")).publisher() as publisher:
        await publisher.push_many([b"%d" % number for number in range(count)])


async def test_messages_may_be_deleted_and_the_rest_keep_their_indexes(tmp_path: Path) -> None:
    """Reliable delivery: "MAY guarantee some retention time AND/OR length of the queue, also it MAY delete messages".

    Ours deletes nothing by itself. Where messages have been deleted, even all, no index is ever given again.
    """
    async with served(tmp_path) as server, connect(server.address) as client:
        await push_numbers(client, 10)
    truncate_before(tmp_path, "s", 7)
    async with served(tmp_path) as server, connect(server.address) as client:
        stream = await client.create("s")
        assert [message.data for message in await stream.pull(0, 10)] == [b"7", b"8", b"9"]
    truncate_before(tmp_path, "s", 10)
    async with served(tmp_path) as server, connect(server.address) as client:
        stream = await client.create("s")
        assert list(await stream.pull(0, 10)) == []
        assert await stream.push(b"next") == 10


async def test_our_consumer_detects_holes(tmp_path: Path) -> None:
    """Reliable delivery: "the client MUST keep track of received indexes, detect "holes" in delivery"."""
    async with served(tmp_path) as server, connect(server.address) as client:
        await push_numbers(client, 20)
        consumer, indexes = await read_some(client, 4)
        await consumer.save()
        assert await SavedIndexes(client, "c").get("s") == 3
        assert (indexes, consumer.next_index, consumer.holes) == ([0, 1, 2, 3], 3, 0)
    truncate_before(tmp_path, "s", 10)
    async with served(tmp_path) as server, connect(server.address) as client:
        consumer, indexes = await read_some(client, 100)
        assert (indexes, consumer.holes) == (list(range(10, 20)), 7)


async def test_a_consumer_that_dies_gets_what_it_had_not_saved_again_and_skips_nothing(tmp_path: Path) -> None:
    """Updating an index: "the client SHOULD NOT save a higher index if it did not processed lower index messages yet".

    A message counts as processed when the next one is asked for.
    """
    async with served(tmp_path) as server, connect(server.address) as client:
        await push_numbers(client, 10)
        for count, expected in ((3, [0, 1, 2]), (7, list(range(7))), (4, [4, 5, 6, 7]), (100, list(range(4, 10)))):
            page_messages = 1_000 if count == 3 else 4
            _, indexes = await read_some(client, count, page_messages=page_messages)
            assert indexes == expected
        assert await SavedIndexes(client, "c").get("s") == 10


async def test_an_index_that_was_never_saved_is_made_with_0(tmp_path: Path) -> None:
    """Creating/retrieving a stream index: "a new record MUST be created with an index 0"."""
    async with served(tmp_path) as server:
        peer = await server.peer()
        assert await peer.get_index("consumer", "s") == 0
        assert await peer.get_partition_index("consumer", "s", 3) == 0
    async with served(tmp_path) as server:
        peer = await server.peer()
        assert await peer.get_index("consumer", "s") == 0


async def test_a_consumer_saves_its_position_and_resumes_there(tmp_path: Path) -> None:
    """Updating an index: "When client processed a message, it MAY save this message index"."""
    async with served(tmp_path) as server, connect(server.address) as client:
        await push_numbers(client, 5)
        _, indexes = await read_some(client, 100)
        assert indexes == [0, 1, 2, 3, 4]
    async with served(tmp_path) as server, connect(server.address) as client:
        assert await SavedIndexes(client, "c").get("s") == 5
        await push_numbers(client, 2)
        _, indexes = await read_some(client, 100)
        assert indexes == [5, 6]


@pytest.mark.parametrize(
    ("saves", "kept"), [([10, 5], 10), ([5, 10], 10), ([7, 7], 7), ([3, 2**63 - 1, 4], 2**63 - 1), ([0], 0)]
)
async def test_a_saved_index_only_rises(tmp_path: Path, saves: list[int], kept: int) -> None:
    """Updating an index: "Index storage MUST be monototnic".

    Updating an index: "if the current saved index is already higher than `SaveIndex`, it MUST NOT be changed".
    """
    async with served(tmp_path) as server:
        peer = await server.peer()
        for index in saves:
            await peer.save_index("consumer", "s", index)
        assert await peer.get_index("consumer", "s") == kept


@pytest.mark.parametrize("protocol", [CREATE_PARTITIONED, CREATE_PARTITIONS], ids=lambda protocol: protocol.name)
async def test_each_partition_is_a_stream_that_answers_itself(tmp_path: Path, protocol: Partitioned) -> None:
    """Create partitioned stream: "Stream service MUST create multiple stream instances, one for each partition".

    Create partitioned stream: "Each partition instance MUST send CreatePartitionedStreamResponse".
    """
    async with served(tmp_path) as server:
        peer = await server.peer()
        inits = await peer.create_partitions("parted", 5, protocol)
        assert [(init.stream_name, init.partition) for init, _ in inits] == [("parted", number) for number in range(5)]
        assert len({route for _, route in inits}) == 5
        for number, (_, route) in enumerate(inits):
            for index in range(number):
                assert (await peer.push(route, b"%d of %d" % (index, number))).index == index
        for number, (_, route) in enumerate(inits):
            page = (await peer.pull(route, 0, 10)).messages
            assert [message.data for message in page] == [b"%d of %d" % (index, number) for index in range(number)]


async def test_our_client_tells_partitions_apart_by_their_return_routes(tmp_path: Path) -> None:
    """Create partitioned stream: "Client SHOULD associate partition number with return route to push/pull messages"."""
    async with served(tmp_path) as server, connect(server.address) as client:
        stream = await client.create_partitioned("parted", 3)
        for part in stream.partitions:
            await part.push(b"for %d" % part.partition)
        peer = await server.peer()
        for init, route in await peer.create_partitions("parted", 3):
            page = (await peer.pull(route, 0, 10)).messages
            assert [message.data for message in page] == [b"for %d" % init.partition]


async def test_our_client_tells_partitions_apart_in_any_order() -> None:
    """Create partitioned stream: "Client SHOULD associate partition number with return route"."""
    routes = [(local(f"stream {number}"),) for number in range(3)]
    pushed: list[tuple[Route, bytes]] = []

    def answer(message: Message) -> Answers:
        if CREATE_PARTITIONED.is_in(message.payload):
            for number in (2, 0, 1):
                yield routes[number], CREATE_PARTITIONED.encode_response(PartitionCreated("parted", number))
        elif PUSH.is_in(message.payload):
            push = PUSH.decode_request(message.payload)
            pushed.append((message.onward_route, push.data))
            yield message.onward_route, PUSH.encode_response(PushConfirm(push.request_id, Status.OK, 0))
        else:
            yield message.onward_route[:1], error_payload("not served here")

    async with fake_node(answer) as address, connect(address) as client:
        for part in (await client.create_partitioned("parted", 3)).partitions:
            await part.push(b"%d" % part.partition)
    assert pushed == [(routes[number], b"%d" % number) for number in range(3)]
