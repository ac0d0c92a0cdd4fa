"""Goal: where a node is none of ours, a client says so. Method: a node that serves positions and no leases."""

from __future__ import annotations

import pytest
import trio

from index_service import client_lease_machine
from index_service.client_leases import LeaseMember, LeasesNotServed
from index_service.protocol import INDEX_PARTITIONED, PartitionIndex
from ockam.message import Message
from stream_service.client import SharedConsumer, connect
from stream_service.protocol import CREATE_PARTITIONED, PartitionCreated
from tests.support.fake_node import Answers, fake_node
from tests.support.served import PATIENCE_S


async def test_a_shared_consumer_ends_where_nobody_gives_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real index services are silent on what they do not know."""
    monkeypatch.setattr(client_lease_machine, "RETRY_S", 0.05)

    def answer(message: Message) -> Answers:
        if CREATE_PARTITIONED.is_in(message.payload):
            made = [PartitionCreated("s", partition) for partition in range(2)]
            return [(message.onward_route[-1:], CREATE_PARTITIONED.encode_response(each)) for each in made]
        if INDEX_PARTITIONED.is_in(message.payload):
            asked = INDEX_PARTITIONED.decode_request(message.payload)
            found = PartitionIndex(asked.client_id, asked.stream_name, asked.partition, 0)
            return [(message.onward_route[-1:], INDEX_PARTITIONED.encode_response(found))]
        return []

    async with fake_node(answer) as address, connect(address) as client:
        stream = await client.create_partitioned("s", 2)
        with trio.fail_after(PATIENCE_S), pytest.raises(LeasesNotServed, match="one consumer for each partition"):
            await consume_one(stream.shared_consumer(LeaseMember(client, "c")))


async def consume_one(shared: SharedConsumer) -> None:
    async with shared as consumer:
        await anext(consumer.messages())
